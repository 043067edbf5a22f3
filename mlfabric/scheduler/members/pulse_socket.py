"""Where the scheduler hears members' pulses: a datagram socket, who sends under which key, the clock. Decides nothing.

What has arrived is read before anything is judged (``silence.py``). A member that was found silent and is heard again
is told to join again: its stream may have ended unnoticed by it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from mlfabric import clock
from mlfabric.model.specs import Member
from mlfabric.pulse import beat
from mlfabric.scheduler.members.silence import Found, Silences

__all__ = ["Datagrams", "Listener", "listen_for_pulses"]

log = logging.getLogger("mlfabric.scheduler")
JUDGE_S = 0.05
RECEIVE_BUFFER_BYTES = 4 << 20
MOST_AT_ONCE = 4096
MOST_DEPOSED = 64


class Datagrams(Protocol):
    """A datagram socket that does not block, as the event loop knows it."""

    def fileno(self) -> int:
        """Return its number for the event loop."""

    def getsockname(self) -> Any:
        """Return where it is bound: address and port."""

    def recvfrom(self, most_bytes: int, /) -> tuple[bytes, Any]:
        """Return the next datagram and its sender; OSError if there is none."""

    def sendto(self, datagram: bytes, address: Any, /) -> int:
        """Send a datagram."""

    def close(self) -> None:
        """Close it."""


def listen_for_pulses(host: str, port: int) -> socket.socket | None:
    """Return a datagram socket on a port, or on any if that is taken; None, with a warning, if none can be had."""
    try:
        family, _, _, _, (bind_host, *_) = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
        found = socket.socket(family, socket.SOCK_DGRAM)
    except OSError as error:
        log.warning("no signs of life will be heard, members are judged by their streams alone: %s", error)
        return None
    found.setblocking(False)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    for choice in (port, 0):
        try:
            found.bind((bind_host, choice))
        except OSError as error:
            log.warning("cannot hear signs of life at UDP port %s of %s: %s", choice, host, error.strerror)
        else:
            return found
    found.close()
    return None


@dataclass(slots=True)
class _Sender:
    """Whom pulses of one key come from."""

    name: str
    incarnation: int
    key: bytes
    sent_ns: int = 0


class Listener:
    """Hears pulses while an event loop runs.

    Args:
        sock: a datagram socket that does not block; None hears nobody.
        found: called with whoever does not answer any more, and with its incarnation.
        ending: what raises within this context ends the scheduler.
    """

    def __init__(
        self,
        sock: Datagrams | None,
        found: Callable[[Found, int], None],
        ending: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._ending = ending
        self._socket = sock
        self._found = found
        self._silences = Silences()
        self._senders: dict[bytes, _Sender] = {}
        self._id_of: dict[str, bytes] = {}
        self._deposed: dict[bytes, _Sender] = {}
        self._timer: asyncio.TimerHandle | None = None
        if sock is not None:
            asyncio.get_running_loop().add_reader(sock, self._read)

    @property
    def port(self) -> int:
        """Where pulses are heard; 0 for nowhere."""
        return 0 if self._socket is None else int(self._socket.getsockname()[1])

    def watch(self, member: Member) -> None:
        """Listen for a member that has joined; nobody listens for one that came without a key."""
        self._depose(member)
        self.forget(member.name, member.pulse_key)
        if self._socket is None or len(member.pulse_key) != beat.KEY_BYTES:
            return
        pulse_id = beat.id_of(member.pulse_key)
        former = self._senders.get(pulse_id)
        if former is not None and former.name != member.name:
            log.warning("%s gives the key of %s; nobody listens for it", member.name, former.name)
            return
        sent_ns = 0 if former is None else former.sent_ns
        self._id_of[member.name] = pulse_id
        self._senders[pulse_id] = _Sender(member.name, member.incarnation, member.pulse_key, sent_ns)
        self._silences.watch(member.name, member.host, clock.monotonic_ns())
        if self._timer is None:
            self._wait()

    def _depose(self, member: Member) -> None:
        """Remember whose name another process takes: if it is heard again it is told to join again, and refused."""
        former = self._senders.get(self._id_of.get(member.name, b""))
        if former is not None and former.key != member.pulse_key:
            self._deposed[beat.id_of(former.key)] = former
            while len(self._deposed) > MOST_DEPOSED:
                del self._deposed[next(iter(self._deposed))]

    def forget(self, name: str, next_key: bytes = b"") -> None:
        """Listen no more for a member; what was learnt of it is kept if it goes on with the key that is given."""
        pulse_id = self._id_of.pop(name, None)
        if pulse_id is not None and not (next_key and pulse_id == beat.id_of(next_key)):
            del self._senders[pulse_id]
            self._silences.forget(name)

    def is_stopped(self, member: Member) -> bool:
        """Tell whether a member that wants to join (again) is known to be stopped."""
        sender = self._senders.get(self._id_of.get(member.name, b""))
        is_same = sender is not None and sender.key == member.pulse_key
        return is_same and self._silences.is_stopped(member.name, clock.monotonic_ns())

    def close(self) -> None:
        """Hear no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _read(self) -> bool:
        """Take in what has arrived; tell whether that is all."""
        assert self._socket is not None, "nobody reads a socket that is closed"
        now_ns = clock.monotonic_ns()
        for _ in range(MOST_AT_ONCE):
            try:
                datagram, address = self._socket.recvfrom(beat.MOST_BYTES + 1)
            except OSError:  # nothing more
                return True
            pulse_id = beat.pulse_id(datagram)
            sender = self._senders.get(pulse_id) or self._deposed.get(pulse_id)
            opened = None if sender is None else beat.open_pulse(sender.key, datagram)
            if sender is None or opened is None or opened[0] <= sender.sent_ns:
                continue
            sender.sent_ns, stopped_ms, ended = opened
            if sender is self._deposed.get(pulse_id):
                if not (stopped_ms or ended):
                    self._recall(sender, address)
                continue
            self._silences.heard(sender.name, now_ns, 1_000_000 * stopped_ms, ended=ended)
            if self._silences.is_found(sender.name) and not (stopped_ms or ended):
                self._recall(sender, address)
        return False

    def _recall(self, sender: _Sender, address: tuple[str, int]) -> None:
        assert self._socket is not None, "it was heard"
        try:
            self._socket.sendto(beat.recall(sender.key, sender.sent_ns), address)
        except OSError:
            return  # the next pulse is answered as well

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(JUDGE_S, self._judge)

    def _judge(self) -> None:
        self._timer = None
        with self._ending():
            self._judge_now()

    def _judge_now(self) -> None:
        found = self._silences.judge(clock.monotonic_ns()) if self._read() else []
        if self._senders:
            self._wait()
        for one in found:
            sender = self._senders.get(self._id_of.get(one.member, b""))
            if sender is not None:
                self._found(one, sender.incarnation)
