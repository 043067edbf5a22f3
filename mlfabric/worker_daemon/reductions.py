"""The rounds of a worker daemon, carried out: handles, one attempt at a time. Decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from mlfabric import clock
from mlfabric.channels import Channel, Connection, TransferRecord
from mlfabric.channels.interfaces import LinkCounter
from mlfabric.errors import FabricError, RefusedError, TransferError
from mlfabric.fail_stop import Failed, Tasks
from mlfabric.model.ranges import count
from mlfabric.protocol import Reduce, ReduceId, ReduceRequested, RoundId
from mlfabric.telemetry.log_lines import about
from mlfabric.worker_daemon import round_actions as act
from mlfabric.worker_daemon.attempts import Attempt, GradientGrowth, ReduceBuffers, padded_bytes
from mlfabric.worker_daemon.kept_results import KeptResult, rest_of
from mlfabric.worker_daemon.link_meter import LinkMeter
from mlfabric.worker_daemon.link_peaks import least_bytes
from mlfabric.worker_daemon.probes import Probes
from mlfabric.worker_daemon.round_inbox import RoundInbox, RoundResult
from mlfabric.worker_daemon.round_lines import RoundLines
from mlfabric.worker_daemon.round_pace import Pace
from mlfabric.worker_daemon.state_transfers import StateTransfers

__all__ = ["Reductions"]

log = logging.getLogger("mlfabric.worker")

WHOLE_LOOK_S = 0.02
LATE = "its backward takes longer than usual"


class Recorded(Protocol):
    """Is told of finished transfers."""

    def __call__(self, record: TransferRecord, peer: str, round_id: RoundId | None = None) -> None:
        """Take in one."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A tensor that is to be summed; the handle gives how many contributed, or what else became of it."""

    buffers: ReduceBuffers
    handle: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Made:
    """The last attempt that was begun, and what was here of its result before."""

    plan: Reduce
    attempt: Attempt
    kept: KeptResult | None


