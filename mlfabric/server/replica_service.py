"""The replica's shell: session, data channel, stores. Decides nothing."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from mlfabric import wire
from mlfabric.channels import TcpChannel
from mlfabric.errors import LayoutError, RefusedError, UsageError
from mlfabric.fail_stop import Failed, Tasks
from mlfabric.model.specs import ModelSpec, Role
from mlfabric.protocol import (
    Following,
    HostModel,
    Instruction,
    MemberEvent,
    ModelVersion,
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
from mlfabric.server.service import HoldingOptions, ServerOptions, ServerService
from mlfabric.server.stores import Stores
from mlfabric.shell.driving import Driver
from mlfabric.shell.member_shell import MemberDuties, MemberShell
from mlfabric.shell.session import nothing
from mlfabric.telemetry import ServerMetrics
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc, types_pb2

__all__ = ["ReplicaOptions", "ReplicaService"]

log = logging.getLogger("mlfabric.replica")


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions(HoldingOptions):
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

    replica_of: str
    name: str = "replica-0"
    div_max: float = math.inf
    div_max_updates: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
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
        self._stores = Stores(self._came_to)
        self._leads_to: dict[str, ModelVersion] = {}
        self.callbacks = Callbacks(self._driver.failure)
        self._channel = TcpChannel(options.tcp)
        duties = MemberDuties(
            register=self._register,
            admitted=self._admitted,
            instructed=self._instructed,
            memory_bytes=self._stores.memory_bytes,
            failure=self._driver.failure,
        )
        self._shell = MemberShell(options, Role.REPLICA, duties, metrics)
        self._report = self._shell.report
        self._connections = Connections(
            self._stores, options.host, self._driver.take_in, self._shell.recorded, metrics.connection_broke
        )
        self._does: dict[type, Callable[[Any], None]] = {
            act.Grant: self._connections.grant,
            act.Answer: self._connections.answer,
            act.Refuse: self._connections.refuse,
            act.Abandon: self._connections.abandon,
            act.Forget: lambda action: self._stores.forget(action.transfer),
            act.FreeStore: self._stores.free,
            act.Report: lambda action: self._report(action.event),
            PlantSeed: self._begin_seed,
            ApplyPrefix: self._begin_prefix,
            TakeOver: self._begin_heir,
        }
        self.server: ServerService | None = None
        self._heirs = Tasks(self._driver.take_in)
        self._heir: asyncio.Task[None] | None = None
        self._is_promoted = False
        self._over = asyncio.Event()
        self._stop = asyncio.Event()

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
        self.address = await self._channel.listen(self._connections.serve)
        self._stop = stop
        try:
            async with self._shell.joined(self.address, joined, self._until_over(stop)) as wait:
                await wait(self._over)
                await self._shell.session.leave("it is the server now" if self._is_promoted else "stopped")
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
        await self._stores.close()
        self._driver.close()

    # Taking the primary's place

    def _begin_heir(self, action: TakeOver) -> None:
        """Come as a server, beside being a replica until the scheduler has admitted it."""
        self._end_heir()
        session = self._shell.session
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
        holding = {field.name: getattr(self.options, field.name) for field in fields(HoldingOptions)}
        options = ServerOptions(**{**holding, "scheduler": session.addresses, "name": action.server})
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

    async def _register(
        self, stub: fabric_pb2_grpc.FabricServiceAsyncStub, member: types_pb2.Member
    ) -> fabric_pb2.Admission:
        following = Following(
            server=self.options.replica_of,
            norm=self.options.div_max,
            updates=self.options.div_max_updates,
            is_seeded=self._state.is_seeded,
        )
        request = wire.to_following(following)
        request.member.CopyFrom(member)
        return (await stub.RegisterAsReplica(request)).admission

    def _admitted(self, welcome: Welcome) -> list[MemberEvent]:
        self._end_heir()
        self._driver.take_in(act.TermBegan(term=welcome.term))
        return list(self._state.holds())

    def _instructed(self, instruction: Instruction) -> None:
        if isinstance(instruction, HostModel):
            log.info("model %s: %s", instruction.spec.name, instruction.reason)
        self._driver.take_in(instruction)

    def _do(self, action: ReplicaAction) -> None:
        self._does[type(action)](action)

    def _begin_seed(self, action: PlantSeed) -> None:
        spec, payload = self._state.models[action.model].spec, self._stores.buffer(action.transfer)
        self._leads_to[action.model] = action.holds.version
        self._stores.carry_out(action.model, payload.nbytes, partial(self._plant, action, spec, payload))

    def _begin_prefix(self, action: ApplyPrefix) -> None:
        buffers = {part.transfer: self._stores.buffer(part.transfer) for part in action.parts}
        size_bytes = sum(buffer.nbytes for buffer in buffers.values())
        self._leads_to[action.model] = action.version
        self._stores.carry_out(action.model, size_bytes, partial(self._apply, action, buffers))

    def _came_to(self, event: act.ServerEvent | ReplicaEvent | Failed) -> None:
        """Take in what the stores did; a version that was reached is told of before the model is changed again."""
        if isinstance(event, SeedPlanted | PrefixApplied):
            self.callbacks.reached(event.model, self._stores.store(event.model), self._leads_to[event.model])
        self._driver.take_in(event)

    def _plant(self, action: PlantSeed, spec: ModelSpec, payload: memoryview) -> SeedPlanted | SeedRefused:
        try:
            store = planted(spec, payload, action.holds.version.number, action.steps)
        except LayoutError as error:
            return SeedRefused(model=action.model, transfer=action.transfer, detail=str(error))
        self._stores.add(spec, store)
        return SeedPlanted(model=action.model, transfer=action.transfer)

    def _apply(self, action: ApplyPrefix, buffers: dict[TransferId, memoryview]) -> PrefixApplied | PrefixRefused:
        result = apply_prefix(self._stores.store(action.model), action, buffers)
        if isinstance(result, NotFinite):
            detail = f"the steps to version {action.version.number} would make {result.tensor} NaN or Inf"
            return PrefixRefused(model=action.model, detail=detail)
        assert result.version == action.version.number, f"{action} made version {result.version}"
        return PrefixApplied(model=action.model, version=action.version)
