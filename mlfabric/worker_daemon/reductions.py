"""The AllReduces of a worker daemon, carried out: handles, one attempt at a time. Decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from mlfabric.channels import Channel, Connection, TransferRecord
from mlfabric.errors import FabricError, RefusedError
from mlfabric.fail_stop import Failed, Tasks
from mlfabric.protocol import Reduce, ReduceId, ReduceRequested, RoundId
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.attempts import Attempt, ReduceBuffers
from mlfabric.worker_daemon.link_meter import LinkMeter
from mlfabric.worker_daemon.link_peaks import least_bytes
from mlfabric.worker_daemon.probes import Probes
from mlfabric.worker_daemon.round_lines import RoundLines

__all__ = ["Reductions"]

log = logging.getLogger("mlfabric.worker")


@dataclass(frozen=True, slots=True)
class _Open:
    buffers: ReduceBuffers
    handle: asyncio.Future[int]


class Reductions:
    """Every AllReduce without an outcome.

    Args:
        channel: the daemon's data channel.
        host: this worker's host.
        take_in: where events for the state machine go.
        recorded: told of every finished transfer and its other end.
    """

    def __init__(
        self,
        channel: Channel,
        host: str,
        take_in: Callable[[act.ReduceEvent | Failed], None],
        recorded: Callable[[TransferRecord, str], None],
    ) -> None:
        self._lines = RoundLines(channel)
        self._probes = Probes(self._lines, take_in)
        self._meter = LinkMeter("")
        self._host = host
        self._take_in = take_in
        self._recorded = recorded
        self._open: dict[ReduceId, _Open] = {}
        self._round: RoundId | None = None
        self._tasks = Tasks(take_in)
        self._task: asyncio.Task[None] | None = None

    def reached_at(self, address: str) -> None:
        """Measure the link of the interface that has this address from now on."""
        self._meter = LinkMeter(address)

    async def serve(self, connection: Connection) -> None:
        """Serve a data connection that another worker opened."""
        await self._lines.serve(connection)

    def reduce(self, request: ReduceRequested, buffers: ReduceBuffers) -> asyncio.Future[int]:
        """Begin an AllReduce; the future gives how many took part once the result is in its buffer."""
        handle: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._open[request.reduce] = _Open(buffers, handle)
        self._take_in(act.ReduceCalled(request=request))
        return handle

    def do(self, action: act.ReduceAction) -> None:
        """Carry out an action."""
        match action:
            case act.StartAttempt():
                self._start(action.plan)
            case act.StopAttempt():
                if self._round == action.round and self._task is not None:
                    self._task.cancel()
            case act.StartProbes():
                self._probes.start(action.plan)
            case act.FinishReduce():
                done = self._open.pop(action.reduce)
                if not done.handle.done():
                    done.handle.set_result(action.workers)
            case act.FailReduce():
                failed = self._open.pop(action.reduce)
                if not failed.handle.done():
                    failed.handle.set_exception(RefusedError(f"AllReduce {action.reduce}: {action.reason}"))

    def _start(self, plan: Reduce) -> None:
        buffers = self._open[plan.reduce].buffers
        self._round = plan.round
        self._task = self._tasks.spawn(self._attempt(plan, buffers, self._task))

    async def _attempt(self, plan: Reduce, buffers: ReduceBuffers, before: asyncio.Task[None] | None) -> None:
        """Make an attempt once nothing writes to the buffers any more."""
        if before is not None:
            await asyncio.wait((before,))
        try:
            async with self._meter.watching():
                await Attempt(plan, buffers, self._lines, self._host, self._recorded).run()
        except FabricError as error:
            log.info("%s: %s", plan.round, error)
            self._take_in(act.AttemptEnded(round=plan.round, detail=str(error)))
        else:
            up_bps, down_bps = self._meter.peaks_bps(least_bytes(len(buffers.result)))
            self._take_in(act.AttemptEnded(round=plan.round, up_bps=up_bps, down_bps=down_bps))

    def fail_all(self, error: BaseException) -> None:
        """Fail every handle: nothing more will come."""
        if self._task is not None:
            self._task.cancel()
        for opened in self._open.values():
            if not opened.handle.done():
                opened.handle.set_exception(error)
                opened.handle.exception()  # seen: nobody may wait for it any more
        self._open.clear()

    async def drain(self, timeout_s: float) -> None:
        """Wait until every AllReduce has its outcome, but not for longer than this."""
        handles = [opened.handle for opened in self._open.values()]
        if handles:
            await asyncio.wait(handles, timeout=timeout_s)

    async def close(self) -> None:
        """End the attempt under way."""
        await self._probes.close()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((self._task,))
