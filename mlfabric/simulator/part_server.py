"""The simulated shell of a server that holds parts of models: steps are prepared, then committed or thrown away."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from mlfabric.protocol import ModelVersion, TransferId, UpdateId, UpdateKind
from mlfabric.server import actions as act
from mlfabric.simulator.calls import Book
from mlfabric.simulator.exact import Image
from mlfabric.simulator.flows import Flows
from mlfabric.simulator.lines import End
from mlfabric.simulator.parts import Checkpoint, PartStore, step_of
from mlfabric.simulator.payloads import Feed, Payload, Way
from mlfabric.simulator.server import CHECKPOINT_EVERY, STEP_NS, SimulatedServer
from mlfabric.simulator.session import Listener
from mlfabric.simulator.witness import Witness
from mlfabric.simulator.world import World

__all__ = ["PartServer"]


class PartServer(SimulatedServer):
    """One server."""

    stores: dict[str, PartStore]  # type: ignore[assignment]

    def __init__(
        self, world: World, flows: Flows, scheduler: Listener, witness: Witness, book: Book, name: str
    ) -> None:
        super().__init__(world, flows, scheduler, witness, book, name)
        self._sending: dict[int, act.ServeModel] = {}
        self.common: dict[ModelVersion, list[Checkpoint]] = {}

    def resume(self, former: SimulatedServer, address: str, checkpoints: Collection[Checkpoint]) -> None:
        """Begin, as a later process, with checkpoints."""
        for checkpoint in checkpoints:
            spec = checkpoint.holds.spec
            self.stores[spec.name] = PartStore(spec.rule)
            self.stores[spec.name].resume(checkpoint)
        self._begin_again(former, address, checkpoints)

    def _set_aside(self, model: str) -> None:
        super()._set_aside(model)
        self.common.clear()

    def _save(self) -> None:
        """Write a checkpoint of the part that is here, as it is now, if the disk is not full."""
        if self._world.has_full_disk(self.host):
            return
        kept = [Checkpoint(holds=h, weights=self.stores[h.spec.name].weights) for h in self.state.holds()]
        assert len({c.holds.version for c in kept}) == 1, "a server has one part"
        self.common[kept[0].holds.version] = kept

    def _do(self, action: act.Action) -> None:
        match action:
            case act.PrepareStep():
                self._prepare(action)
            case act.CommitStep():
                delay_ns = self._world.pause_ns(STEP_NS)
                store = self.stores[action.model]
                self._world.later(delay_ns, "committed", lambda: self._commit(action, store))
            case act.DiscardStep():
                delay_ns = self._world.pause_ns(STEP_NS)
                store = self.stores[action.model]
                self._world.later(delay_ns, "thrown away", lambda: self._discard(action, store))
            case act.PinModel():
                self.stores[action.model].pin(action.get, action.version.number)
            case act.UnpinModel():
                self.stores[action.model].unpin(action.get)
            case act.CreateStore():
                self._witness.rules[action.spec.name] = action.spec.rule
                self.stores[action.spec.name] = PartStore(action.spec.rule)
            case _:
                super()._do(action)

    def _prepare(self, action: act.PrepareStep) -> None:
        incoming = self.state.models[action.model].incoming
        group = [incoming.transfers[transfer] for transfer in action.transfers]
        assert all(t.kind is UpdateKind.GRADIENT for t in group), f"initial weights are no unit: {action}"
        members = tuple(m.update for t in group for m in t.members)
        self._witness.begins(step_of(action), members, ())
        images = [self.buffers.image(transfer) for transfer in action.transfers]
        finite = [image for image in images if image is not None]
        culprits = self._culprits(action, images)
        delay_ns, store = self._world.pause_ns(STEP_NS), self.stores[action.model]
        outcome: act.PrepareRefused | act.StepPrepared
        if culprits:
            detail = "the step is not finite"
            outcome = act.PrepareRefused(model=action.model, unit=action.unit, detail=detail, culprits=culprits)
        else:
            store.prepare(action, members, finite)
            outcome = act.StepPrepared(model=action.model, unit=action.unit)
        self._world.later(delay_ns, "prepared or refused", lambda: self._prepared(outcome, store))

    def _prepared(self, outcome: act.PrepareRefused | act.StepPrepared, store: PartStore) -> None:
        if self.stores.get(outcome.model) is store:
            self._take_in(outcome)

    def _culprits(self, action: act.PrepareStep, images: list[Image | None]) -> tuple[TransferId, ...]:
        incoming = self.state.models[action.model].incoming
        return tuple(
            transfer
            for transfer, image in zip(action.transfers, images, strict=True)
            if image is None or any(self._witness.is_huge(m.update) for m in incoming.transfers[transfer].members)
        )

    def _commit(self, action: act.CommitStep, store: PartStore) -> None:
        if not self.is_alive or self.stores.get(action.model) is not store:
            return
        prepared = store.commit(action)
        self._witness.commits(prepared.members, step_of(prepared.order))
        expected = self._witness.weights(action.model, action.version.number)
        members: tuple[UpdateId, ...] = prepared.members
        assert store.value == expected, f"{members} led to other weights than their steps do"
        self._take_in(act.StepDone(model=action.model, transfers=action.transfers, step_norm=1.0))
        if self._world.config.faults.rollback_hz and action.version.number % CHECKPOINT_EVERY == 0:
            self._save()

    def _discard(self, action: act.DiscardStep, store: PartStore) -> None:
        if not self.is_alive or self.stores.get(action.model) is not store:
            return
        store.discard()
        self._take_in(act.StepDiscarded(model=action.model, unit=action.unit))

    # Serving

    def _serve(self, action: act.ServeModel) -> None:
        line, store = self._lines.get(action.connection), self.stores[action.model]
        if line is None:
            store.unpin(action.get)
            self._take_in(act.GetBroken(get=action.get, connection=action.connection, detail="the connection is gone"))
            return
        version, value = store.pinned(action.get)
        assert version == action.version.number, f"{action}, but version {version} is pinned"
        caller, size_bytes = line.caller, self.state.models[action.model].spec.layout.size_bytes
        line.connection.send(End.NEAR, "MODEL", partial(caller.comes, action.version))
        way = Way(source=self.host, destination=caller.process.host, towards=End.NEAR, pace_bps=action.rate_bps)
        payload = Payload.whole((value,), size_bytes, caller.chunks)
        self._sending[action.connection] = action
        Feed(line.connection, way, payload, caller.payload, lambda: self._sent(action))

    def _sent(self, action: act.ServeModel) -> None:
        del self._sending[action.connection]
        self.stores[action.model].unpin(action.get)
        self._lines[action.connection].get = None
        self._take_in(act.GetServed(get=action.get, connection=action.connection))

    def _broke(self, number: int) -> None:
        if (action := self._sending.pop(number, None)) is not None:
            self.stores[action.model].unpin(action.get)
        super()._broke(number)
