"""The aggregator's shell: session, data channel, buffers, metrics. Decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlfabric.aggregator import actions as act
from mlfabric.aggregator.aggregator_connections import Connections
from mlfabric.aggregator.buffers import Buffers
from mlfabric.aggregator.outgoing_sums import Outgoing
from mlfabric.aggregator.spans import moments
from mlfabric.aggregator.state import AggregatorState
from mlfabric.channels import TcpChannel
from mlfabric.errors import UsageError
from mlfabric.model.specs import Role
from mlfabric.protocol import (
    GetId,
    HostModel,
    Instruction,
    MemberEvent,
    PeerLost,
    SumId,
    Welcome,
)
from mlfabric.shell.driving import Driver
from mlfabric.shell.member_shell import MemberDuties, MemberOptions, MemberShell
from mlfabric.shell.session import nothing
from mlfabric.telemetry import AggregatorMetrics
from mlfabric.telemetry.otlp import tracer_of
from mlfabric.transfer.add_kernels import load as load_kernels
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc, types_pb2

__all__ = ["AggregatorOptions", "AggregatorService"]

log = logging.getLogger("mlfabric.aggregator")
DEFAULT_BUDGET_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class AggregatorOptions(MemberOptions):
    """How an aggregator runs.

    Args:
        scheduler: ``host:port`` of the scheduler.
        name, host: see ``Member``; one beside a worker has that worker's host, and shares its links.
        tcp: its data channel.
        most_updates: how many it takes into one sum, >= 0; 0 for any number.
        memory_budget_bytes: for sums and models that are handed on, >= 0; 0 means 1 GiB. Beside it, each sum takes a
            chunk for each of its inputs that is arriving.
    """

    name: str = "aggregator-0"
    most_updates: int = 0
    memory_budget_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("most_updates", "memory_budget_bytes"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name}={getattr(self, name)}; allowed: >= 0")


class AggregatorService:
    """One aggregator."""

    def __init__(self, options: AggregatorOptions, metrics: AggregatorMetrics) -> None:
        self.options = options
        self.address = ""
        self._metrics = metrics
        budget = options.memory_budget_bytes or DEFAULT_BUDGET_BYTES
        self._state = AggregatorState(options.name, budget)
        self._tracer = tracer_of("aggregator", options.name, moments)
        see = self._tracer.see if self._tracer else None
        self._driver = Driver[act.AggregatorEvent, act.Action](self._state, self._do, see)
        self._buffers = Buffers()
        self._channel = TcpChannel(options.tcp)
        duties = MemberDuties(
            register=self._register,
            admitted=self._admitted,
            instructed=self._instructed,
            memory_bytes=self._buffers.memory_bytes,
            failure=self._driver.failure,
        )
        self._shell = MemberShell(options, Role.AGGREGATOR, duties, metrics)
        take_in, recorded = self._driver.take_in, self._shell.recorded
        self._connections = Connections(self._buffers, options.host, take_in, recorded, metrics.connection_broke)
        self._outgoing = Outgoing(self._channel, options.host, self._buffers, take_in, recorded)
        self._does: dict[type, Callable[[Any], None]] = {
            act.ReserveSum: lambda action: self._buffers.reserve_sum(action.plan, action.spec),
            act.Grant: self._connections.grant,
            act.OfferSum: self._outgoing.offer,
            act.SealSum: lambda action: self._outgoing.seal(action.sum),
            act.ForgetSum: self._forget_sum,
            act.GiveUp: lambda action: self._give_up(action.sum, action.reason),
            act.Answer: self._connections.answer,
            act.Refuse: self._refuse,
            act.Abandon: self._connections.abandon,
            act.StartFetch: self._outgoing.fetch,
            act.HandModelOn: self._connections.hand_on,
            act.ForgetModel: lambda action: self._buffers.free(action.get, action.reason),
            act.StopFetch: lambda action: self._give_up(action.get, action.reason),
            act.Report: self._report,
        }

    # Running

    async def run(self, stop: asyncio.Event, joined: Callable[[], None] = nothing) -> None:
        """Serve until ``stop`` is set, then say good-bye; what runs is planned again by the scheduler.

        Args:
            joined: called whenever the scheduler has admitted the aggregator.

        Raises:
            RefusedError: the scheduler refuses this aggregator for good.
            UsageError: the data address cannot be listened on.
            Exception: something that was decided could not be carried out; it has been told.
        """
        await asyncio.to_thread(load_kernels)
        self.address = await self._channel.listen(self._connections.serve)
        try:
            async with self._shell.joined(self.address, joined) as wait:
                await wait(stop)
                await self._shell.session.leave("stopped")
        finally:
            await self._outgoing.close()
            await self._channel.close()
            self._driver.close()
            if self._tracer is not None:
                await asyncio.to_thread(self._tracer.close)

    async def _register(
        self, stub: fabric_pb2_grpc.FabricServiceAsyncStub, member: types_pb2.Member
    ) -> fabric_pb2.Admission:
        request = fabric_pb2.RegisterAsAggregatorRequest(member=member, most_updates=self.options.most_updates)
        return (await stub.RegisterAsAggregator(request)).admission

    def _admitted(self, welcome: Welcome) -> list[MemberEvent]:
        self._driver.take_in(act.TermBegan(term=welcome.term))
        return []

    def _instructed(self, instruction: Instruction) -> None:
        if isinstance(instruction, PeerLost):
            self._outgoing.break_off(instruction.address)
            return
        if isinstance(instruction, HostModel):
            log.info("model %s: %s", instruction.spec.name, instruction.reason)
        self._driver.take_in(instruction)  # type: ignore[arg-type]

    def _do(self, action: act.Action) -> None:
        self._does[type(action)](action)

    def _forget_sum(self, action: act.ForgetSum) -> None:
        self._buffers.free(action.plan.sum, action.reason)
        self._metrics.summed(action.plan.model, len(action.plan.members))

    def _refuse(self, action: act.Refuse) -> None:
        self._connections.refuse(action)
        self._metrics.refused()

    def _report(self, action: act.Report) -> None:
        self._metrics.ended(action.event)
        self._shell.report(action.event)

    def _give_up(self, which: SumId | GetId, reason: str) -> None:
        self._outgoing.give_up(which)
        self._buffers.free(which, reason)
