"""The simulated shell of a server: session, connections, stores. Does what ``server/service.py`` and its parts do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mlfabric.model.specs import NO_TERM, ModelSpec, Role, Term
from mlfabric.protocol import (
    Dropped,
    Expect,
    Followed,
    GetId,
    Instruction,
    MemberEvent,
    MemberJoined,
    ModelVersion,
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
from mlfabric.server.hosted import ServerConfig
from mlfabric.server.replica_actions import TakeOver
from mlfabric.server.served_models import weight_buffers
from mlfabric.server.state import ServerState
from mlfabric.server.transfers import IncomingTransfer
from mlfabric.simulator.calls import Calls
from mlfabric.simulator.double import Checkpoint, Held, StoreDouble, refusal_of
from mlfabric.simulator.payloads import Payload
from mlfabric.simulator.process_states import Process
from mlfabric.simulator.receiving import BufferedReceiver
from mlfabric.simulator.seeding import Copy, SimulatedSeeder, Turns
from mlfabric.simulator.surroundings import Surroundings
from mlfabric.simulator.witness import Witness

if TYPE_CHECKING:
    from mlfabric.simulator.replica import SimulatedReplica

__all__ = ["SimulatedServer"]

STEP_NS = 1_000_000
CHECKPOINT_EVERY = 4


class SimulatedServer(BufferedReceiver):
    """One server.

    Args:
        process: that it is in; None for a new one.
    """

    state: ServerState

    def __init__(self, around: Surroundings, name: str, process: Process | None = None) -> None:
        world = around.world
        super().__init__(around, name, 1, name, process or world.process(name, f"host of {name}"))
        budget = world.config.receive_updates * world.config.model_bytes
        copies = world.config.weight_copies
        self.state = ServerState(ServerConfig(name=name, receive_budget_bytes=budget, weight_copies=copies))
        self.stores: dict[str, StoreDouble] = {}
        self.promoted = self.succeeds = ""
        self._seen = NO_TERM
        self._is_deposed = False
        self._witness = around.witness
        self._commits = 0
        self.checkpoints: dict[str, Checkpoint] = {}
        self.common: dict[ModelVersion, list[Checkpoint]] = {}
        self._pinned: dict[GetId, tuple[StoreDouble, Held]] = {}
        self._preparing: dict[str, tuple[UpdateId, ...]] = {}
        self.epochs: dict[str, int] = {}
        self._shown_epochs: dict[str, int] = {}
        self._turns = Turns()
        self._ending: list[TransferId] = []
        self.seeder = SimulatedSeeder(world, Calls(world, self.process, around.book), self._turns, self._copied)
        self._doing |= {
            act.ApplyStep: self._apply,
            act.ServeModel: self._serve,
            act.InstallInitial: self._install,
            act.FreeStore: self._free,
            act.CreateStore: self._create,
            act.PrepareStep: self._prepare,
            act.CommitStep: lambda action: self._later(action.model, "committed", partial(self._commit, action)),
            act.DiscardStep: lambda action: self._later(action.model, "thrown away", partial(self._discard, action)),
            act.PinModel: lambda action: self._pin(action.get, action.model, action.version),
            act.UnpinModel: lambda action: self._unpin(action.get),
            act.Settled: lambda _: None,
        }
        around.flows.add_host(self.host, world.config.server_bps)

    def resume(self, former: SimulatedServer, address: str, checkpoints: Collection[Checkpoint]) -> None:
        """Begin, as a later process, with checkpoints, and show the server epoch that was written down last."""
        self.checkpoints = {checkpoint.holds.spec.name: checkpoint for checkpoint in checkpoints}
        held = [one.resumed() for one in checkpoints]
        self._begin_with(checkpoints, held, former.incarnation + 1, address)
        self.epochs = self._shown_epochs = {
            holds.spec.name: max(holds.version.epoch, former.epochs.get(holds.spec.name, 0)) for holds in held
        }

    def take_over(
        self, replica: SimulatedReplica, incarnation: int, action: TakeOver, begun: Callable[[SimulatedServer], None]
    ) -> None:
        """Begin, in the process of a replica, with what that has; ``begun`` is called when it is admitted first."""
        self.promoted = self.succeeds = replica.name
        self._begun = begun
        for held in action.holds:
            version, _ = replica.stores[held.spec.name]
            assert version == held.version.number, f"{replica.name} is at version {version}; it takes over {held}"
        kept = [Checkpoint(holds=held, weights=replica.stores[held.spec.name][1]) for held in action.holds]
        self._begin_with(
            kept, action.holds, incarnation, f"{replica.address}, as {action.server}, process {incarnation}"
        )
        self.epochs = {held.spec.name: held.version.epoch for held in action.holds}

    def _begin_with(
        self, kept: Collection[Checkpoint], holds: Sequence[ServerHolds], incarnation: int, address: str
    ) -> None:
        self.incarnation, self.address = incarnation, address
        for one in kept:
            self._create_store(one.holds.spec)
            self.stores[one.holds.spec.name].resume(one.holds.version.number, one.weights)
        self.state = ServerState(self.state.config, holds)

    def _create_store(self, spec: ModelSpec) -> None:
        self.stores[spec.name] = StoreDouble(weight_buffers(spec) + self._world.config.weight_copies, spec.rule)

    def die(self) -> None:
        """End the process: every connection breaks."""
        self.session.die()
        self.seeder.stop_all()
        self._end()

    # The session

    def joining(self) -> MemberJoined:
        """Return how it registers."""
        held = self.state.brings()
        return MemberJoined(
            member=self._member(Role.SERVER, self._world.config.server_bps, self._seen),
            held=tuple(h.spec for h in held),
            server_epochs=tuple(self._shown_epochs.get(h.spec.name, h.version.epoch) for h in held),
            promoted=self.promoted,
            succeeds=self.succeeds,
        )

    def refused(self, refusal: Refuse) -> bool:
        """End if another process has taken this one's place."""
        is_over = refusal.cause is RefuseReason.SUPERSEDED
        is_over |= self._is_deposed and refusal.cause is RefuseReason.NAME_TAKEN
        if is_over:
            self.die()
        return not is_over

    def depose(self, witness: Witness) -> None:
        """Let nothing count that it does from now on: another process has taken its place, and it may not know yet."""
        self._witness, self._is_deposed = witness, True

    def admitted(self, welcome: Welcome) -> list[MemberEvent]:
        """Begin under a scheduler; return what it announces."""
        if self.promoted:
            self.promoted = ""
            self._begun(self)
            for model in self.stores:
                self._keep_first(model)
        self._seen = Term(welcome.term, welcome.instance)
        self.seeder.stop_all()
        self._take_in(act.TermBegan(term=welcome.term, server_epoch=welcome.server_epoch))
        self._shown_epochs = {}
        return list(self.state.holds())

    def instructed(self, instruction: Instruction) -> None:
        """Take in an instruction."""
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
        super().instructed(instruction)

    # Events in, actions out

    def _rested(self) -> None:
        """Keep the epochs that began, as ``ServerService`` does, and check what is kept of transfers."""
        for name, model in self.state.models.items():
            self.epochs[name] = max(model.version.epoch, self._shown_epochs.get(name, 0))
        models = self.state.models.values()
        held = [t.transfer for model in models for t in model.incoming.transfers.values() if t.holds_buffer]
        held += self._ending
        assert len(held) == len(self.buffers), f"{len(self.buffers)} buffers are kept for {held}"

    def _may_be_lost(self, action: act.Answer) -> bool:
        return not any(isinstance(outcome, Dropped) for _, outcome in action.outcomes)

    def _report(self, action: act.Report) -> None:
        if isinstance(action.event, ServerHolds):
            self._witness.renews(action.event.spec.name, action.event.version)
            if action.event.spec.name in self.checkpoints:
                self._begin_checkpoint(action.event.spec.name)
        super()._report(action)

    def _create(self, action: act.CreateStore) -> None:
        self._witness.rules[action.spec.name] = action.spec.rule
        self._create_store(action.spec)

    def _free(self, action: act.FreeStore) -> None:
        self._ending += action.transfers
        self._turns.take(action.model, partial(self._free_in_turn, action))

    def _pin(self, get: GetId, model: str, version: ModelVersion) -> None:
        store = self.stores[model]
        assert get not in self._pinned, f"{get} is pinned twice"
        assert version.number == store.version, f"{get} is pinned at {version}; the store is at {store.version}"
        self._pinned[get] = store, store.acquire()

    def _unpin(self, get: GetId) -> None:
        store, held = self._pinned.pop(get)
        store.release(held)

    def _serve(self, action: act.ServeModel) -> None:
        if action.get not in self._pinned:
            self._pin(action.get, action.model, action.version)
        _, held = self._pinned[action.get]
        assert held.version == action.version.number, f"{action}, but version {held.version} is pinned"
        if action.connection not in self._lines:
            self._unpin(action.get)
            self._cannot_send(action, "the connection is gone")
            return
        size_bytes = self.state.models[action.model].spec.layout.size_bytes
        payload = Payload.whole((held.value,), size_bytes, self._lines[action.connection].caller.chunks)
        self._send_model(action, payload, partial(self._unpin, action.get))

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
        incoming = self.state.models[action.model].incoming.transfers
        rest = [t for t in incoming.values() if t.transfer not in action.transfers]
        others = [t.transfer for t in rest if t.kind is UpdateKind.GRADIENT]
        group = [incoming[transfer] for transfer in action.transfers]
        self._witness.begins(action, _members(group), others)
        self._turns.take(action.model, partial(self._step, action, group))

    def _step(self, action: act.ApplyStep, group: list[IncomingTransfer]) -> None:
        if not self.is_alive:
            return
        delay_ns = self._world.pause_ns(STEP_NS)
        if culprits := self._begin(action, group):
            refused = refusal_of(action, culprits)
            self._world.later(delay_ns, "refused", lambda: self._end_step(action.model, refused))
        else:
            self._world.later(delay_ns, "applied", lambda: self._applied(action, _members(group)))

    def _begin(self, order: act.ApplyStep | act.PrepareStep, group: list[IncomingTransfer]) -> tuple[TransferId, ...]:
        """Begin a step if it is finite; return which of its transfers are to blame if it is not."""
        images = {transfer: self.buffers.image(transfer) for transfer in order.transfers}
        culprits = tuple(t.transfer for t in group if images[t.transfer] is None or self._is_huge(t))
        if not culprits:
            self.stores[order.model].begin(order, [image for image in images.values() if image is not None])
        return culprits

    def _is_huge(self, transfer: IncomingTransfer) -> bool:
        return any(self._witness.is_huge(member.update) for member in transfer.members)

    def _made(self, action: act.ApplyStep, members: tuple[UpdateId, ...]) -> None:
        """Show the witness a step that was made, and compare what it led to."""
        self._witness.commits(members, action)
        expected = self._witness.weights(action.model, action.version.number)
        is_expected = self.stores[action.model].value == expected
        assert is_expected, f"{members} led to other weights than their single steps do"

    def _applied(self, action: act.ApplyStep, members: tuple[UpdateId, ...]) -> None:
        if not self.is_alive:
            return
        store = self.stores[action.model]
        before = store.version
        store.finish(action.version.number)
        self._made(action, members)
        norm = self._witness.leads.step_norm(action.model, before)
        self._end_step(action.model, act.StepDone(model=action.model, transfers=action.transfers, step_norm=norm))
        self._commits += 1
        if self._world.config.faults.kills_servers and self._commits % CHECKPOINT_EVERY == 0:
            self._turns.take(action.model, partial(self._checkpoint, action.model))

    def _free_in_turn(self, action: act.FreeStore) -> None:
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
        self.common.clear()

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

    # The store of a part: a step is prepared, then committed or thrown away

    def _later(self, model: str, what: str, act_on: Callable[[StoreDouble], None]) -> None:
        """Do something with a store after a while, if it is still there."""
        store = self.stores[model]

        def happen() -> None:
            if self.is_alive and self.stores.get(model) is store:
                act_on(store)

        self._world.later(self._world.pause_ns(STEP_NS), what, happen)

    def _prepare(self, action: act.PrepareStep) -> None:
        incoming = self.state.models[action.model].incoming.transfers
        group = [incoming[transfer] for transfer in action.transfers]
        assert all(t.kind is UpdateKind.GRADIENT for t in group), f"initial weights are no unit: {action}"
        members = self._preparing[action.model] = _members(group)
        self._witness.begins(_at_once(action), members, ())
        outcome: act.PrepareRefused | act.StepPrepared
        if culprits := self._begin(action, group):
            detail = "the step is not finite"
            outcome = act.PrepareRefused(model=action.model, unit=action.unit, detail=detail, culprits=culprits)
        else:
            outcome = act.StepPrepared(model=action.model, unit=action.unit)
        self._later(action.model, "prepared or refused", lambda store: self._take_in(outcome))

    def _commit(self, action: act.CommitStep, store: StoreDouble) -> None:
        order, members = store.finish(action.version.number), self._preparing[action.model]
        assert isinstance(order, act.PrepareStep), f"{order} is no step of a unit"
        assert (order.unit, order.transfers) == (action.unit, action.transfers), f"{action}, but prepared is {order}"
        self._made(_at_once(order), members)
        self._take_in(act.StepDone(model=action.model, transfers=action.transfers, step_norm=1.0))
        if self._world.config.faults.rollback_hz and action.version.number % CHECKPOINT_EVERY == 0:
            self._keep_common()

    def _discard(self, action: act.DiscardStep, store: StoreDouble) -> None:
        store.discard()
        self._take_in(act.StepDiscarded(model=action.model, unit=action.unit))

    def _keep_common(self) -> None:
        """Write a checkpoint of the part that is here, as it is now, if the disk is not full."""
        if self._world.has_full_disk(self.host):
            return
        kept = [Checkpoint(holds=h, weights=self.stores[h.spec.name].weights) for h in self.state.holds()]
        assert len({c.holds.version for c in kept}) == 1, "a server has one part"
        self.common[kept[0].holds.version] = kept


def _members(group: Sequence[IncomingTransfer]) -> tuple[UpdateId, ...]:
    return tuple(member.update for transfer in group for member in transfer.members)


def _at_once(order: act.PrepareStep) -> act.ApplyStep:
    """Return a step that is prepared as one that is applied in one go."""
    return act.ApplyStep(
        model=order.model, transfers=order.transfers, kind=order.kind, lrs=order.lrs, version=order.version
    )
