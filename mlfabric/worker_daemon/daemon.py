"""The worker daemon's shell: session, data channel, the state machine between them. Decides nothing.

Runs in one event loop: in a thread beside the training code, or in a process of its own. Its coroutines are for that
loop; ``worker.py`` is the door for training threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mlfabric import clock, wire
from mlfabric.channels import Direction, TransferRecord, channel_of
from mlfabric.config import WorkerSettings
from mlfabric.errors import FabricClosedError
from mlfabric.fail_stop import Failed, FailStop, Tasks, described
from mlfabric.model.specs import Member, ModelSpec, Role
from mlfabric.protocol import (
    Initialise,
    Instruction,
    JobClaim,
    MemberEvent,
    MonitorAt,
    PeerLost,
    ReduceId,
    ReduceRequested,
    Replicate,
    Resume,
    RoundId,
    SetThreshold,
    StepsTimed,
    Welcome,
)
from mlfabric.shell.driving import Driver
from mlfabric.shell.reporting import TransferReporter
from mlfabric.shell.scheduler_link import SchedulerLink
from mlfabric.shell.session import SchedulerSession, SessionCallbacks
from mlfabric.telemetry import WorkerMetrics
from mlfabric.telemetry.spans import Tracer
from mlfabric.transfer.add_kernels import load as load_kernels
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.attempts import GradientGrowth
from mlfabric.worker_daemon.contributions import Contribution
from mlfabric.worker_daemon.data_attempts import GivenUpError, Growth, Parcel
from mlfabric.worker_daemon.observations import Observer, Settled, Transferred, nobody
from mlfabric.worker_daemon.reductions import Reductions
from mlfabric.worker_daemon.round_actions import ReduceAction
from mlfabric.worker_daemon.round_inbox import RoundInbox
from mlfabric.worker_daemon.server_calls import Listeners, ServerCalls
from mlfabric.worker_daemon.spans import RoundTransferred
from mlfabric.worker_daemon.state import DaemonState

__all__ = ["WorkerDaemon"]

log = logging.getLogger("mlfabric.worker")


class WorkerDaemon:
    """One worker's daemon.

    Args:
        settings: of its surroundings.
        spec: the model that the worker trains.
        initial: the image of the initial weights, kept until some worker's have arrived; None if it has none to give.
        metrics: counts what happens.
        job: what the worker says of its job; once it was admitted, it goes on with what is there.
        observer: told of finished transfers and settled updates, in the daemon's thread; it should be brief.
        inbox: where the results of rounds go if the worker applies them by itself.
        link: to the scheduler; None for that over the network.
        tracer: is shown what happens and what is done; None shows nobody.

    ``threshold`` is the last that the scheduler has set for steps (DropCompute); None before.
    ``calls`` are those of a worker whose model servers hold: pushes, gets, draws.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        spec: ModelSpec,
        initial: Parcel | None,
        metrics: WorkerMetrics,
        job: JobClaim,
        observer: Observer = nobody,
        inbox: RoundInbox | None = None,
        link: SchedulerLink | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.settings = settings
        self._see: Callable[[object], None] | None = tracer.see if tracer else None
        self._job = job
        self._observer = observer
        self.spec = spec
        self.welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._holds_initial = initial is not None
        self._server = spec.server
        self._metrics = metrics
        self._state = DaemonState(settings.name, spec.shards, spec.name, 0 if inbox is None else inbox.together)
        self._driver = Driver[act.DaemonEvent, act.Action](self._state, self._do, self._see)
        self._channel = channel_of(settings.tcp)
        tcp = settings.tcp
        self._reporter = TransferReporter(settings.name, settings.host, tcp.up_bps, tcp.down_bps, tcp.security)
        member = Member(
            name=settings.name,
            role=Role.WORKER,
            incarnation=clock.wall_ns(),
            host=settings.host,
            up_bps=settings.tcp.up_bps,
            down_bps=settings.tcp.down_bps,
        )
        listeners = Listeners(take_in=self._take_in, recorded=self._recorded, observe=self._observe)
        self.calls = ServerCalls(member, spec, initial, self._channel, metrics, listeners)
        self._reductions = Reductions(self._channel, settings.host, self._take_in, self._recorded_in_round, inbox)
        self._reduce_count = 0
        self.threshold: SetThreshold | None = None
        self._over: BaseException | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting = Tasks(self._driver.take_in)
        instructed = self._driver.failure.guarded(self._instructed)
        callbacks = SessionCallbacks(admitted=self._admitted, instructed=instructed)
        self._session = SchedulerSession(
            settings.scheduler, member, self._register, callbacks, settings.tcp.security, link
        )

    @property
    def failure(self) -> FailStop:
        """Why the daemon cannot go on, if so."""
        return self._driver.failure

    async def start(self) -> Welcome:
        """Join the fabric, waiting for the scheduler and a server if need be.

        Raises:
            RefusedError: the scheduler refuses this worker or its model.
        """
        if not self.spec.has_server:
            await asyncio.to_thread(load_kernels)
            address = await self._channel.listen(self._reductions.serve)
            self._session.member = replace(self._session.member, address=address)
            self._reductions.measure(self._channel.link_counter())
        session = asyncio.create_task(self._session.run())
        self._tasks = [session, self._waiting.spawn(self._reporter.run()), asyncio.create_task(self._fail_stop())]
        session.add_done_callback(self._session_ended)
        return await asyncio.shield(self.welcome)

    def _session_ended(self, session: asyncio.Task[None]) -> None:
        error = None if session.cancelled() else session.exception()
        self._end(error or FabricClosedError("this worker has left the fabric; register again for more"))

    async def _fail_stop(self) -> None:
        """End with the reason if something that was decided cannot be carried out: calls fail, the others are told."""
        error = await self.failure.wait()
        closed = FabricClosedError(f"{self.settings.name} cannot go on: {described(error)}")
        closed.__cause__ = error
        log.error("%s", closed)
        self._end(closed)
        self.calls.transfers.stop()
        await self._session.leave(described(error), failed=True)

    def _end(self, error: BaseException) -> None:
        """Take in nothing more, and fail what is open; the first reason counts."""
        self._over = self._over or error
        self._driver.close()
        if not self.welcome.done():
            self.welcome.set_exception(self._over)
            self.welcome.exception()  # seen: nobody may wait for it any more
        self.calls.end(self._over)
        self._reductions.fail_all(self._over)

    async def drain(self, drain_s: float) -> None:
        """Wait for open pushes and AllReduces, for at most ``drain_s`` each."""
        await self.calls.drain(drain_s)
        await self._reductions.drain(drain_s)

    async def close(self, detail: str, drain_s: float = 0.0) -> None:
        """Drain, say good-bye, stop."""
        await self.drain(drain_s)
        await self._session.leave(detail)
        await self.calls.close()
        await self._reductions.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._waiting.close()
        await self._reporter.close()
        await self._channel.close()
        self._driver.close()

    # Rounds; what is asked of servers, ``calls`` do

    def applied(self, version: int) -> None:
        """Say that all rounds up to this version are applied."""
        self._reductions.applied(version)

    def withdraw(self, growth: GradientGrowth, reason: str) -> None:
        """Have a gradient be in no round; see :meth:`Reductions.withdraw`."""
        self._reductions.withdraw(growth, reason)

    def offer(self, contribution: Contribution) -> asyncio.Future[Any]:
        """Offer something for a round; see :meth:`Reductions.reduce`."""
        if (handle := self.calls.handle()).done():
            return handle
        reduce = ReduceId(self.settings.name, self._session.member.incarnation, self._reduce_count)
        self._reduce_count += 1
        buffers = contribution.buffers
        request = ReduceRequested(
            reduce=reduce,
            model=self.spec.name,
            size_bytes=0 if buffers.given is None else len(buffers.given),
            dtype=buffers.dtype,
            op=contribution.op,
            together=contribution.together,
            computed_from=contribution.computed_from,
            updates=contribution.updates,
            weight=contribution.weight,
            rates=contribution.rates,
            grows=buffers.growth is not None,
            for_all=contribution.for_all,
        )
        return self._reductions.reduce(request, buffers)

    # The session

    async def _register(self, stub: fabric_pb2_grpc.FabricServiceAsyncStub) -> fabric_pb2.Admission:
        claim = self._job
        request = fabric_pb2.RegisterAsWorkerRequest(
            member=wire.to_member(self._session.member),
            model=wire.to_spec(replace(self.spec, server=self._server)),
            holds_initial=self._holds_initial,
            job=wire.to_claim(replace(claim, resume=Resume.GO_ON) if self.welcome.done() else claim),
        )
        return (await stub.RegisterAsWorker(request)).admission

    def _admitted(self, welcome: Welcome) -> list[MemberEvent]:
        self._reporter.set_monitor(welcome.monitor_address, welcome.monitor_token)
        # A scheduler that begins anew must not give the model to another server than the one that holds it.
        self._server = welcome.server
        if not self.welcome.done():
            self.welcome.set_result(welcome)
        if welcome.lost:
            self.calls.transfers.break_off_all()
        if welcome.initialise:
            self.calls.bring_initial()
        began = act.TermBegan(term=welcome.term, clock=welcome.clock, server_epoch=welcome.server_epoch)
        self._take_in(began)
        return [self._state.holds(), *self._state.drawing.open()]

    def steps_timed(self, micro_batches: int, computed_ns: Sequence[int], rest_ns: Sequence[int]) -> None:
        """Say what steps have taken, or that the threshold fits no more; see :class:`mlfabric.protocol.StepsTimed`."""
        self._session.send(
            StepsTimed(
                worker=self.settings.name,
                model=self.spec.name,
                micro_batches=micro_batches,
                computed_ns=tuple(computed_ns),
                rest_ns=tuple(rest_ns),
            )
        )

    def _instructed(self, instruction: Instruction) -> None:
        match instruction:
            case SetThreshold():
                log.info("threshold: %s", instruction.reason)
                self.threshold = instruction
            case MonitorAt():
                self._reporter.set_monitor(instruction.address, instruction.token)
            case PeerLost():
                self.calls.transfers.break_off(instruction.address)
            case Initialise():
                self.calls.bring_initial()
                self._take_in(instruction)
            case Replicate() if (growth := self.calls.growth(instruction.transfer)) is not None:
                self._waiting.spawn(self._once_complete(instruction, growth))
            case _:
                self._take_in(instruction)  # type: ignore[arg-type]

    async def _once_complete(self, order: Replicate, growth: Growth) -> None:
        """Let the replica have an update when there is all of it; one that is given up is dropped everywhere."""
        with contextlib.suppress(GivenUpError):
            await growth.progress.reached(growth.progress.size_bytes)
            self._take_in(order)

    # Events in, actions out

    def _take_in(self, event: act.DaemonEvent | Failed) -> None:
        if self._over is not None:  # nobody waits any more for what a transfer under way still brings
            return
        self._driver.take_in(event)
        self._metrics.in_flight(self.settings.name, self.calls.in_flight)

    def _do(self, action: act.Action) -> None:
        if isinstance(action, act.Request):
            self._session.send(action.event)
        elif isinstance(action, ReduceAction):
            self._reductions.do(action)
        else:
            self.calls.do(action)

    def _observe(self, seen: Transferred | Settled) -> None:
        if self._see is not None:
            self._see(seen)
        with self.failure.guard("the observer"):
            self._observer(seen)

    def _recorded_in_round(self, record: TransferRecord, peer: str, round_id: RoundId | None = None) -> None:
        self._metrics.transfer(record, peer)
        if self._see is not None and round_id is not None:
            self._see(RoundTransferred(round=round_id, peer=peer, record=record))

    def _recorded(self, record: TransferRecord, peer: str) -> None:
        self._metrics.transfer(record, peer)
        if record.direction is Direction.IN:
            self._reporter.record(record, peer, self.settings.host)
        elif record.busy_bytes:
            self._reporter.record(record, self.settings.host, to_peer=peer)
