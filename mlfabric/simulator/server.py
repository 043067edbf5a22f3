"""The simulated shell of a server: session, connections, stores. Does what ``server/service.py`` and its parts do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from mlfabric.protocol import (
    Dropped,
    Expect,
    GetId,
    Instruction,
    MemberEvent,
    MemberJoined,
    ModelVersion,
    MonitorAt,
    Outcome,
    Tick,
    UpdateId,
    UpdateKind,
    Welcome,
)
from mlfabric.server import actions as act
from mlfabric.server.serving import weight_buffers
from mlfabric.server.state import ServerConfig, ServerState
from mlfabric.simulator.double import Held, ReceiveBuffers, StoreDouble
from mlfabric.simulator.flows import Flows
from mlfabric.simulator.lines import Connection, End
from mlfabric.simulator.session import Listener, Session, SessionCallbacks
from mlfabric.simulator.witness import Witness
from mlfabric.simulator.world import Timer, World
from mlfabric.specs import Member, Role

__all__ = ["Caller", "SimulatedServer"]

STEP_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What the worker's end of a connection does on each frame.

    Args:
        host: where it is.
        granted: its bytes may come.
        answered: the outcome of its update.
        refused: this transfer will not be.
        model: all bytes of the model are here.
    """

    host: str
    granted: Callable[[], None]
    answered: Callable[[Outcome], None]
    refused: Callable[[str], None]
    model: Callable[[ModelVersion, int], None]


@dataclass(slots=True, eq=False)
class _Line:
    """One connection and the transfer that it carries."""

    connection: Connection
    caller: Caller
    update: UpdateId | None = None
    get: GetId | None = None
    held: tuple[str, Held] | None = None


