"""The simulated shell of a server: session, connections, stores. Does what ``server/service.py`` and its parts do."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from mlfabric.protocol import (
    Dropped,
    Expect,
    Followed,
    Instruction,
    MemberEvent,
    MemberJoined,
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
from mlfabric.simulator.calls import Calls
from mlfabric.simulator.double import Checkpoint, StoreDouble, refusal_of
from mlfabric.simulator.payloads import Payload
from mlfabric.simulator.processes import Process
from mlfabric.simulator.receiving import BufferedReceiver
from mlfabric.simulator.seeding import Copy, SimulatedSeeder, Turns
from mlfabric.simulator.session import Session, SessionCallbacks
from mlfabric.simulator.surroundings import Surroundings
from mlfabric.simulator.witness import Witness
from mlfabric.specs import NO_TERM, Role, Term

__all__ = ["SimulatedServer"]

STEP_NS = 1_000_000
CHECKPOINT_EVERY = 4


class SimulatedServer(BufferedReceiver):
    """One server.

    Args:
        process: that it is in; None for a new one.
    """

    def __init__(self, around: Surroundings, name: str, process: Process | None = None) -> None:
        super().__init__(around, name, incarnation=1, address=name)
        world = around.world
        budget = world.config.receive_updates * world.config.model_bytes
        copies = world.config.weight_copies
        self.state = ServerState(ServerConfig(name=name, receive_budget_bytes=budget, weight_copies=copies))
        self.stores: dict[str, StoreDouble] = {}
        self.promoted = self.succeeds = ""
        self._seen = NO_TERM
        self._is_deposed = False
        callbacks = SessionCallbacks(
            joining=self._joining, admitted=self._admitted, instructed=self._instructed, refused=self._refused
        )
        process = process or world.process(name, f"host of {name}")
        self.session = Session(world, around.scheduler, name, process, callbacks)
        self._witness = around.witness
        self._commits = 0
        self.checkpoints: dict[str, Checkpoint] = {}
        self.epochs: dict[str, int] = {}
        self._shown_epochs: dict[str, int] = {}
        self._turns = Turns()
        self._ending: list[TransferId] = []
        self.seeder = SimulatedSeeder(world, Calls(world, self.process, around.book), self._turns, self._copied)
        self._drive(self.state, self._do, self._after_event)
        around.flows.add_host(self.host, world.config.server_bps)

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
        self._drive(self.state, self._do, self._after_event)

    def die(self) -> None:
        """End the process: every connection breaks."""
        self.session.die()
        self.seeder.stop_all()
        self._end()

    # The session

    def _joining(self) -> MemberJoined:
        held = self.state.brings()
        return MemberJoined(
            member=self._member(Role.SERVER, self._world.config.server_bps, self._seen),
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
        super()._instructed(instruction)

    # Events in, actions out

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
                dropped = any(isinstance(outcome, Dropped) for _, outcome in action.outcomes)
                self._answer(action, may_be_lost=not dropped)
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

    def _serve(self, action: act.ServeModel) -> None:
        if action.connection not in self._lines:
            self._cannot_send(action, "the connection is gone")
            return
        store = self.stores[action.model]
        held = store.acquire()
        assert held.version == action.version.number, f"{action} but the store is at {held.version}"
        self._send_value(action, held.value, partial(store.release, held))

    def _send_value(self, action: act.ServeModel, value: int, over: Callable[[], None]) -> None:
        size_bytes = self.state.models[action.model].spec.layout.size_bytes
        chunks = self._lines[action.connection].caller.chunks
        self._send_model(action, Payload.whole((value,), size_bytes, chunks), over)

    # The store

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
