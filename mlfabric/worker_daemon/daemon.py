"""The worker daemon's shell: session, data channel, the state machine between them. Decides nothing.

Runs in one event loop: in a thread beside the training code, or in a process of its own. Its coroutines are for that
loop; ``worker.py`` is the door for training threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from typing import Any

from mlfabric import clock, wire
from mlfabric.channels import Direction, TransferRecord, channel_of
from mlfabric.config import WorkerSettings
from mlfabric.errors import FabricClosedError, FabricError, UsageError
from mlfabric.fail_stop import Failed, FailStop, Tasks, described
from mlfabric.model.samples import Samples
from mlfabric.model.specs import Member, ModelSpec, Role
from mlfabric.protocol import (
    Committed,
    Dropped,
    DropReason,
    Fetch,
    GetId,
    GetRequested,
    Initialise,
    Instruction,
    JobClaim,
    Lost,
    MemberEvent,
    ModelVersion,
    MonitorAt,
    Outcome,
    PeerLost,
    PushRequested,
    ReduceId,
    ReduceOp,
    ReduceRequested,
    Replicate,
    Resume,
    SamplesGranted,
    SamplesWanted,
    TransferId,
    UpdateId,
    UpdateKind,
    Welcome,
)
from mlfabric.shell.driving import Driver
from mlfabric.shell.reporting import TransferReporter
from mlfabric.shell.scheduler_link import SchedulerLink
from mlfabric.shell.session import SchedulerSession, SessionCallbacks
from mlfabric.telemetry import WorkerMetrics
from mlfabric.transfer.add_kernels import load as load_kernels
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.attempts import GradientGrowth, ReduceBuffers
from mlfabric.worker_daemon.data_attempts import GivenUpError, Growth, Parcel, Transfers
from mlfabric.worker_daemon.kept_bytes import Kept
from mlfabric.worker_daemon.model_cuts import Shards
from mlfabric.worker_daemon.observations import Observer, Settled, Transferred, nobody
from mlfabric.worker_daemon.reductions import Reductions
from mlfabric.worker_daemon.round_inbox import RoundInbox
from mlfabric.worker_daemon.state import DaemonState

__all__ = ["WorkerDaemon"]

log = logging.getLogger("mlfabric.worker")


@dataclass(slots=True)
class _OpenPush:
    """A push; ``parts`` are what travels of it, shard by shard."""

    parcel: Parcel
    parts: tuple[Parcel, ...]
    handle: asyncio.Future[Outcome]
    since_s: float


@dataclass(slots=True)
class _OpenGet:
    """A get; ``parts`` are the ranges of its buffer that the shards go into."""

    parts: tuple[tuple[memoryview, ...], ...]
    handle: asyncio.Future[ModelVersion]
    since_s: float


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
    ) -> None:
        self.settings = settings
        self._job = job
        self._observer = observer
        self.spec = spec
        self.welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._initial = initial
        self._server = spec.server
        self._shards = Shards(spec)
        self._metrics = metrics
        self._state = DaemonState(settings.name, spec.shards, spec.name, 0 if inbox is None else inbox.together)
        self._driver = Driver[act.DaemonEvent, act.Action](self._state, self._do)
        self._channel = channel_of(settings.tcp)
        tcp = settings.tcp
        self._reporter = TransferReporter(settings.name, settings.host, tcp.up_bps, tcp.down_bps, tcp.security)
        self._transfers = Transfers(self._channel, settings.host, self._take_in, self._recorded, self._observe)
        self._kept = Kept(
            spec, self._channel, settings.host, lambda u: self._part(u).pieces, self._take_in, self._recorded
        )
        self._reductions = Reductions(self._channel, settings.host, self._take_in, self._metrics.transfer, inbox)
        self._pushes: dict[UpdateId, _OpenPush] = {}
        self._gets: dict[GetId, _OpenGet] = {}
        self._updates = self._get_count = self._reduce_count = 0
        self._draws = 0
        self._pushed: UpdateId | None = None
        self._draw: asyncio.Future[SamplesGranted] | None = None
        self._over: BaseException | None = None
        self._incarnation = clock.wall_ns()
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting = Tasks(self._driver.take_in)
        member = Member(
            name=settings.name,
            role=Role.WORKER,
            incarnation=self._incarnation,
            host=settings.host,
            up_bps=settings.tcp.up_bps,
            down_bps=settings.tcp.down_bps,
        )
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
        self._transfers.stop()
        await self._session.leave(described(error), failed=True)

    def _end(self, error: BaseException) -> None:
        """Take in nothing more, and fail what is open; the first reason counts."""
        self._over = self._over or error
        self._driver.close()
        self._fail_all(self._over)

    def _fail_all(self, error: BaseException) -> None:
        if not self.welcome.done():
            self.welcome.set_exception(error)
            self.welcome.exception()  # seen: nobody may wait for it any more
        for push in self._pushes.values():
            if not push.handle.done():
                push.handle.set_result(Lost(detail=str(error)))
        for get in self._gets.values():
            if not get.handle.done():
                get.handle.set_exception(error)
        if self._draw is not None and not self._draw.done():
            self._draw.set_exception(error)
        self._pushes.clear()
        self._gets.clear()
        self._reductions.fail_all(error)

    async def drain(self, drain_s: float) -> None:
        """Wait for open pushes and AllReduces, for at most ``drain_s`` each."""
        handles = [push.handle for push in self._pushes.values()]
        if handles:
            await asyncio.wait(handles, timeout=drain_s)
        await self._reductions.drain(drain_s)

    async def close(self, detail: str, drain_s: float = 0.0) -> None:
        """Drain, say good-bye, stop."""
        await self.drain(drain_s)
        await self._session.leave(detail)
        await self._transfers.close()
        await self._kept.close()
        await self._reductions.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._waiting.close()
        await self._reporter.close()
        await self._channel.close()
        self._driver.close()

    # What the worker asks for

    def push(
        self, parcel: Parcel, norm: float, computed_from: ModelVersion, samples: Samples = ()
    ) -> asyncio.Future[Outcome]:
        """Hand over an update; the future gives its outcome. ``samples`` are what it was computed from, if known."""
        self._pushed, handle = self._push(parcel, norm, computed_from, UpdateKind.GRADIENT, samples)
        return handle

    def drop_samples(self, samples: Samples) -> None:
        """Say that an update was computed from these samples and will not be pushed."""
        if self._over is None:
            self._take_in(act.SamplesGivenUp(model=self._shards.names[0], samples=samples))

    def draw(self, wanted: SamplesWanted) -> asyncio.Future[SamplesGranted]:
        """Draw samples, one wish at a time; the future gives the answer.

        Args:
            wanted: what is wanted; worker, model and serial are filled in here.

        Raises:
            UsageError: another wish has no answer yet.
        """
        if self._draw is not None and not self._draw.done():
            raise UsageError("draw while another draw has no answer; wait for that one's result")
        if (handle := self._handle()).done():
            return handle
        self._draws += 1
        self._draw = handle
        wanted = replace(wanted, worker=self.settings.name, model=self._shards.names[0], serial=self._draws)
        self._take_in(wanted)
        return handle

    def _push(
        self, parcel: Parcel, norm: float, computed_from: ModelVersion, kind: UpdateKind, samples: Samples = ()
    ) -> tuple[UpdateId, asyncio.Future[Outcome]]:
        update = UpdateId(self.settings.name, self._incarnation, self._updates)
        self._updates += self.spec.shards
        handle: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if self._over is not None:
            handle.set_result(Lost(detail=str(self._over)))
            return update, handle
        parts = self._shards.parcels(parcel)
        self._pushes[update] = _OpenPush(parcel, parts, handle, clock.monotonic_s())
        for i, (part, name) in enumerate(zip(parts, self._shards.names, strict=True)):
            request = PushRequested(
                update=update._replace(counter=update.counter + i),
                model=name,
                size_bytes=part.size_bytes,
                computed_from=computed_from,
                norm=norm,
                kind=kind,
                samples=samples if i == 0 else (),  # one part's account is that of the whole
            )
            self._take_in(request)
        return update, handle

    def get(
        self, buffer: memoryview, min_version: ModelVersion, *, after_push: bool = False
    ) -> asyncio.Future[ModelVersion]:
        """Fetch the model into ``buffer``; the future gives its version.

        Args:
            after_push: it is to hold what was pushed last, if that is committed.
        """
        if (handle := self._handle()).done():
            return handle
        get = GetId(self.settings.name, self._incarnation, self._get_count)
        self._get_count += self.spec.shards
        after = self._pushed if after_push else None
        self._gets[get] = _OpenGet(self._shards.buffers(buffer), handle, clock.monotonic_s())
        for i, name in enumerate(self._shards.names):
            request = GetRequested(
                get=get._replace(counter=get.counter + i),
                model=name,
                min_version=min_version,
                after_update=after and after._replace(counter=after.counter + i),
            )
            self._take_in(request)
        return handle

    def applied(self, version: int) -> None:
        """Say that all rounds up to this version are applied."""
        self._reductions.applied(version)

    def withdraw(self, growth: GradientGrowth, reason: str) -> None:
        """Have a gradient be in no round; see :meth:`Reductions.withdraw`."""
        self._reductions.withdraw(growth, reason)

    def reduce(
        self,
        buffers: ReduceBuffers,
        op: ReduceOp,
        together: int,
        computed_from: int = 0,
        updates: int = 1,
        rates: tuple[float, ...] = (),
        squares: tuple[float, float] = (0.0, 0.0),
    ) -> asyncio.Future[Any]:
        """Ask for the sum of a tensor; see :meth:`Reductions.reduce`.

        Args:
            computed_from, updates, rates: see :class:`mlfabric.protocol.ReduceRequested`.
            squares: ``square`` and ``mean_square`` there.
        """
        if (handle := self._handle()).done():
            return handle
        reduce = ReduceId(self.settings.name, self._incarnation, self._reduce_count)
        self._reduce_count += 1
        request = ReduceRequested(
            reduce=reduce,
            model=self.spec.name,
            size_bytes=0 if buffers.given is None else len(buffers.given),
            dtype=buffers.dtype,
            op=op,
            together=together,
            computed_from=computed_from,
            updates=updates,
            rates=rates,
            square=squares[0],
            mean_square=squares[1],
        )
        return self._reductions.reduce(request, buffers)

    def _handle(self) -> asyncio.Future[Any]:
        """Return a future for what is asked for; it has failed already if nothing is taken in any more."""
        handle: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._over is not None:
            handle.set_exception(self._over)
        return handle

    # The session

    async def _register(self, stub: fabric_pb2_grpc.FabricServiceAsyncStub) -> fabric_pb2.Admission:
        claim = self._job
        request = fabric_pb2.RegisterAsWorkerRequest(
            member=wire.to_member(self._session.member),
            model=wire.to_spec(replace(self.spec, server=self._server)),
            holds_initial=self._initial is not None,
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
            self._transfers.break_off_all()
        if welcome.initialise:
            self._bring_initial()
        began = act.TermBegan(term=welcome.term, clock=welcome.clock, server_epoch=welcome.server_epoch)
        self._take_in(began)
        return [self._state.holds(), *self._state.drawing.open()]

    def _instructed(self, instruction: Instruction) -> None:
        match instruction:
            case MonitorAt():
                self._reporter.set_monitor(instruction.address, instruction.token)
            case PeerLost():
                self._transfers.break_off(instruction.address)
            case Initialise():
                self._bring_initial()
                self._take_in(instruction)
            case Replicate() if (growth := self._growth(instruction.transfer)) is not None:
                self._waiting.spawn(self._once_complete(instruction, growth))
            case _:
                self._take_in(instruction)  # type: ignore[arg-type]

    def _growth(self, transfer: TransferId) -> Growth | None:
        """Return the growth of an update that is not complete yet."""
        push = self._pushes.get(transfer) if isinstance(transfer, UpdateId) else None
        growth = None if push is None else push.parcel.growth
        return None if growth is None or growth.progress.is_complete else growth

    async def _once_complete(self, order: Replicate, growth: Growth) -> None:
        """Let the replica have an update when there is all of it; one that is given up is dropped everywhere."""
        with contextlib.suppress(GivenUpError):
            await growth.progress.reached(growth.progress.size_bytes)
            self._take_in(order)

    def _bring_initial(self) -> None:
        if self._initial is None or any(p.parcel is self._initial for p in self._pushes.values()):
            return
        _, handle = self._push(self._initial, 0.0, ModelVersion(0, 0), UpdateKind.INITIAL)
        handle.add_done_callback(self._initial_settled)

    def _initial_settled(self, handle: asyncio.Future[Outcome]) -> None:
        outcome = handle.result()
        if isinstance(outcome, Dropped) and outcome.cause is not DropReason.DUPLICATE:
            log.error("the initial weights were refused: %s: %s", outcome.cause.value, outcome.detail)

    # Events in, actions out

    def _take_in(self, event: act.DaemonEvent | Failed) -> None:
        if self._over is not None:  # nobody waits any more for what a transfer under way still brings
            return
        self._driver.take_in(event)
        self._metrics.in_flight(self.settings.name, len(self._pushes))

    def _do(self, action: act.Action) -> None:
        match action:
            case act.Request():
                self._session.send(action.event)
            case act.StartSend():
                self._transfers.send(action.plan, self._part(action.plan.update))
            case act.StartFetch():
                self._fetch(action.plan)
            case act.StopTransfers():
                self._transfers.stop()
            case act.Settle():
                self._settle(action)
            case act.HandOver():
                if self._draw is not None and not self._draw.done():
                    self._draw.set_result(action.granted)
            case act.FailPush():
                self._pushes.pop(action.update).handle.set_exception(FabricError(action.reason))
            case act.Deliver():
                get = self._gets.pop(action.get)
                self._metrics.got(clock.monotonic_s() - get.since_s)
                if not get.handle.done():
                    get.handle.set_result(action.version)
            case act.KeepCopy() | act.FoldCopy() | act.DropCopies() | act.FreezeWindow() | act.DropWindow():
                self._kept.do(action)
            case act.StartReplicate() | act.EndReplicate():
                self._kept.do(action)
            case _:
                self._reductions.do(action)

    def _part(self, update: UpdateId) -> Parcel:
        whole, i = self._shards.whole(update)
        return self._pushes[whole].parts[i]

    def _fetch(self, plan: Fetch) -> None:
        whole, i = self._shards.whole(plan.get)
        self._transfers.fetch(plan, self._gets[whole].parts[i], self._shards.digests[i])

    def _settle(self, action: act.Settle) -> None:
        push = self._pushes.pop(action.update)
        self._metrics.settled(action.outcome, clock.monotonic_s() - push.since_s)
        if not isinstance(action.outcome, Committed):
            log.debug("%s: %s (%s)", action.update, action.outcome, action.reason)
        if push.parcel is not self._initial:
            pushed_ns, settled_ns = round(push.since_s * 1e9), clock.monotonic_ns()
            self._observe(
                Settled(update=action.update, outcome=action.outcome, pushed_ns=pushed_ns, settled_ns=settled_ns)
            )
        if not push.handle.done():
            push.handle.set_result(action.outcome)

    def _observe(self, seen: Transferred | Settled) -> None:
        with self.failure.guard("the observer"):
            self._observer(seen)

    def _recorded(self, record: TransferRecord, peer: str) -> None:
        self._metrics.transfer(record, peer)
        if record.direction is Direction.IN:
            self._reporter.record(record, peer, self.settings.host)
        elif record.busy_bytes:
            self._reporter.record(record, self.settings.host, to_peer=peer)
