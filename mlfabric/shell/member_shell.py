"""What servers, replicas and aggregators have around their state machines, whatever these do. Shell-level.

A member joins the fabric over a session, tells the monitor of what it moved, and the scheduler of the memory it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mlfabric import clock, wire
from mlfabric.channels import Direction, TcpOptions, TransferRecord
from mlfabric.fail_stop import FailStop
from mlfabric.model.specs import NO_TERM, Member, Role, Term
from mlfabric.protocol import Instruction, MemberEvent, MemoryReported, MonitorAt, Welcome
from mlfabric.shell.driving import side_by_side
from mlfabric.shell.reporting import TransferReporter
from mlfabric.shell.session import SchedulerSession, SessionCallbacks
from mlfabric.telemetry import AggregatorMetrics, ServerMetrics
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc, types_pb2

__all__ = ["MemberDuties", "MemberOptions", "MemberShell"]

MEMORY_REPORT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class MemberOptions:
    """How a member runs.

    Args:
        scheduler: ``host:port`` of the scheduler.
        name, host: see ``Member``.
        tcp: its data channel.
    """

    scheduler: str
    name: str
    host: str = "localhost"
    tcp: TcpOptions = field(default_factory=TcpOptions)


@dataclass(frozen=True, kw_only=True)
class MemberDuties:
    """What a kind of member does in its own way.

    Args:
        register: asks the scheduler to admit this member.
        admitted: called at each admission; returns the events that announce what the member holds.
        instructed: called with every instruction that concerns more than the monitor, in order.
        memory_bytes: returns the bytes that it holds, by kind.
        failure: why the member cannot go on, if so.
    """

    register: Callable[[fabric_pb2_grpc.FabricServiceAsyncStub, types_pb2.Member], Awaitable[fabric_pb2.Admission]]
    admitted: Callable[[Welcome], list[MemberEvent]]
    instructed: Callable[[Instruction], None]
    memory_bytes: Callable[[], dict[str, int]]
    failure: FailStop


class MemberShell:
    """One member's place in the fabric.

    Args:
        options: see there.
        role: of the member.
        duties: see there.
        metrics: counts what happens.
        succeeds: the replica that it was before it took its server's place; "" of one that never was a replica.
    """

    def __init__(
        self,
        options: MemberOptions,
        role: Role,
        duties: MemberDuties,
        metrics: AggregatorMetrics | ServerMetrics,
        succeeds: str = "",
    ) -> None:
        tcp = options.tcp
        self.reporter = TransferReporter(
            options.name, options.host, tcp.up_bps, tcp.down_bps, tcp.security, succeeds=succeeds
        )
        self._options = options
        self._role = role
        self._duties = duties
        self._metrics = metrics
        self._session: SchedulerSession | None = None

    @property
    def session(self) -> SchedulerSession:
        """The session with the scheduler; there is one from :meth:`joined` on."""
        assert self._session is not None, "it has not begun to join"
        return self._session

    @asynccontextmanager
    async def joined(
        self, address: str, told: Callable[[], None], *jobs: Coroutine[Any, Any, None], seen: Term = NO_TERM
    ) -> AsyncIterator[Callable[[asyncio.Event], Awaitable[None]]]:
        """Be a member of the fabric, again whenever the scheduler was away, until the session is left.

        Args:
            address: where its data channel listens.
            told: called at each admission.
            jobs: that run meanwhile.
            seen: the newest scheduler that it has heard of.

        Yields:
            Waits until an event is set; raises what ends the member before.
        """
        member = Member(
            name=self._options.name,
            role=self._role,
            incarnation=clock.wall_ns(),
            host=self._options.host,
            address=address,
            up_bps=self._options.tcp.up_bps,
            down_bps=self._options.tcp.down_bps,
            seen=seen,
        )

        def admitted(welcome: Welcome) -> list[MemberEvent]:
            told()
            self.reporter.set_monitor(welcome.monitor_address, welcome.monitor_token)
            return self._duties.admitted(welcome)

        failure = self._duties.failure
        callbacks = SessionCallbacks(admitted=admitted, instructed=failure.guarded(self._instructed))
        session = self._session = SchedulerSession(
            self._options.scheduler, member, self._register, callbacks, self._options.tcp.security
        )
        own_jobs = (session.run(), self.reporter.run(), self._report_memory(), failure.watch())
        try:
            async with side_by_side(*own_jobs, *jobs) as wait, session.told_of_failure():
                yield wait
        finally:
            await self.reporter.close()

    async def _register(self, stub: fabric_pb2_grpc.FabricServiceAsyncStub) -> fabric_pb2.Admission:
        return await self._duties.register(stub, wire.to_member(self.session.member))

    def _instructed(self, instruction: Instruction) -> None:
        if isinstance(instruction, MonitorAt):
            self.reporter.set_monitor(instruction.address, instruction.token)
        else:
            self._duties.instructed(instruction)

    def report(self, event: MemberEvent) -> None:
        """Send an event to the scheduler, if there is a session."""
        if self._session is not None:
            self._session.send(event)

    def recorded(self, record: TransferRecord, peer: str) -> None:
        """Take in the record of a transfer and its other end: the host it came from, or whom it went to."""
        self._metrics.transfer(record, peer)
        if record.direction is Direction.IN:
            self.reporter.record(record, peer, self._options.host)
        elif record.busy_bytes:
            self.reporter.record(record, self._options.host, to_peer=peer)

    async def _report_memory(self) -> None:
        while True:
            kinds = self._duties.memory_bytes()
            self._metrics.memory(kinds)
            self.report(MemoryReported(name=self._options.name, kinds=tuple(sorted(kinds.items()))))
            await asyncio.sleep(MEMORY_REPORT_S)
