"""The simulated shell of a server: session, connections, stores. Does what ``server/service.py`` and its parts do."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from mlfabric.protocol import (
    Dropped,
    Expect,
    Followed,
    GetId,
    Instruction,
    MemberEvent,
    MemberJoined,
    MonitorAt,
    Refuse,
    RefuseReason,
    Seed,
    ServerHolds,
    TransferId,
    Unfollowed,
    UpdateId,
    UpdateKind,
    Welcome,
)
from mlfabric.server import actions as act
from mlfabric.server.serving import weight_buffers
from mlfabric.server.state import ServerConfig, ServerState
from mlfabric.server.transfers import IncomingTransfer
from mlfabric.simulator.calls import Book, Caller
from mlfabric.simulator.double import Held, ReceiveBuffers, StoreDouble, refusal_of
from mlfabric.simulator.driving import SimulatedDriver
from mlfabric.simulator.exact import Image
from mlfabric.simulator.flows import Flows
from mlfabric.simulator.lines import Connection, End
from mlfabric.simulator.parts import Checkpoint
from mlfabric.simulator.payloads import Feed, Payload, Way
from mlfabric.simulator.processes import Process
from mlfabric.simulator.seeding import Copy, SimulatedSeeder, Turns
from mlfabric.simulator.session import Listener, Session, SessionCallbacks
from mlfabric.simulator.witness import Witness
from mlfabric.simulator.world import World
from mlfabric.specs import NO_TERM, Member, Role, Term

__all__ = ["SimulatedServer"]

STEP_NS = 1_000_000
CHECKPOINT_EVERY = 4


@dataclass(slots=True, eq=False)
class _Line:
    """One connection and the transfer that it carries."""

    connection: Connection
    caller: Caller
    transfer: TransferId | None = None
    get: GetId | None = None
    held: tuple[StoreDouble, Held] | None = None
    whole: dict[int, Image | None] = field(default_factory=dict)


class SimulatedServer:
    """One server.

    Args:
        process: that it is in; None for a new one.
    """

    chunks = 1

    def __init__(
        self,
        world: World,
        flows: Flows,
        scheduler: Listener,
        witness: Witness,
        book: Book,
        name: str,
        process: Process | None = None,
    ) -> None:
        self.name = name
        self.incarnation = 1
        self.address = name
        process = process or world.process(name, f"host of {name}")
        self.host = process.host
        budget = world.config.receive_updates * world.config.model_bytes
        copies = world.config.weight_copies
        self.state = ServerState(ServerConfig(name=name, receive_budget_bytes=budget, weight_copies=copies))
        self.stores: dict[str, StoreDouble] = {}
        self.buffers = ReceiveBuffers()
        self.promoted = self.succeeds = ""
        self._seen = NO_TERM
        self._is_deposed = False
        callbacks = SessionCallbacks(
            joining=self._joining, admitted=self._admitted, instructed=self._instructed, refused=self._refused
        )
        self.session = Session(world, scheduler, name, process, callbacks)
        self._world = world
        self._flows = flows
        self._witness = witness
        self._lines: dict[int, _Line] = {}
        self._numbers = 0
        self._commits = 0
        self.checkpoints: dict[str, Checkpoint] = {}
        self.epochs: dict[str, int] = {}
        self._shown_epochs: dict[str, int] = {}
        self._turns = Turns()
        self._ending: list[TransferId] = []
        self.seeder = SimulatedSeeder(world, self.process, book, self._turns, self._copied)
        self._driver = self._drive()
        flows.add_host(self.host, world.config.server_bps)

    @property
    def process(self) -> Process:
        """Return the process."""
        return self.session.process

    @property
    def is_alive(self) -> bool:
        """Tell whether its process runs."""
        return self.session.is_alive

    def resume(self, former: SimulatedServer, address: str, checkpoints: Collection[Checkpoint]) -> None:
        """Begin, as a later process, with checkpoints, and show the server epoch that was written down last."""
        for checkpoint in checkpoints:
            spec = checkpoint.holds.spec
            limit = weight_buffers(spec) + self._world.config.weight_copies
            self.stores[spec.name] = StoreDouble(limit, spec.rule)
            self.stores[spec.name].resume(checkpoint.holds.version.number, checkpoint.weights)
        self._begin_again(former, address, checkpoints)

    def _begin_again(self, former: SimulatedServer, address: str, checkpoints: Collection[Checkpoint]) -> None:
        self.incarnation, self.address = former.incarnation + 1, address
        self.checkpoints = {checkpoint.holds.spec.name: checkpoint for checkpoint in checkpoints}
        held = [one.resumed() for one in self.checkpoints.values()]
        self.epochs = self._shown_epochs = {
            holds.spec.name: max(holds.version.epoch, former.epochs.get(holds.spec.name, 0)) for holds in held
        }
        self.state = ServerState(self.state.config, held)
        self._driver = self._drive()

    def die(self) -> None:
        """End the process: every connection breaks."""
        self.session.die()
        self.seeder.stop_all()
        for line in self._lines.values():
            line.connection.close(End.FAR)
        self._lines.clear()
        self._driver.close()

    # The session

    def _joining(self) -> MemberJoined:
        bps = self._world.config.server_bps
        member = Member(
            name=self.name,
            role=Role.SERVER,
            incarnation=self.incarnation,
            host=self.host,
            address=self.address,
            up_bps=bps,
            down_bps=bps,
            seen=self._seen,
        )
        held = self.state.brings()
        return MemberJoined(
            member=member,
            held=tuple(h.spec for h in held),
            server_epochs=tuple(self._shown_epochs.get(h.spec.name, h.version.epoch) for h in held),
            promoted=self.promoted,
            succeeds=self.succeeds,
        )

    def _refused(self, refusal: Refuse) -> bool:
        """End if another process has taken this one's place."""
        is_over = refusal.cause is RefuseReason.SUPERSEDED
        is_over |= self._is_deposed and refusal.cause is RefuseReason.NAME_TAKEN
        if is_over:
            self.die()
        return not is_over

    def depose(self, witness: Witness) -> None:
        """Let nothing count that it does from now on: another process has taken its place, and it may not know yet."""
        self._witness, self._is_deposed = witness, True

    def _admitted(self, welcome: Welcome) -> list[MemberEvent]:
        self._seen = Term(welcome.epoch, welcome.instance)
        self.seeder.stop_all()
        self._take_in(act.EpochBegan(epoch=welcome.epoch, server_epoch=welcome.server_epoch))
        self._shown_epochs = {}
        return list(self.state.holds())

    def _instructed(self, instruction: Instruction) -> None:
        match instruction:
            case Expect():
                self._witness.expected(instruction)
            case Seed():
                self.seeder.send(instruction)
                return
            case Followed():
                self._take_in(instruction)
                self._witness.leads.followed(instruction)
                return
            case Unfollowed():
                self.seeder.stop(instruction.model)
                self._witness.leads.unfollowed(instruction.model)
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

        connection = Connection(self._world, self._flows, number, name, ended, caller.process, self.process)
        self._lines[number] = _Line(connection, caller)
        return connection

    def offered(
        self, number: int, transfer: TransferId, ticket: bytes, length: int, digest: int, whole: dict[int, Image | None]
    ) -> None:
        """Read an OFFER frame."""
        line = self._lines[number]
        line.transfer, line.whole = transfer, whole
        event = act.Offered(connection=number, transfer=transfer, ticket=ticket, length=length, digest=digest)
        self._take_in(event)

    def payload(self, number: int, place: int, chunk: Image | None) -> None:
        """Read a chunk of a payload."""
        line = self._lines[number]
        assert line.transfer is not None, "a payload came that was not granted"
        self.buffers.put(line.transfer, number, place, chunk)

    def sealed(self, number: int) -> None:
        """Read the seal of a payload."""
        line = self._lines[number]
        assert line.transfer is not None, "a seal came for what was not granted"
        self.buffers.seal(line.transfer, number)
        self._take_in(act.PayloadReceived(transfer=line.transfer, connection=number))

    def taken_back(self, number: int) -> None:
        """Read a REFUSE frame: the connection ends with it."""
        self._lines[number].connection.close(End.FAR)
        self._broke(number)

    def wanted(self, number: int, get: GetId, ticket: bytes) -> None:
        """Read a WANT frame."""
        self._lines[number].get = get
        self._take_in(act.Wanted(connection=number, get=get, ticket=ticket))

    def _broke(self, number: int) -> None:
        line = self._lines.pop(number)
        if line.transfer is not None:
            self._take_in(act.TransferBroken(transfer=line.transfer, connection=number, detail="it broke"))
        if line.get is not None:
            if line.held is not None:
                store, held = line.held
                store.release(held)
            self._take_in(act.GetBroken(get=line.get, connection=number, detail="it broke"))

    # Events in, actions out

    def _drive(self) -> SimulatedDriver[act.ServerEvent, act.Action]:
        return SimulatedDriver(
            self._world, self.process, self.state, self._do, self._after_event, lambda: self.session.is_alive
        )

    def _take_in(self, event: act.ServerEvent) -> None:
        self._driver.take_in(event)

    def _after_event(self) -> None:
        """Keep the epochs that began, as ``ServerService`` does, and check what is kept of transfers."""
        for name, model in self.state.models.items():
            self.epochs[name] = max(model.version.epoch, self._shown_epochs.get(name, 0))
        models = self.state.models.values()
        held = [t.transfer for model in models for t in model.incoming.transfers.values() if t.holds_buffer]
        held += self._ending
        assert len(held) == len(self.buffers), f"{len(self.buffers)} buffers are kept for {held}"

    def _do(self, action: act.Action) -> None:
        match action:
            case act.Grant():
                self._grant(action)
            case act.ApplyStep():
                self._apply(action)
            case act.Answer():
                self._answer(action)
            case act.Report():
                if isinstance(action.event, ServerHolds):
                    self._witness.renews(action.event.spec.name, action.event.version)
                    if action.event.spec.name in self.checkpoints:
                        self._begin_checkpoint(action.event.spec.name)
                self.session.send(action.event)
            case act.ServeModel():
                self._serve(action)
            case act.Forget():
                self._forget(action.transfer)
            case act.Refuse():
                self._refuse(action)
            case act.Abandon():
                self._abandon(action.connection)
            case act.InstallInitial():
                self._install(action)
            case act.FreeStore():
                self._ending += action.transfers
                self._turns.take(action.model, partial(self._free, action))
            case act.CreateStore():
                self._witness.rules[action.spec.name] = action.spec.rule
                limit = weight_buffers(action.spec) + self._world.config.weight_copies
                self.stores[action.spec.name] = StoreDouble(limit, action.spec.rule)

    # Frames out

    def _grant(self, action: act.Grant) -> None:
        line = self._lines[action.connection]
        self.buffers.reserve(action.transfer, action.connection)
        if not line.whole:
            line.connection.send(End.NEAR, "GRANT", line.caller.granted)
            return
        for place, chunk in line.whole.items():
            self.buffers.put(action.transfer, action.connection, place, chunk)
        self.buffers.seal(action.transfer, action.connection)
        self._take_in(act.PayloadReceived(transfer=action.transfer, connection=action.connection))

    def _answer(self, action: act.Answer) -> None:
        line = self._lines.get(action.connection)
        if line is None:
            return
        line.transfer = None
        outcomes = dict(action.outcomes)
        dropped = any(isinstance(outcome, Dropped) for outcome in outcomes.values())
        if not dropped and self._world.chance(self._world.config.faults.outcome_lost):
            self._world.fault("outcome lost", action.outcomes)
            line.connection.break_up()
        line.connection.send(End.NEAR, "OUTCOME", lambda: line.caller.answered(outcomes))

    def _refuse(self, action: act.Refuse) -> None:
        line = self._lines.get(action.connection)
        if line is not None:
            line.transfer = None
            line.get = None
            line.connection.send(End.NEAR, "REFUSE", lambda: line.caller.refused(action.reason))

    def _abandon(self, number: int) -> None:
        line = self._lines.get(number)
        if line is not None:
            line.transfer = None
            line.connection.close(End.FAR)

    def _serve(self, action: act.ServeModel) -> None:
        line = self._lines.get(action.connection)
        if line is None:
            event = act.GetBroken(get=action.get, connection=action.connection, detail="the connection is gone")
            self._take_in(event)
            return
        store = self.stores[action.model]
        held = store.acquire()
        assert held.version == action.version.number, f"{action} but the store is at {held.version}"
        line.held = (store, held)
        caller, size_bytes = line.caller, self.state.models[action.model].spec.layout.size_bytes
        line.connection.send(End.NEAR, "MODEL", partial(caller.comes, action.version))
        way = Way(source=self.host, destination=caller.process.host, towards=End.NEAR, pace_bps=action.rate_bps)
        payload = Payload.whole((held.value,), size_bytes, caller.chunks)
        Feed(line.connection, way, payload, caller.payload, lambda: self._served(line, action, store, held))

    def _served(self, line: _Line, action: act.ServeModel, store: StoreDouble, held: Held) -> None:
        store.release(held)
        line.held = line.get = None
        self._take_in(act.GetServed(get=action.get, connection=action.connection))

    # The store

    def _forget(self, transfer: TransferId) -> None:
        number = self.buffers.forget(transfer)
        line = self._lines.get(number) if number is not None else None
        filling = line is not None and line.transfer == transfer and line.connection.is_open
        assert not filling, f"{transfer} lost its buffer while connection {number} was filling it"

    def _install(self, action: act.InstallInitial) -> None:
        image = self.buffers.image(action.update)
        assert image is not None, "the first weights are finite here"
        self.stores[action.model].initialise(image[0])
        self._witness.installs(action.update, self.state.models[action.model].version)
        self._take_in(act.Installed(model=action.model, update=action.update))
        self._keep_first(action.model)

    def _keep_first(self, model: str) -> None:
        if self._world.config.faults.kills_servers:
            self._world.later(0, f"first checkpoint of {model}", partial(self._begin_checkpoint, model))

    def _apply(self, action: act.ApplyStep) -> None:
        incoming = self.state.models[action.model].incoming
        group = [incoming.transfers[transfer] for transfer in action.transfers]
        rest = [t for t in incoming.transfers.values() if t.transfer not in action.transfers]
        others = [t.transfer for t in rest if t.kind is UpdateKind.GRADIENT]
        members = tuple(m.update for t in group for m in t.members)
        self._witness.begins(action, members, others)
        self._turns.take(action.model, partial(self._step, action, group, members))

    def _step(self, action: act.ApplyStep, group: list[IncomingTransfer], members: tuple[UpdateId, ...]) -> None:
        if not self.is_alive:
            return
        delay_ns = self._world.pause_ns(STEP_NS)
        images = [self.buffers.image(transfer) for transfer in action.transfers]
        finite = [image for image in images if image is not None]
        huge = tuple(t.transfer for t in group if any(self._witness.is_huge(m.update) for m in t.members))
        if huge or len(finite) < len(images):
            refused = refusal_of(action, images, huge)
            self._world.later(delay_ns, "refused", lambda: self._end_step(action.model, refused))
        else:
            self.stores[action.model].begin(action, finite)
            self._world.later(delay_ns, "applied", lambda: self._applied(action, members))

    def _applied(self, action: act.ApplyStep, members: tuple[UpdateId, ...]) -> None:
        if not self.is_alive:
            return
        store = self.stores[action.model]
        before = store.version
        store.finish(action.version.number)
        self._witness.commits(members, action)
        expected = self._witness.weights(action.model, action.version.number)
        assert store.value == expected, f"{members} led to other weights than their single steps do"
        norm = self._witness.leads.step_norm(action.model, before)
        self._end_step(action.model, act.StepDone(model=action.model, transfers=action.transfers, step_norm=norm))
        self._commits += 1
        if self._world.config.faults.kills_servers and self._commits % CHECKPOINT_EVERY == 0:
            self._turns.take(action.model, partial(self._checkpoint, action.model))

    def _free(self, action: act.FreeStore) -> None:
        """Hold nothing of a model any more, once no step of it runs; a deposed server that is told so ends here."""
        if self._is_deposed:
            self.die()
        if not self.is_alive:
            return
        self.stores.pop(action.model, None)
        self._set_aside(action.model)
        for transfer in action.transfers:
            self._ending.remove(transfer)
            self.buffers.forget(transfer)
        self._witness.ends(action.model)
        self._turns.done(action.model)
        self._take_in(act.StoreFreed(model=action.model))

    def _set_aside(self, model: str) -> None:
        """Go on no more from checkpoints of a model."""
        self.checkpoints.pop(model, None)

    def _begin_checkpoint(self, model: str) -> None:
        if self.is_alive:
            self._turns.take(model, partial(self._checkpoint, model))

    def _checkpoint(self, model: str) -> None:
        """Write a checkpoint of a model between two steps, if the disk is not full."""
        if model in self.state.models and not self._world.has_full_disk(self.host):
            holds, weights = self.state.models[model].holds(), self.stores[model].weights
            self.checkpoints[model] = Checkpoint(holds=holds, weights=weights)
        self._turns.done(model)

    def _end_step(self, model: str, event: act.StepDone | act.StepRefused) -> None:
        self._witness.leads.ends(model)
        self._take_in(event)
        self._turns.done(model)

    def _copied(self, model: str) -> Copy:
        """Copy a model between two steps, for its replica."""
        motion = self._witness.leads.seed_taken(model)
        hosted, store = self.state.models[model], self.stores[model]
        copy = Copy(hosted.holds(), store.weights, motion, hosted.spec.rule)
        self._take_in(copy.taken())
        return copy
