"""The simulated shell of a server that holds parts of models: steps are prepared, then committed or thrown away."""

from __future__ import annotations

from functools import partial

from mlfabric.protocol import GetId, ModelVersion, TransferId, UpdateId, UpdateKind
from mlfabric.server import actions as act
from mlfabric.simulator.double import Checkpoint, Held, StoreDouble
from mlfabric.simulator.exact import Image
from mlfabric.simulator.server import CHECKPOINT_EVERY, STEP_NS, SimulatedServer
from mlfabric.simulator.surroundings import Surroundings

__all__ = ["PartServer"]


class PartServer(SimulatedServer):
    """One server."""

    def __init__(self, around: Surroundings, name: str) -> None:
        super().__init__(around, name)
        self.common: dict[ModelVersion, list[Checkpoint]] = {}
        self._pinned: dict[GetId, tuple[StoreDouble, Held]] = {}
        self._preparing: dict[str, tuple[UpdateId, ...]] = {}

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
                self._pin(action)
            case act.UnpinModel():
                self._unpin(action.get)
            case _:
                super()._do(action)

    def _prepare(self, action: act.PrepareStep) -> None:
        incoming = self.state.models[action.model].incoming
        group = [incoming.transfers[transfer] for transfer in action.transfers]
        assert all(t.kind is UpdateKind.GRADIENT for t in group), f"initial weights are no unit: {action}"
        members = tuple(m.update for t in group for m in t.members)
        self._witness.begins(_applied(action), members, ())
        images = [self.buffers.image(transfer) for transfer in action.transfers]
        finite = [image for image in images if image is not None]
        culprits = self._culprits(action, images)
        delay_ns, store = self._world.pause_ns(STEP_NS), self.stores[action.model]
        outcome: act.PrepareRefused | act.StepPrepared
        if culprits:
            detail = "the step is not finite"
            outcome = act.PrepareRefused(model=action.model, unit=action.unit, detail=detail, culprits=culprits)
        else:
            store.begin(action, finite)
            self._preparing[action.model] = members
            outcome = act.StepPrepared(model=action.model, unit=action.unit)
        self._world.later(delay_ns, "prepared or refused", lambda: self._prepared(outcome, store))

    def _prepared(self, outcome: act.PrepareRefused | act.StepPrepared, store: StoreDouble) -> None:
        if self.stores.get(outcome.model) is store:
            self._take_in(outcome)

    def _culprits(self, action: act.PrepareStep, images: list[Image | None]) -> tuple[TransferId, ...]:
        incoming = self.state.models[action.model].incoming
        return tuple(
            transfer
            for transfer, image in zip(action.transfers, images, strict=True)
            if image is None or any(self._witness.is_huge(m.update) for m in incoming.transfers[transfer].members)
        )

    def _commit(self, action: act.CommitStep, store: StoreDouble) -> None:
        if not self.is_alive or self.stores.get(action.model) is not store:
            return
        order, members = store.finish(action.version.number), self._preparing[action.model]
        assert isinstance(order, act.PrepareStep), f"{order} is no step of a unit"
        assert (order.unit, order.transfers) == (action.unit, action.transfers), f"{action}, but prepared is {order}"
        self._witness.commits(members, _applied(order))
        expected = self._witness.weights(action.model, action.version.number)
        assert store.value == expected, f"{members} led to other weights than their steps do"
        self._take_in(act.StepDone(model=action.model, transfers=action.transfers, step_norm=1.0))
        if self._world.config.faults.rollback_hz and action.version.number % CHECKPOINT_EVERY == 0:
            self._save()

    def _discard(self, action: act.DiscardStep, store: StoreDouble) -> None:
        if not self.is_alive or self.stores.get(action.model) is not store:
            return
        store.discard()
        self._take_in(act.StepDiscarded(model=action.model, unit=action.unit))

    def _pin(self, action: act.PinModel) -> None:
        store = self.stores[action.model]
        assert action.get not in self._pinned, f"{action.get} is pinned twice"
        assert action.version.number == store.version, f"{action}; the part is at {store.version}"
        self._pinned[action.get] = store, store.acquire()

    def _unpin(self, get: GetId) -> None:
        store, held = self._pinned.pop(get)
        store.release(held)

    def _serve(self, action: act.ServeModel) -> None:
        _, held = self._pinned[action.get]
        assert held.version == action.version.number, f"{action}, but version {held.version} is pinned"
        if action.connection in self._lines:
            self._send_value(action, held.value, partial(self._unpin, action.get))
        else:
            self._unpin(action.get)
            self._cannot_send(action, "the connection is gone")


def _applied(order: act.PrepareStep) -> act.ApplyStep:
    """Return a step that is prepared as one that is applied in one go."""
    return act.ApplyStep(
        model=order.model, transfers=order.transfers, kind=order.kind, lrs=order.lrs, version=order.version
    )
