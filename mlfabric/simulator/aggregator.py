"""The simulated shell of an aggregator: session, connections that others opened, accumulators.

Does what ``aggregator/service.py`` and ``aggregator/connections.py`` do; what it sends itself is in ``errands.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from mlfabric.aggregator import actions as act
from mlfabric.aggregator.records import Stage
from mlfabric.aggregator.state import AggregatorConfig, AggregatorState
from mlfabric.protocol import (
    DropReason,
    GetId,
    HandOn,
    Instruction,
    MemberEvent,
    MemberJoined,
    MonitorAt,
    Sum,
    SumId,
    TransferId,
    Welcome,
)
from mlfabric.simulator.calls import Book, Caller
from mlfabric.simulator.driving import SimulatedDriver
from mlfabric.simulator.errands import Errands
from mlfabric.simulator.exact import Image
from mlfabric.simulator.flows import Flows
from mlfabric.simulator.lines import Connection, End
from mlfabric.simulator.payloads import CHUNKS, Adding, Feed, Payload, Way
from mlfabric.simulator.processes import Process
from mlfabric.simulator.session import Listener, Session, SessionCallbacks
from mlfabric.simulator.world import World
from mlfabric.specs import Member, ModelSpec, Role

__all__ = ["SimulatedAggregator"]


@dataclass(slots=True, eq=False)
class _Line:
    """One connection and the transfer that it carries."""

    connection: Connection
    caller: Caller
    transfer: TransferId | None = None
    get: GetId | None = None
    whole: dict[int, Image | None] = field(default_factory=dict)
    grant: act.Grant | None = None
    serving: act.HandModelOn | None = None


class SimulatedAggregator:
    """One process of an aggregator."""

    chunks = CHUNKS

    def __init__(
        self, world: World, flows: Flows, scheduler: Listener, book: Book, name: str, incarnation: int, host: str
    ) -> None:
        self.name = name
        self.host = host
        self.incarnation = incarnation
        self.address = f"{name}, process {incarnation}"
        budget = world.config.sum_updates * world.config.model_bytes
        self.state = AggregatorState(AggregatorConfig(name=name, memory_budget_bytes=budget))
        self.sums: dict[SumId, Adding] = {}
        self.models: dict[GetId, Payload] = {}
        self.handed_on = 0
        callbacks = SessionCallbacks(joining=self._joining, admitted=self._admitted, instructed=self._instructed)
        self.session = Session(world, scheduler, name, world.process(name, host), callbacks)
        self._world = world
        self._flows = flows
        self._errands = Errands(world, self.process, book, self.take_in)
        self._lines: dict[int, _Line] = {}
        self._numbers = 0
        self._driver = SimulatedDriver[act.AggregatorEvent, act.Action](
            world, self.process, self.state, self._do, self._check_memory, lambda: self.session.is_alive
        )
        flows.add_host(host)
        book.add(self.address, self)

    @property
    def process(self) -> Process:
        """Return the process."""
        return self.session.process

    @property
    def is_alive(self) -> bool:
        """Tell whether its process runs."""
        return self.session.is_alive

    def die(self) -> None:
        """End the process: every connection breaks."""
        self.session.die()
        for line in self._lines.values():
            line.connection.close(End.FAR)
        self._lines.clear()
        self._errands.break_off()
        self._driver.close()

    # The session

    def _joining(self) -> MemberJoined:
        bps = self._world.config.link_bps
        member = Member(
            name=self.name,
            role=Role.AGGREGATOR,
            incarnation=self.incarnation,
            host=self.host,
            address=self.address,
            up_bps=bps,
            down_bps=bps,
        )
        return MemberJoined(member=member, most_updates=self._world.config.most_updates)

    def _admitted(self, welcome: Welcome) -> list[MemberEvent]:
        self.take_in(act.EpochBegan(epoch=welcome.epoch))
        return []

    def _instructed(self, instruction: Instruction) -> None:
        if not isinstance(instruction, MonitorAt):
            self.take_in(instruction)  # type: ignore[arg-type]

    # Connections

    def connect(self, name: str, caller: Caller, broke: Callable[[], None]) -> Connection:
        """Open a connection from a worker or another aggregator."""
        self._numbers += 1
        number = self._numbers

        def ended(end: End) -> None:
            if end is End.NEAR:
                broke()
            else:
                self._broke(number, "it broke")

        connection = Connection(self._world, self._flows, number, name, ended, caller.process, self.process)
        self._lines[number] = _Line(connection, caller)
        return connection

    def offered(
        self, number: int, transfer: TransferId, ticket: bytes, length: int, digest: int, whole: dict[int, Image | None]
    ) -> None:
        """Read an OFFER frame."""
        line = self._lines[number]
        line.transfer, line.whole = transfer, whole
        self.take_in(act.Offered(connection=number, transfer=transfer, ticket=ticket, length=length, digest=digest))

    def payload(self, number: int, place: int, chunk: Image | None) -> None:
        """Read a chunk of a payload; what comes after an answer is thrown away."""
        line = self._lines[number]
        if line.grant is not None:
            self._add(number, line.grant, place, chunk)

    def _add(self, number: int, grant: act.Grant, place: int, chunk: Image | None) -> bool:
        """Add a chunk to its sum; tell whether that was done."""
        adding = self.sums.get(grant.sum)
        if adding is None:
            self._fail(number, f"{grant.sum} was given up")
        elif chunk is None:
            self._unusable(number, grant, DropReason.NOT_FINITE)
        else:
            adding.add(grant.index, place, chunk)
        return adding is not None and chunk is not None

    def sealed(self, number: int) -> None:
        """Read the seal of a payload."""
        grant = self._lines[number].grant
        if grant is not None:
            self._seal(number, grant)

    def _seal(self, number: int, grant: act.Grant) -> None:
        adding = self.sums.get(grant.sum)
        assert adding is None or adding.is_in(grant.index), f"{grant.transfer} was sealed before all of it was here"
        self.take_in(act.PayloadReceived(transfer=grant.transfer, connection=number))

    def taken_back(self, number: int) -> None:
        """Read a REFUSE frame: the sender takes its payload back."""
        line = self._lines[number]
        if line.grant is not None:
            self._unusable(number, line.grant, DropReason.CHANGED)
        else:
            self._fail(number, "a REFUSE frame came")

    def _unusable(self, number: int, grant: act.Grant, cause: DropReason) -> None:
        self._lines[number].grant = None
        self.take_in(act.InputUnusable(transfer=grant.transfer, connection=number, cause=cause, detail=cause.value))

    def wanted(self, number: int, get: GetId, ticket: bytes) -> None:
        """Read a WANT frame."""
        self._lines[number].get = get
        self.take_in(act.Wanted(connection=number, get=get, ticket=ticket))

    def _fail(self, number: int, detail: str) -> None:
        """Close a connection whose other end cannot be served."""
        self._lines[number].connection.close(End.FAR)
        self._broke(number, detail)

    def _broke(self, number: int, detail: str) -> None:
        line = self._lines.pop(number, None)
        if line is None:
            return
        if line.transfer is not None:
            self.take_in(act.TransferBroken(transfer=line.transfer, connection=number, detail=detail))
        if line.get is not None:
            self.take_in(act.GetBroken(get=line.get, connection=number, detail=detail))
        if line.serving is not None:
            self.take_in(act.GetBroken(get=line.serving.get, connection=number, detail=detail))

    # Events in, actions out

    def take_in(self, event: act.AggregatorEvent) -> None:
        """Hand an event to the state machine and do what follows."""
        self._driver.take_in(event)

    def _check_memory(self) -> None:
        sums, handings = self.state.sums.sums, self.state.handings.handings
        counted: set[SumId | GetId] = {s for s, r in sums.items() if r.stage not in (Stage.WAITING, Stage.SENT)}
        counted |= {get for get, handing in handings.items() if handing.fetching}
        held = {*self.sums, *self.models}
        assert held == counted, f"{self.name} keeps {held}; it counts {counted}"

    def _do(self, action: act.Action) -> None:
        match action:
            case act.ReserveSum():
                self._reserve(action.plan, action.spec)
            case act.Grant():
                self._grant(action)
            case act.OfferSum():
                self._errands.offer(action, self.sums[action.plan.sum].payload)
            case act.SealSum():
                self._errands.seal(action.sum)
            case act.ForgetSum():
                del self.sums[action.plan.sum]
            case act.GiveUp():
                self._errands.give_up(action.sum)
                self.sums.pop(action.sum, None)
            case act.Answer():
                self._answer(action)
            case act.Refuse():
                self._refuse(action)
            case act.Abandon():
                self._abandon(action.connection)
            case act.Report():
                self.session.send(action.event)
            case _:
                self._do_models(action)

    def _do_models(self, action: act.Action) -> None:
        match action:
            case act.StartFetch():
                self._fetch(action.plan, action.spec)
            case act.HandModelOn():
                self._hand_on(action)
            case act.ForgetModel():
                del self.models[action.get]
            case act.StopFetch():
                self._errands.give_up(action.get)
                del self.models[action.get]
                self._tear(action.get)
            case _:
                raise AssertionError(f"nobody does {action}")

    def _reserve(self, plan: Sum, spec: ModelSpec) -> None:
        payload = Payload(plan.images * spec.layout.size_bytes, CHUNKS)
        self.sums[plan.sum] = Adding(plan, payload, CHUNKS)

    def _fetch(self, plan: HandOn, spec: ModelSpec) -> None:
        payload = self.models[plan.get] = Payload(spec.layout.size_bytes, CHUNKS)
        self._errands.fetch(plan, payload)

    # Frames out

    def _grant(self, action: act.Grant) -> None:
        line = self._lines.get(action.connection)
        if line is None:
            return
        line.grant = action
        if not line.whole:
            line.connection.send(End.NEAR, "GRANT", line.caller.granted)
        elif all(self._add(action.connection, action, place, chunk) for place, chunk in line.whole.items()):
            self._seal(action.connection, action)

    def _answer(self, action: act.Answer) -> None:
        line = self._ended(action.connection)
        if line is not None:
            if self._world.chance(self._world.config.faults.outcome_lost):
                self._world.fault("outcome lost", action.outcomes)
                line.connection.break_up()
            outcomes = dict(action.outcomes)
            line.connection.send(End.NEAR, "OUTCOME", lambda: line.caller.answered(outcomes))

    def _refuse(self, action: act.Refuse) -> None:
        line = self._ended(action.connection)
        if line is not None:
            line.connection.send(End.NEAR, "REFUSE", lambda: line.caller.refused(action.reason))

    def _ended(self, number: int) -> _Line | None:
        """Return a connection whose transfer has ended."""
        line = self._lines.get(number)
        if line is not None:
            line.transfer = line.get = line.grant = None
            line.whole = {}
        return line

    def _abandon(self, number: int) -> None:
        line = self._lines.get(number)
        if line is not None:
            line.transfer = line.get = line.grant = None
            line.connection.close(End.FAR)

    # Models

    def _hand_on(self, action: act.HandModelOn) -> None:
        line, payload = self._lines.get(action.connection), self.models.get(action.source)
        if line is None or payload is None:
            detail = "the connection is gone" if line is None else "the model was given up"
            self.take_in(act.GetBroken(get=action.get, connection=action.connection, detail=detail))
            return
        line.get, line.serving = None, action
        line.connection.send(End.NEAR, "MODEL", partial(line.caller.comes, action.version))
        way = Way(source=self.host, destination=line.caller.process.host, towards=End.NEAR, pace_bps=action.rate_bps)
        Feed(line.connection, way, payload, line.caller.payload, partial(self._handed_on, line, action))

    def _handed_on(self, line: _Line, action: act.HandModelOn) -> None:
        line.serving = None
        self.handed_on += 1
        self.take_in(act.GetServed(get=action.get, connection=action.connection))

    def _tear(self, source: GetId) -> None:
        """Close every connection over which a model was being handed on."""
        for number, line in list(self._lines.items()):
            if line.serving is not None and line.serving.source == source:
                self._fail(number, "the model was given up")
