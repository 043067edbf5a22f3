"""Sends probes to other workers, and times those that come. Decides nothing.

A probe is a frame of kind PAYLOAD with zeros behind it, which are thrown away; when it has come, an OUTCOME frame goes
back. Its first half does not count: it goes at once where a token bucket has saved something up, and TCP begins
slowly. How much has come is asked of the kernel together with the time, so it does not matter that a busy process reads
late.

Over a slow link a probe takes much longer than its slot. It is cut off then, and its rate told from what has come in
the second half of that time: the rest would come too late to plan the next round, and would hold up the next probe, and
the word that there is a next round. Both ends cut it off: what its receiver says comes late, if its way up is slow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mlfabric import clock
from mlfabric.channels import Connection, Frame, FrameKind
from mlfabric.errors import FabricError, TransferError
from mlfabric.fail_stop import Failed, Tasks
from mlfabric.protocol import Peer, Probe
from mlfabric.worker_daemon import round_actions as act
from mlfabric.worker_daemon.round_lines import RoundLines

__all__ = ["Look", "Probes", "cut_off_bps", "rate_bps"]

_PIECES = 24
_LEFT_OUT = 2
"""One part of so many does not count."""
_CUT_SHARE = 0.9
"""A probe that has not come after this part of its slot is cut off: the next one is to have the links for itself."""
_ENOUGH = 4
"""One part of so many must have been seen to come."""

log = logging.getLogger("mlfabric.worker")


class Look(NamedTuple):
    """How much of a probe had come at an instant."""

    at_ns: int
    came_bytes: int


class Probes:
    """The probes of one worker; those of the last request only.

    Args:
        lines: connections to and from the other workers.
        take_in: is told of every probe that came, and of a fault of our own.
    """

    def __init__(self, lines: RoundLines, take_in: Callable[[act.ProbeEnded | Failed], None]) -> None:
        self._lines = lines
        self._take_in = take_in
        self._tasks = Tasks(take_in)

    def start(self, plan: Probe) -> None:
        """Send and expect what a plan says; what is left of an earlier one is given up."""
        self.cancel()
        self._tasks.spawn(self._send_all(plan))
        for peer in plan.sources:
            self._tasks.spawn(self._time(plan, peer))

    def cancel(self) -> None:
        """Give up what is under way."""
        self._tasks.cancel()

    async def close(self) -> None:
        """Give up what is under way, and wait until nothing of it is left."""
        await self._tasks.close()

    async def _send_all(self, plan: Probe) -> None:
        """Send to one after the other, all workers at the same times, so that nobody is sent two at once."""
        payload = memoryview(bytes(plan.size_bytes))
        async with asyncio.TaskGroup() as group:
            for peer in plan.targets:
                group.create_task(self._send(peer, payload, plan.slot_ns))
                await asyncio.sleep(plan.slot_ns / 1e9)

    async def _send(self, peer: Peer, payload: memoryview, slot_ns: int) -> None:
        """Send one probe, and wait until it has come; what is left of it in a slow link's queue is to be little."""
        try:
            async with asyncio.timeout(slot_ns * _CUT_SHARE / 1e9), self._lines.fresh_line(peer.address) as connection:
                frame = Frame(kind=FrameKind.PAYLOAD, ticket=peer.ticket, length=len(payload))
                connection.hold_back(len(payload) * 8 * 10**9 // slot_ns)
                await connection.send(frame, (payload,))
                answer = await connection.receive()
                if answer.kind is not FrameKind.OUTCOME:
                    raise TransferError(f"a {answer.kind.name} frame came from {connection.peer}; wanted OUTCOME")
        except TimeoutError:
            log.debug("probe to %s: its slot is over", peer.worker)
        except FabricError as error:
            log.debug("probe to %s: %s", peer.worker, error)

    async def _time(self, plan: Probe, peer: Peer) -> None:
        """Receive one probe; say how fast it comes."""
        try:
            async with self._lines.visit(peer.ticket, FrameKind.PAYLOAD) as visit:
                if visit.frame.length != plan.size_bytes:
                    raise TransferError(f"a probe of {visit.frame.length} bytes; wanted {plan.size_bytes}")
                bps, is_whole = await _receive(visit.connection, plan)
                if bps:
                    self._take_in(act.ProbeEnded(model=plan.model, round=plan.round, source=peer.worker, bps=bps))
                if not is_whole:
                    raise TransferError("its slot is over")
                await visit.connection.send(Frame(kind=FrameKind.OUTCOME, ticket=peer.ticket))
        except FabricError as error:
            log.debug("probe from %s: %s", peer.worker, error)


async def _receive(connection: Connection, plan: Probe) -> tuple[int, bool]:
    """Receive a probe, at most until its slot is over, and throw it away; return its rate, and whether all of it came.

    One that is cut off leaves the connection broken: what is still to come of it is not sent any more.
    """
    pieces = _cut(memoryview(bytearray(plan.size_bytes)))
    looks = [Look(clock.monotonic_ns(), connection.waiting_bytes)]
    read_bytes = 0

    def look() -> None:
        nonlocal read_bytes
        read_bytes += len(pieces[len(looks) - 1])
        looks.append(Look(clock.monotonic_ns(), read_bytes + connection.waiting_bytes))

    time_ns = round(plan.slot_ns * _CUT_SHARE)
    try:
        async with asyncio.timeout(time_ns / 1e9):
            await connection.receive_through(pieces, look)
    except TimeoutError:
        return cut_off_bps(looks, time_ns), False
    except TransferError:
        took_ns = clock.monotonic_ns() - looks[0].at_ns
        if took_ns * _LEFT_OUT < time_ns:
            raise
        return cut_off_bps(looks, took_ns), False
    return rate_bps(looks, plan.size_bytes), True


def rate_bps(looks: Sequence[Look], size_bytes: int) -> int:
    """Return the rate at which a probe came, without its first half; 0 if too little of it was seen to come.

    Args:
        looks: when how much of it had come; once all has, that says nothing of when it came.
        size_bytes: of the probe.
    """
    seen = [look for look in looks if size_bytes <= look.came_bytes * _LEFT_OUT and look.came_bytes < size_bytes]
    if len(seen) < 2:
        return 0
    came_bytes, took_ns = seen[-1].came_bytes - seen[0].came_bytes, seen[-1].at_ns - seen[0].at_ns
    return came_bytes * 8 * 10**9 // took_ns if took_ns > 0 and came_bytes * _ENOUGH >= size_bytes else 0


def cut_off_bps(looks: Sequence[Look], time_ns: int) -> int:
    """Return the rate at which a probe came that was cut off, without the first half of its time; 0 if nothing did.

    Args:
        looks: when how much of it had come.
        time_ns: how long it had, from the first look on.
    """
    seen = [look for look in looks if (look.at_ns - looks[0].at_ns) * _LEFT_OUT >= time_ns]
    before = looks[len(looks) - len(seen) - 1]
    took_ns = looks[-1].at_ns - before.at_ns
    return (looks[-1].came_bytes - before.came_bytes) * 8 * 10**9 // took_ns if took_ns > 0 else 0


def _cut(buffer: memoryview) -> list[memoryview]:
    each = -(-len(buffer) // _PIECES)
    return [buffer[start : start + each] for start in range(0, len(buffer), each)]
