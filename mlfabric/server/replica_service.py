"""The replica's shell: session, data channel, stores. Decides nothing."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlfabric import wire
from mlfabric.channels import Direction, TcpChannel, TcpOptions, TransferRecord
from mlfabric.errors import LayoutError, RefusedError, UsageError
from mlfabric.fail_stop import Tasks
from mlfabric.model.specs import Member, Role
from mlfabric.protocol import (
    Following,
    HostModel,
    Instruction,
    MemberEvent,
    MemoryReported,
    ModelVersion,
    MonitorAt,
    TransferId,
    Welcome,
)
from mlfabric.server import actions as act
from mlfabric.server.callbacks import Callbacks
from mlfabric.server.inheritance import Inheritance
from mlfabric.server.replica_actions import (
    ApplyPrefix,
    PlantSeed,
    PrefixApplied,
    PrefixRefused,
    ReplicaAction,
    ReplicaEvent,
    SeedPlanted,
    SeedRefused,
    TakeOver,
)
from mlfabric.server.replica_state import ReplicaState
from mlfabric.server.replica_steps import apply_prefix
from mlfabric.server.rule_kernels import NotFinite
from mlfabric.server.seeds import planted
from mlfabric.server.server_connections import Connections
from mlfabric.server.service import DEFAULT_WEIGHT_COPIES, ServerOptions, ServerService
from mlfabric.server.store import ModelStore
from mlfabric.server.stores import INLINE_BYTES, Stores
from mlfabric.shell.driving import Driver, side_by_side
from mlfabric.shell.reporting import TransferReporter
from mlfabric.shell.session import SchedulerSession, SessionCallbacks, nothing
from mlfabric.telemetry import ServerMetrics
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc

__all__ = ["ReplicaOptions", "ReplicaService"]

log = logging.getLogger("mlfabric.replica")
MEMORY_REPORT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """How a replica runs.

    Args:
        scheduler: ``host:port`` of the scheduler.
        replica_of: the server whose models are followed.
        name, host: see ``Member``.
        tcp: its data channel.
        div_max: how far each model's parameters may be from what can be recovered here, as an l2 norm; 0 for no lead
            at all, infinite for no such bound.
        div_max_updates: how many commits it may be ahead, >= 0; None for no such bound.
        receive_budget_bytes, weight_copies, checkpoint_dir, checkpoint_every_s, keep: see ``ServerOptions``; for when
            it has taken its primary's place. Before that it writes nothing.
    """

    scheduler: str
    replica_of: str
    name: str = "replica-0"
    host: str = "localhost"
    tcp: TcpOptions = field(default_factory=TcpOptions)
    div_max: float = math.inf
    div_max_updates: int | None = None
    receive_budget_bytes: int = 0
    weight_copies: int = DEFAULT_WEIGHT_COPIES
    checkpoint_dir: Path | None = None
    checkpoint_every_s: float = 60.0
    keep: int = 3

    def __post_init__(self) -> None:
        if not self.replica_of:
            raise UsageError("replica_of=''; give the name of a server")
        if not self.div_max >= 0:
            raise UsageError(f"div_max={self.div_max}; allowed: >= 0")
        if self.div_max_updates is not None and self.div_max_updates < 0:
            raise UsageError(f"div_max_updates={self.div_max_updates}; allowed: >= 0")
        if math.isinf(self.div_max) and self.div_max_updates is None:
            raise UsageError("neither div_max nor div_max_updates is given; a replica needs one of them, or both")


class ReplicaService:
    """One replica; ``server`` is what it is, or is about to be, once it was told to take its primary's place."""

    def __init__(self, options: ReplicaOptions, metrics: ServerMetrics) -> None:
        self.options = options
        self.address = ""
        self._metrics = metrics
        self._state = ReplicaState(options.name)
        self._driver = Driver[Any, ReplicaAction](self._state, self._do)
        self._stores = Stores(self._driver.take_in)
        self._planted: set[str] = set()
        self.callbacks = Callbacks(self._driver.failure)
        self._channel = TcpChannel(options.tcp)
        self._connections = Connections(
            self._stores, options.host, self._driver.take_in, self._recorded, metrics.connection_broke
        )
        tcp = options.tcp
        self._reporter = TransferReporter(options.name, options.host, tcp.up_bps, tcp.down_bps, tcp.security)
        self._tasks = Tasks(self._driver.take_in)
        self._freeing = Tasks(self._driver.take_in)
        self._joined: Callable[[], None] = nothing
        self._session: SchedulerSession | None = None
        self.server: ServerService | None = None
        self._heirs = Tasks(self._driver.take_in)
        self._heir: asyncio.Task[None] | None = None
        self._is_promoted = False
        self._over = asyncio.Event()
        self._stop = asyncio.Event()

    def store(self, model: str) -> ModelStore | None:
        """Return the store of a model, None before it was seeded."""
        return self._stores.store(model) if model in self._planted else None

    # Running

    async def run(self, stop: asyncio.Event, joined: Callable[[], None] = nothing) -> None:
        """Follow until ``stop`` is set, then say good-bye; as a server, from when its primary's place is taken on.

        Args:
            joined: called whenever the scheduler has admitted the replica.

        Raises:
            RefusedError: the scheduler refuses this replica for good.
            UsageError: the data address cannot be listened on.
            Exception: something that was decided could not be carried out; it has been told.
        """
        self._joined = joined
        self.address = await self._channel.listen(self._connections.serve)
        instructed = self._driver.failure.guarded(self._instructed)
        callbacks = SessionCallbacks(admitted=self._admitted, instructed=instructed, lost=lambda _: None)
        self._session = SchedulerSession(
            self.options.scheduler, self._member(), self._register, callbacks, self.options.tcp.security
        )
        self._stop = stop
        jobs = (
            *(self._session.run(), self._reporter.run(), self._report_memory()),
            *(self._until_over(stop), self._driver.failure.watch()),
        )
        try:
            async with side_by_side(*jobs) as wait, self._session.told_of_failure():
                await wait(self._over)
                await self._session.leave("it is the server now" if self._is_promoted else "stopped")
        finally:
            await self._close()
        if self._heir is not None:
            await self._heir

    async def _until_over(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._over.set()

    async def _close(self) -> None:
        if not self._is_promoted:
            self._end_heir()
            await self._channel.close()
        await self._tasks.wait()
        await self._freeing.wait()
        await self._reporter.close()
        self._driver.close()

    # Taking the primary's place

    def _begin_heir(self, action: TakeOver) -> None:
        """Come as a server, beside being a replica until the scheduler has admitted it."""
        self._end_heir()
        session = self._session
        assert session is not None, "it was told over its session"
        log.info("taking the place of server %s: %s", action.server, action.reason)
        inheritance = Inheritance(
            replica=self.options.name,
            token=lambda: session.token,
            seen=session.member.seen,
            made=action.made,
            held=tuple((holds, self._stores.store(holds.spec.name)) for holds in action.holds),
            channel=self._channel,
            address=self.address,
            admitted=self._promoted,
        )
        options = ServerOptions(
            scheduler=session.addresses,
            name=action.server,
            host=self.options.host,
            tcp=self.options.tcp,
            receive_budget_bytes=self.options.receive_budget_bytes,
            weight_copies=self.options.weight_copies,
            checkpoint_dir=self.options.checkpoint_dir,
            checkpoint_every_s=self.options.checkpoint_every_s,
            keep=self.options.keep,
        )
        self.server = ServerService(options, self._metrics, inheritance)
        self.server.callbacks.of_updates.append(lambda model, _, view: self.callbacks.came_to(model, view))
        self._heir = self._heirs.spawn(self._be_server(self.server))

    async def _be_server(self, server: ServerService) -> None:
        try:
            await server.run(self._stop)
        except RefusedError as error:
            if self._is_promoted:
                raise
            log.warning("%s stays a replica: %s", self.options.name, error)
            self._channel.serve_by(self._connections.serve)

    def _promoted(self) -> None:
        self._is_promoted = True
        self._over.set()

    def _end_heir(self) -> None:
        """Be a replica only."""
        if self._heir is not None and not self._is_promoted:
            self._heir.cancel()
            self._heir, self.server = None, None
            self._channel.serve_by(self._connections.serve)

    def _member(self) -> Member:
        return Member(
            name=self.options.name,
            role=Role.REPLICA,
            incarnation=time.time_ns(),
            host=self.options.host,
            address=self.address,
            up_bps=self.options.tcp.up_bps,
            down_bps=self.options.tcp.down_bps,
        )

    async def _register(self, stub: fabric_pb2_grpc.FabricServiceAsyncStub) -> fabric_pb2.Admission:
        assert self._session is not None, "it is the session that registers"
        following = Following(
            server=self.options.replica_of,
            norm=self.options.div_max,
            updates=self.options.div_max_updates,
            is_seeded=self._state.is_seeded,
        )
        request = wire.to_following(following)
        request.member.CopyFrom(wire.to_member(self._session.member))
        return (await stub.RegisterAsReplica(request)).admission

    def _admitted(self, welcome: Welcome) -> list[MemberEvent]:
        self._joined()
        self._end_heir()
        self._reporter.set_monitor(welcome.monitor_address, welcome.monitor_token)
        self._driver.take_in(act.EpochBegan(epoch=welcome.epoch))
        return list(self._state.holds())

    def _instructed(self, instruction: Instruction) -> None:
        if isinstance(instruction, MonitorAt):
            self._reporter.set_monitor(instruction.address, instruction.token)
            return
        if isinstance(instruction, HostModel):
            log.info("model %s: %s", instruction.spec.name, instruction.reason)
        self._driver.take_in(instruction)

    def _do(self, action: ReplicaAction) -> None:
        match action:
            case act.Grant():
                self._connections.grant(action)
            case act.Answer():
                self._connections.answer(action)
            case act.Refuse():
                self._connections.refuse(action.connection, action.reason)
            case act.Abandon():
                self._connections.abandon(action.connection)
            case act.Forget():
                self._stores.forget(action.transfer)
            case act.FreeStore():
                self._freeing.spawn(self._free(action))
            case act.Report():
                self._report(action.event)
            case PlantSeed():
                size_bytes = self._stores.buffer(action.transfer).nbytes
                self._run(self._plant(action), size_bytes, action.holds.version)
            case ApplyPrefix():
                buffers = {part.transfer: self._stores.buffer(part.transfer) for part in action.parts}
                self._run(self._apply(action, buffers), sum(b.nbytes for b in buffers.values()), action.version)
            case TakeOver():
                self._begin_heir(action)

    def _run(self, work: Callable[[], ReplicaEvent], size_bytes: int, version: ModelVersion) -> None:
        """Do some work that leads to a version, here if it is small, else in a thread; take in what it comes to."""
        if size_bytes <= INLINE_BYTES:
            self._worked(work(), version)
        else:
            self._tasks.spawn(self._run_in_thread(work, version))

    async def _run_in_thread(self, work: Callable[[], ReplicaEvent], version: ModelVersion) -> None:
        self._worked(await asyncio.to_thread(work), version)

    def _worked(self, came_to: ReplicaEvent, version: ModelVersion) -> None:
        """Tell of a version that was reached before the model is changed again."""
        if isinstance(came_to, SeedPlanted | PrefixApplied):
            self.callbacks.reached(came_to.model, self._stores.store(came_to.model), version)
        self._driver.take_in(came_to)

    async def _free(self, action: act.FreeStore) -> None:
        """Hold nothing of a model any more, once what runs has ended."""
        await self._tasks.wait()
        self._planted.discard(action.model)
        self._stores.free(action)

    def _plant(self, action: PlantSeed) -> Callable[[], ReplicaEvent]:
        spec, payload = self._state.models[action.model].spec, self._stores.buffer(action.transfer)

        def work() -> ReplicaEvent:
            try:
                store = planted(spec, payload, action.holds.version.number, action.steps)
            except LayoutError as error:
                return SeedRefused(model=action.model, transfer=action.transfer, detail=str(error))
            self._stores.add(spec, store)
            self._planted.add(spec.name)
            return SeedPlanted(model=action.model, transfer=action.transfer)

        return work

    def _apply(self, action: ApplyPrefix, buffers: dict[TransferId, memoryview]) -> Callable[[], ReplicaEvent]:
        store = self._stores.store(action.model)

        def work() -> ReplicaEvent:
            result = apply_prefix(store, action, buffers)
            if isinstance(result, NotFinite):
                detail = f"the steps to version {action.version.number} would make {result.tensor} NaN or Inf"
                return PrefixRefused(model=action.model, detail=detail)
            assert result.version == action.version.number, f"{action} made version {result.version}"
            return PrefixApplied(model=action.model, version=action.version)

        return work

    def _report(self, event: MemberEvent) -> None:
        if self._session is not None:
            self._session.send(event)

    def _recorded(self, record: TransferRecord, peer: str) -> None:
        self._metrics.transfer(record, peer)
        if record.direction is Direction.IN:
            self._reporter.record(record, peer, self.options.host)

    async def _report_memory(self) -> None:
        while True:
            kinds = self._stores.memory_bytes()
            self._metrics.memory(kinds)
            self._report(MemoryReported(name=self.options.name, kinds=tuple(sorted(kinds.items()))))
            await asyncio.sleep(MEMORY_REPORT_S)