class SimulatedServer:
    """One server."""

    def __init__(self, world: World, flows: Flows, scheduler: Listener, witness: Witness, name: str) -> None:
        self.name = name
        self.host = f"host of {name}"
        budget = world.config.receive_updates * world.config.model_bytes
        self.state = ServerState(ServerConfig(name=name, receive_budget_bytes=budget))
        self.stores: dict[str, StoreDouble] = {}
        self.buffers = ReceiveBuffers()
        callbacks = SessionCallbacks(joining=self._joining, admitted=self._admitted, instructed=self._instructed)
        self.session = Session(world, scheduler, name, callbacks)
        self._world = world
        self._flows = flows
        self._witness = witness
        self._lines: dict[int, _Line] = {}
        self._numbers = 0
        self._queue: deque[act.ServerEvent | Tick] = deque()
        self._is_draining = False
        self._timer: Timer | None = None
        flows.add_host(self.host)

    # The session

    def _joining(self) -> MemberJoined:
        bps = self._world.config.link_bps
        member = Member(
            name=self.name,
            role=Role.SERVER,
            incarnation=1,
            host=self.host,
            address=self.name,
            up_bps=bps,
            down_bps=bps,
        )
        return MemberJoined(member=member, held=tuple(h.spec for h in self.state.holds()))

    def _admitted(self, welcome: Welcome) -> list[MemberEvent]:
        self._take_in(act.EpochBegan(epoch=welcome.epoch))
        return list(self.state.holds())

    def _instructed(self, instruction: Instruction) -> None:
        if isinstance(instruction, Expect):
            self._witness.expected(instruction)
        if not isinstance(instruction, MonitorAt):
            self._take_in(instruction)  # type: ignore[arg-type]

    # Connections

    def connect(self, name: str, caller: Caller, broke: Callable[[], None]) -> Connection:
        """Open a connection from a worker."""
        self._numbers += 1
        number = self._numbers

        def ended(end: End) -> None:
            if end is End.NEAR:
                broke()
            else:
                self._broke(number)

        connection = Connection(self._world, self._flows, number, name, ended)
        self._lines[number] = _Line(connection, caller)
        return connection

    def offered(self, number: int, update: UpdateId, ticket: bytes, length: int, digest: int) -> None:
        """Read an OFFER frame."""
        self._lines[number].update = update
        event = act.Offered(connection=number, update=update, ticket=ticket, length=length, digest=digest)
        self._take_in(event)

    def sealed(self, number: int, step: int | None) -> None:
        """Read the end of a payload."""
        line = self._lines[number]
        assert line.update is not None, "a payload came that was not granted"
        self.buffers.fill(line.update, number, step)
        self._take_in(act.PayloadReceived(update=line.update, connection=number))

    def wanted(self, number: int, get: GetId, ticket: bytes) -> None:
        """Read a WANT frame."""
        self._lines[number].get = get
        self._take_in(act.Wanted(connection=number, get=get, ticket=ticket))

    def _broke(self, number: int) -> None:
        line = self._lines.pop(number)
        if line.update is not None:
            self._take_in(act.UpdateBroken(update=line.update, connection=number, detail="it broke"))
        if line.get is not None:
            if line.held is not None:
                model, held = line.held
                self.stores[model].release(held)
            self._take_in(act.GetBroken(get=line.get, connection=number, detail="it broke"))

    # Events in, actions out

    def _take_in(self, event: act.ServerEvent | Tick) -> None:
        self._queue.append(event)
        if self._is_draining:
            return
        self._is_draining = True
        while self._queue:
            taken = self._queue.popleft()
            actions = self.state.handle(taken, self._world.now_ns)
            self._world.note(f"{self.name} <-", taken, "->", *actions)
            for action in actions:
                self._do(action)
            self.state.validate()
            self._check_buffers()
        self._is_draining = False
        self._set_timer()

    def _check_buffers(self) -> None:
        if self._queue:
            return
        held = {u for model in self.state.models.values() for u, t in model.updates.items() if t.holds_buffer}
        assert len(held) == len(self.buffers), f"{len(self.buffers)} buffers are kept for {held}"

    def _set_timer(self) -> None:
        due_ns = self.state.next_wakeup_ns()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_ns is not None:
            delay_ns = max(0, due_ns - self._world.now_ns)
            self._timer = self._world.later(delay_ns, f"{self.name} tick", self._wake_up)

    def _wake_up(self) -> None:
        self._timer = None
        self._take_in(Tick())

    def _do(self, action: act.Action) -> None:
        match action:
            case act.Grant():
                self._grant(action)
            case act.ApplyStep():
                self._apply(action)
            case act.Answer():
                self._answer(action)
            case act.Report():
                self.session.send(action.event)
            case act.ServeModel():
                self._serve(action)
            case act.Forget():
                self._forget(action.update)
            case act.RefuseOffer() | act.RefuseWant():
                self._refuse(action)
            case act.Abandon():
                self._abandon(action.connection)
            case act.InstallInitial():
                self._install(action)
            case act.CreateStore():
                self.stores[action.spec.name] = StoreDouble(weight_buffers(action.spec))

    # Frames out

    def _grant(self, action: act.Grant) -> None:
        line = self._lines[action.connection]
        self.buffers.reserve(action.update, action.connection)
        line.connection.send(End.NEAR, "GRANT", line.caller.granted)

    def _answer(self, action: act.Answer) -> None:
        line = self._lines.get(action.connection)
        if line is None:
            return
        line.update = None
        if not isinstance(action.outcome, Dropped) and self._world.chance(self._world.config.faults.outcome_lost):
            self._world.fault("outcome lost", action.update)
            line.connection.break_up()
        line.connection.send(End.NEAR, "OUTCOME", lambda: line.caller.answered(action.outcome))

    def _refuse(self, action: act.RefuseOffer | act.RefuseWant) -> None:
        line = self._lines.get(action.connection)
        if line is not None:
            line.update = line.get = None
            line.connection.send(End.NEAR, "REFUSE", lambda: line.caller.refused(action.reason))

    def _abandon(self, number: int) -> None:
        line = self._lines.get(number)
        if line is not None:
            line.update = None
            line.connection.close(End.FAR)

    def _serve(self, action: act.ServeModel) -> None:
        line = self._lines.get(action.connection)
        if line is None:
            event = act.GetBroken(get=action.get, connection=action.connection, detail="the connection is gone")
            self._take_in(event)
            return
        held = self.stores[action.model].acquire()
        assert held.version == action.version.number, f"{action} but the store is at {held.version}"
        line.held = (action.model, held)
        if line.connection.is_open:
            size_bytes = self.state.models[action.model].spec.layout.size_bytes
            line.connection.move(
                self.host, line.caller.host, size_bytes, action.rate_bps, lambda: self._served(line, action, held)
            )

    def _served(self, line: _Line, action: act.ServeModel, held: Held) -> None:
        self.stores[action.model].release(held)
        line.held = line.get = None
        line.connection.send(End.NEAR, "MODEL", lambda: line.caller.model(action.version, held.value))
        self._take_in(act.GetServed(get=action.get, connection=action.connection))

    # The store

    def _forget(self, update: UpdateId) -> None:
        number = self.buffers.forget(update)
        line = self._lines.get(number) if number is not None else None
        filling = line is not None and line.update == update and line.connection.is_open
        assert not filling, f"{update} lost its buffer while connection {number} was filling it"

    def _install(self, action: act.InstallInitial) -> None:
        value = self.buffers.step(action.update)
        assert value is not None, "the first weights are finite here"
        self.stores[action.model].initialise(value)
        self._witness.installs(action.update)
        self._take_in(act.Installed(model=action.model, update=action.update))

    def _apply(self, action: act.ApplyStep) -> None:
        updates = self.state.models[action.model].updates.values()
        others = [t.update for t in updates if t.kind is UpdateKind.GRADIENT and t.update != action.update]
        self._witness.begins(action.update, action.version, others)
        step = self.buffers.step(action.update)
        delay_ns = self._world.pause_ns(STEP_NS)
        if step is None:
            detail = "the step is not finite"
            refused = act.StepRefused(model=action.model, update=action.update, detail=detail)
            self._world.later(delay_ns, f"{action.update} refused", lambda: self._take_in(refused))
        else:
            self.stores[action.model].begin(action.update, step)
            self._world.later(delay_ns, f"{action.update} applied", lambda: self._applied(action))

    def _applied(self, action: act.ApplyStep) -> None:
        store = self.stores[action.model]
        update = store.finish()
        assert store.version == action.version.number, f"{action} made version {store.version}"
        tau = action.version.number - 1 - self._witness.truths[update].computed_from.number
        self._witness.commits(update, action.version, tau)
        self._take_in(act.StepDone(model=action.model, update=action.update, step_norm=1.0))