class Reductions:
    """Every tensor whose round is not over, and the results that come besides.

    Args:
        channel: the daemon's data channel.
        host: this worker's host.
        take_in: where events for the state machine go.
        recorded: told of every finished transfer, its other end, and the round that it was for, if any.
        inbox: where results go that the worker applies by itself; None if each goes to whom it was asked for.
    """

    def __init__(
        self,
        channel: Channel,
        host: str,
        take_in: Callable[[act.ReduceEvent | Failed], None],
        recorded: Recorded,
        inbox: RoundInbox | None,
    ) -> None:
        self._lines = RoundLines(channel)
        self._probes = Probes(self._lines, take_in)
        self._meter = LinkMeter(None)
        self._host = host
        self._take_in = take_in
        self._recorded = recorded
        self._inbox = inbox
        self._segments = 1 if inbox is None else inbox.segments
        self._states = None if inbox is None else StateTransfers(self._lines, inbox, host, take_in, recorded)
        self._open: dict[ReduceId, _Open] = {}
        self._received: ReduceBuffers | None = None
        self._round: RoundId | None = None
        self._keeps = False
        self._made: _Made | None = None
        self._kept: KeptResult | None = None
        self._tasks = Tasks(take_in)
        self._task: asyncio.Task[None] | None = None

    def measure(self, counter: LinkCounter | None) -> None:
        """Measure the link that this counts from now on."""
        self._meter = LinkMeter(counter)

    async def serve(self, connection: Connection) -> None:
        """Serve a data connection that another worker opened."""
        await self._lines.serve(connection)

    def applied(self, version: int) -> None:
        """Note that the training thread has applied all rounds up to this version."""
        if self._states is not None:
            self._states.applied(version)

    def reduce(self, request: ReduceRequested, buffers: ReduceBuffers) -> asyncio.Future[Any]:
        """Ask for a tensor's sum.

        Returns:
            Gives how many contributed once the result is in its buffer; with an inbox the result that went there, or
            the ``PassOver`` that says what became of the tensor.
        """
        loop = asyncio.get_running_loop()
        handle: asyncio.Future[Any] = loop.create_future()
        self._open[request.reduce] = _Open(buffers, handle)
        self._take_in(act.ReduceCalled(request=request))
        if buffers.growth is not None:
            loop.call_later(buffers.growth.patience_s, self._late, buffers.growth)
        return handle

    def withdraw(self, growth: GradientGrowth, reason: str) -> None:
        """Have a gradient that was offered while it is made be in no round; without effect once it has its outcome."""
        for reduce, opened in self._open.items():
            if opened.buffers.growth is growth and not growth.progress.is_complete:
                self._take_in(act.ReduceWithdrawn(reduce=reduce, reason=reason))
                return

    def _late(self, growth: GradientGrowth) -> None:
        """Wait no longer for a gradient."""
        if not growth.progress.is_complete:
            growth.is_late = True
            self.withdraw(growth, LATE)

    def do(self, action: act.ReduceAction) -> None:
        """Carry out an action."""
        match action:
            case act.StartAttempt():
                self._start(action.plan)
            case act.StopAttempt():
                self._lines.drop_idle()  # their other ends may still be at what is void, and will close them
                if self._round == action.round and self._task is not None:
                    self._keeps = action.keep
                    if action.keep and self._task.done():
                        self._keep()
                    self._task.cancel()
            case act.StartProbes():
                self._probes.start(action.plan)
            case act.FinishReduce():
                self._finish(action)
            case act.PassOver():
                passed = self._open.pop(action.reduce)
                if not passed.handle.done():
                    passed.handle.set_result(action)
            case act.FailReduce():
                failed = self._open.pop(action.reduce)
                if not failed.handle.done():
                    failed.handle.set_exception(RefusedError(f"AllReduce {action.reduce}: {action.reason}"))
            case _:
                self._do_state(action)

    def _do_state(self, action: act.KeepState | act.StartFetchState | act.StartGiveState) -> None:
        assert self._states is not None, "only who applies rounds has state"
        match action:
            case act.KeepState():
                self._states.keep(action.version)
            case act.StartFetchState():
                self._states.fetch(action.plan)
            case act.StartGiveState():
                self._states.give(action.plan)

    def _finish(self, action: act.FinishReduce) -> None:
        """Hand over the result of a settled round."""
        plan = action.plan
        log.debug("%s is here, as version %s", plan.round, plan.version, extra=about(plan))
        self._made = self._kept = None
        outcome: RoundResult | int = action.workers
        done = None if plan.reduce is None else self._open.pop(plan.reduce)
        if self._inbox is not None:
            outcome = self._settled(action, self._received if done is None else done.buffers)
        if done is not None and not done.handle.done():
            done.handle.set_result(outcome)

    def _settled(self, action: act.FinishReduce, buffers: ReduceBuffers | None) -> RoundResult:
        """Put a result into the inbox."""
        assert self._inbox is not None, "only who applies rounds has it"
        assert buffers is not None, "it has come into them"
        if buffers is self._received:
            self._received = None
        plan = action.plan
        result = RoundResult(
            version=plan.version,
            workers=action.workers,
            weight=plan.weight,
            rates=plan.rates,
            total=buffers.result,
            ranges=() if plan.rest else tuple((part.start, part.end) for part in plan.parts),
        )
        self._inbox.settled(result)
        return result

    def _start(self, plan: Reduce) -> None:
        buffers = self._buffers_for(plan)
        self._round, self._keeps = plan.round, False
        self._task = self._tasks.spawn(self._attempt(plan, buffers, self._task))

    def _buffers_for(self, plan: Reduce) -> ReduceBuffers:
        """Return what is summed and where the result goes; memory of the inbox if this worker only receives it."""
        if plan.reduce is not None:
            return self._open[plan.reduce].buffers
        assert self._inbox is not None, "only who applies rounds receives what it has not asked for"
        if self._received is None:
            result = self._inbox.buffer(padded_bytes(plan.size_bytes) if plan.parts else 0)
            self._received = ReduceBuffers(given=None, result=result, dtype=plan.dtype)
        return self._received

    async def _attempt(self, plan: Reduce, buffers: ReduceBuffers, before: asyncio.Task[None] | None) -> None:
        """Make an attempt once nothing writes to the buffers any more."""
        if before is not None:
            await asyncio.wait((before,))
        watch: asyncio.Task[None] | None = None
        try:
            made = self._made = await self._prepared(plan, buffers)
            if plan.planned_ns:
                watch = self._tasks.spawn(self._watch(plan, made.attempt, buffers.growth))
            async with self._meter.watching():
                await made.attempt.run()
            if made.kept is not None:
                made.kept.take(made.attempt, plan.rest)
                buffers.result[: plan.size_bytes] = made.kept.total
        except FabricError as error:
            self._lines.drop_idle()
            log.info("%s: %s", plan.round, error)
            self._take_in(act.AttemptEnded(round=plan.round, detail=str(error)))
        except asyncio.CancelledError:
            self._lines.drop_idle()  # some transfers have ended between the order to stop and its effect
            raise
        else:
            up_bps, down_bps = self._meter.peaks_bps(least_bytes(count(plan.rest) or len(buffers.result)))
            self._take_in(act.AttemptEnded(round=plan.round, up_bps=up_bps, down_bps=down_bps))
        finally:
            if watch is not None:
                watch.cancel()
            if self._keeps and self._round == plan.round:
                self._keep()

    async def _prepared(self, plan: Reduce, buffers: ReduceBuffers) -> _Made:
        """Make ready for an attempt at all of the tensor, or at what is left of it."""
        kept, self._kept, self._made = self._kept, None, None
        if plan.rest:
            if kept is None or kept.round != plan.after or not kept.has_all_but(plan.rest):
                raise TransferError(f"what is kept of {plan.after} is not here")
            if buffers.growth is not None:
                await buffers.growth.progress.reached(plan.size_bytes)
            buffers = rest_of(buffers, plan.rest)
        recorded, size_bytes = partial(self._recorded, round_id=plan.round), count(plan.rest) or plan.size_bytes
        of_rest = replace(plan, size_bytes=size_bytes)
        attempt = Attempt(of_rest, buffers, self._lines, self._host, recorded, self._segments)
        return _Made(plan, attempt, kept if plan.rest else None)

    def _keep(self) -> None:
        """Keep what is here of the result of the attempt that was stopped, and say what that is."""
        if (made := self._made) is None or made.plan.round != self._round:
            return
        self._made, self._kept = None, made.kept or KeptResult(made.plan.size_bytes)
        self._kept.round = made.plan.round
        self._kept.take(made.attempt, made.plan.rest)
        self._take_in(act.AttemptKept(plan=made.plan, kept=self._kept.kept))

    async def _watch(self, plan: Reduce, attempt: Attempt, growth: GradientGrowth | None) -> None:
        """Say so while an attempt goes on slowly, once this worker's gradient is whole, and others' nearly so."""
        while growth is not None and not growth.progress.is_complete:
            await asyncio.sleep(WHOLE_LOOK_S)
        pace = Pace(plan.planned_ns, clock.monotonic_ns())
        while True:
            await asyncio.sleep(pace.look_ns / 1e9)
            flows = growth is None and attempt.flows
            done = attempt.share_done
            if left_ns := pace.left_ns(done, clock.monotonic_ns(), flows=flows):
                usual_ns = pace.usual_ns(done)
                self._take_in(act.AttemptSlow(round=plan.round, left_ns=left_ns, usual_ns=usual_ns))

    def fail_all(self, error: BaseException) -> None:
        """Fail every handle: nothing more will come."""
        if self._inbox is not None:
            self._inbox.end(error)
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
        if self._states is not None:
            await self._states.close()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((self._task,))
