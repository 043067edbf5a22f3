"""A small process beside a member's: tells the scheduler ten times a second that this one is there, and how it is.

It is a process of its own, since waiting for answers cannot tell a process that is stopped from one that computes
with the interpreter's lock held. This one never computes, so it is late only when its whole host is; and it sees in
``/proc`` whether the process that it stands beside is stopped (SIGSTOP, a debugger). So the scheduler hears of a
stopped process at once, and of a host that is gone by hearing nothing. It ends with the process that started it.

A pulse is one UDP datagram, for a lost one must not delay the next, sealed with a key that the member has told the
scheduler when it registered. The scheduler imports the definition of these datagrams from here.

Runs as a script under ``python -I -S``: only the standard library, and as little of it as possible. Usage: ``beat.py
PARENT_PID``; on standard input lines ``watch KEY ADDRESS PORT`` and ``forget KEY`` (keys in
hexadecimal); on standard output a line ``recall KEY SENT_NS`` when the scheduler says that the member is not with it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from _blake2 import blake2b
from _operator import _compare_digest
from _socket import AF_INET, AF_INET6, IP_TOS, IPPROTO_IP, SOCK_DGRAM, socket
from select import POLLIN, poll
from struct import Struct

__all__ = [
    "KEY_BYTES",
    "MOST_BYTES",
    "PERIOD_S",
    "id_of",
    "look",
    "open_pulse",
    "open_recall",
    "pulse",
    "pulse_id",
    "recall",
]

PERIOD_S = 0.1
KEY_BYTES = 32
_ID_BYTES = 8
_SEAL_BYTES = 16
_PULSE = Struct("!4s8sQI?")
_RECALL = Struct("!4s8sQ")
_IS_PULSE = b"mlf\x01"
_IS_RECALL = b"mlf\x02"
MOST_BYTES = _PULSE.size + _SEAL_BYTES
_MOST_MS = (1 << 32) - 1
_EXPEDITED = 0xB8
"""The mark (DSCP EF) of what is to pass queues of bulk data by, where a network or a host cares for it."""
_STOPPED = (b"T", b"t")
_STATE, _USER_TICKS, _SYSTEM_TICKS = 0, 11, 12
_LINES_AT_ONCE = 65536
_PARENT_ENDS_S = 0.01
_IDLE_S = 1.0


# Datagrams


def id_of(key: bytes) -> bytes:
    """Return the id under which pulses of a key come; it does not give the key away."""
    return bytes(blake2b(b"id", key=key, digest_size=_ID_BYTES).digest())


def pulse(key: bytes, sent_ns: int, stopped_ms: int, ended: bool) -> bytes:
    """Make a pulse.

    Args:
        key: of the member, ``KEY_BYTES`` long.
        sent_ns: on a clock that does not go back; a receiver takes each pulse once, and only newer ones.
        stopped_ms: for how long its process has been seen stopped; 0 if it runs.
        ended: its process is no more.
    """
    return _sealed(key, _PULSE.pack(_IS_PULSE, id_of(key), sent_ns, min(stopped_ms, _MOST_MS), ended))


def pulse_id(datagram: bytes) -> bytes:
    """Return the id that a pulse comes under; b"" if it is none."""
    return datagram[4:12] if len(datagram) == MOST_BYTES and datagram.startswith(_IS_PULSE) else b""


def open_pulse(key: bytes, datagram: bytes) -> tuple[int, int, bool] | None:
    """Return ``sent_ns``, ``stopped_ms`` and ``ended`` of a pulse; None if it is not of this key."""
    if not _is_sealed(key, datagram, _PULSE, _IS_PULSE):
        return None
    sent_ns, stopped_ms, ended = _PULSE.unpack_from(datagram)[2:]
    return sent_ns, stopped_ms, ended


def recall(key: bytes, sent_ns: int) -> bytes:
    """Make the answer to the pulse that was sent at ``sent_ns`` by a member that has to join again."""
    return _sealed(key, _RECALL.pack(_IS_RECALL, id_of(key), sent_ns))


def open_recall(key: bytes, datagram: bytes) -> int | None:
    """Return when the pulse was sent that a recall answers; None if it is not of this key."""
    return int(_RECALL.unpack_from(datagram)[2]) if _is_sealed(key, datagram, _RECALL, _IS_RECALL) else None


def _sealed(key: bytes, body: bytes) -> bytes:
    return body + blake2b(body, key=key, digest_size=_SEAL_BYTES).digest()


def _is_sealed(key: bytes, datagram: bytes, form: Struct, kind: bytes) -> bool:
    fits = len(datagram) == form.size + _SEAL_BYTES and datagram.startswith(kind)
    return fits and _compare_digest(datagram, _sealed(key, datagram[: form.size]))


# Processes


def look(pid: int) -> tuple[bytes, int] | None:
    """Return a process's state (one letter) and the clock ticks of processor time that it has had.

    None if there is none, or no ``/proc``.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[_STATE], int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])


