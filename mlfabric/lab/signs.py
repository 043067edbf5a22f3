"""Signs of life in memory: real datagrams from beside each process, which go on while it is stopped."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import grpc

from mlfabric.lab.calls import Calls
from mlfabric.lab.links import NATURE, Links
from mlfabric.lab.loop import VirtualLoop
from mlfabric.lab.processes import PROCESS, Process
from mlfabric.pulse import Watch, beat
from mlfabric.security import Security

__all__ = ["MemoryDatagrams", "MemoryLink"]

ENDS_AFTER_S = 0.01


class MemoryDatagrams:
    """Where a scheduler hears signs of life.

    Args:
        loop: of the scheduler.
        links: the network.
        process: the scheduler's.
        port: of its host.
    """

    def __init__(self, loop: VirtualLoop, links: Links, process: Process, port: int) -> None:
        self.process = process
        self._loop, self._links, self._port = loop, links, port
        self._came: deque[tuple[bytes, Any]] = deque()

    def fileno(self) -> int:
        """Return no number: the loop knows the object itself."""
        return -1

    def getsockname(self) -> tuple[str, int]:
        """Return host and port."""
        return self.process.host, self._port

    def recvfrom(self, most_bytes: int) -> tuple[bytes, Any]:
        """Return the next datagram and who sent it."""
        if not self._came:
            raise BlockingIOError("nothing more has come")
        return self._came.popleft()

    def sendto(self, datagram: bytes, address: Any) -> int:
        """Answer the sender of a datagram."""
        sender: _Beat = address
        links = self._links
        if not links.is_cut(self.process.host, sender.host):
            links.loop.call_later(links.draw_latency_s(), sender.answered, datagram, context=NATURE)
        return len(datagram)

    def close(self) -> None:
        """Hear nothing more."""
        self._came.clear()

    def arrive(self, datagram: bytes, sender: _Beat) -> None:
        """Take a datagram from the network."""
        if not self.process.is_dead:
            self._came.append((datagram, sender))
            self.process.call(self._loop.readable, self)


class _Beat:
    """Sends signs of life of one process; see ``pulse/beat.py``, whose datagrams these are."""

    def __init__(self, link: MemoryLink, wanted: Watch) -> None:
        self._link, self._wanted = link, wanted
        self._timer: asyncio.TimerHandle | None = None
        self._send()

    @property
    def host(self) -> str:
        """Where it is sent from."""
        return self._link.process.host

    def _send(self) -> None:
        process, links = self._link.process, self._link.calls.links
        stopped_s = links.loop.time() - process.stopped_s if process.is_stopped else 0.0
        datagram = beat.pulse(
            self._wanted.key, round(1e9 * links.loop.time()), round(1000 * stopped_s), process.is_dead
        )
        found = self._link.datagrams.get((self._wanted.address, self._wanted.port))
        if found is not None and not links.is_cut(self.host, self._wanted.address):
            links.loop.call_later(links.draw_latency_s(), found.arrive, datagram, self, context=NATURE)
        if not process.is_dead:
            self._timer = links.loop.call_later(beat.PERIOD_S, self._send, context=NATURE)

    def answered(self, datagram: bytes) -> None:
        """Take the scheduler's answer: the member is to join again."""
        sent_ns = beat.open_recall(self._wanted.key, datagram)
        if sent_ns is not None:
            self._link.process.call(self._wanted.recalled, sent_ns)

    def end(self, after_s: float = 0.0) -> None:
        """Send nothing more, but that the process has ended if it has."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._link.process.is_dead:
            self._link.calls.links.loop.call_later(after_s, self._send, context=NATURE)


class MemoryLink:
    """How the present process reaches its scheduler: a ``shell.scheduler_link.SchedulerLink``.

    Args:
        calls: the network.
        datagrams: by host and port, where signs of life are heard.
    """

    def __init__(self, calls: Calls, datagrams: dict[tuple[str, int], MemoryDatagrams]) -> None:
        process = PROCESS.get()
        assert process is not None, "members run in processes"
        self.calls, self.process, self.datagrams = calls, process, datagrams
        self._beats: dict[bytes, _Beat] = {}

    def dial(self, address: str, security: Security) -> grpc.aio.Channel:
        """Return a channel to the scheduler."""
        return self.calls.channel(address)  # type: ignore[no-any-return]

    async def fault(self, address: str, security: Security) -> str:
        """Know of no fault: there is no TLS."""
        return ""

    def watch(self, wanted: Watch) -> None:
        """Have signs of life sent, instead of any others with the same key."""
        self.forget(wanted.key)
        self._beats[wanted.key] = _Beat(self, wanted)

    def forget(self, key: bytes) -> None:
        """Have no more signs of life sent with this key."""
        former = self._beats.pop(key, None)
        if former is not None:
            former.end()

    def died(self) -> None:
        """Tell that the process has ended."""
        for each in self._beats.values():
            each.end(ENDS_AFTER_S)