class _Beside:
    """The process that is looked at."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ticks = -1
        self._since_s = 0.0

    def stopped_s(self, now_s: float) -> float:
        """Return for how long the process has been seen stopped; one that had processor time meanwhile was not."""
        found = look(self._pid)
        if found is None or found[0] not in _STOPPED:
            self._ticks = -1
            return 0.0
        if found[1] != self._ticks:
            self._ticks, self._since_s = found[1], now_s
        return max(now_s - self._since_s, 0.001)


class _Watch:
    """What is sent for one member, and where to."""

    def __init__(self, key: bytes, address: str, port: int) -> None:
        self.key = key
        self.socket = socket(AF_INET6 if ":" in address else AF_INET, SOCK_DGRAM)
        self.socket.setblocking(False)
        if self.socket.family == AF_INET:
            self.socket.setsockopt(IPPROTO_IP, IP_TOS, _EXPEDITED)
        self._address = (address, port)

    def send(self, stopped_s: float, ended: bool) -> None:
        """Send a pulse; what cannot be sent is as good as lost on its way."""
        datagram = pulse(self.key, time.monotonic_ns(), round(1000 * stopped_s), ended)
        try:
            self.socket.sendto(datagram, self._address)
        except OSError:
            return

    def recalled(self) -> int | None:
        """Return when the newest pulse was sent that was answered by a recall; None if none was."""
        newest = None
        try:
            while True:
                newest = open_recall(self.key, self.socket.recv(MOST_BYTES + 1)) or newest
        except OSError:  # nothing more, or nobody listens there
            return newest


# The process


class _Beat:
    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._beside = _Beside(parent)
        self._watches: dict[bytes, _Watch] = {}
        self._poll = poll()
        self._poll.register(0, POLLIN)
        self._rest = b""
        self._heard_out = False
        self._due_s = time.monotonic()

    def run(self) -> None:
        """Send pulses until the process that started this one ends."""
        while os.getppid() == self._parent:
            wait_s = _PARENT_ENDS_S if self._heard_out else self._due_s - time.monotonic()
            for descriptor, _ in self._poll.poll(max(0, wait_s) * 1000):
                self._read(descriptor)
            now_s = time.monotonic()
            if now_s >= self._due_s:
                self._due_s = max(self._due_s + (PERIOD_S if self._watches else _IDLE_S), now_s)
                self._send(now_s, False)
        self._send(time.monotonic(), True)

    def _send(self, now_s: float, ended: bool) -> None:
        stopped_s = 0.0 if ended else self._beside.stopped_s(now_s)
        for watch in self._watches.values():
            watch.send(stopped_s, ended)

    def _read(self, descriptor: int) -> None:
        if descriptor == 0:
            self._read_lines()
            return
        for watch in self._watches.values():
            if watch.socket.fileno() == descriptor and (sent_ns := watch.recalled()) is not None:
                os.write(1, b"recall %s %d\n" % (watch.key.hex().encode(), sent_ns))

    def _read_lines(self) -> None:
        read = os.read(0, _LINES_AT_ONCE)
        if not read:
            self._heard_out = True
            self._poll.unregister(0)
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            self._obey(*line.decode().split())

    def _obey(self, order: str, key: str, *arguments: str) -> None:
        former = self._watches.pop(bytes.fromhex(key), None)
        if former is not None:
            self._poll.unregister(former.socket.fileno())
            former.socket.close()
        if order == "watch":
            address, port = arguments
            watch = self._watches[bytes.fromhex(key)] = _Watch(bytes.fromhex(key), address, int(port))
            self._poll.register(watch.socket.fileno(), POLLIN)
            self._due_s = time.monotonic()


def main(arguments: list[str]) -> None:
    """Send pulses for as long as the parent lives; a signal that asks the parent to end is none of its business."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _Beat(int(arguments[0])).run()


if __name__ == "__main__":
    main(sys.argv[1:])
