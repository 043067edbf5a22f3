"""The simulated shell of a worker whose model is cut: every push and get is one for each part."""

from __future__ import annotations

from dataclasses import replace

from mlfabric.protocol import (
    GetId,
    GetRequested,
    MemberEvent,
    ModelVersion,
    PushRequested,
    UpdateId,
    UpdateKind,
    Welcome,
)
from mlfabric.simulator.part_witness import PartWitness
from mlfabric.simulator.witness import Oddity, Truth
from mlfabric.simulator.worker import Place, SimulatedWorker
from mlfabric.simulator.world import World
from mlfabric.specs import Layout
from mlfabric.worker_daemon import actions as act

__all__ = ["PartWorker"]

OF_ALL_PARTS = (Oddity.NONE, Oddity.NAN, Oddity.FUTURE)
"""What is said of a whole push; anything else is wrong with one part."""


class PartWorker(SimulatedWorker):
    """One process of a worker."""

    def __init__(self, world: World, place: Place) -> None:
        super().__init__(world, place)
        self._shards = place.spec.shards
        self._specs = [place.spec.of_shard(shard) for shard in range(self._shards)]

    @property
    def _parts_witness(self) -> PartWitness:
        witness = self.place.witness
        assert isinstance(witness, PartWitness), "a model that is cut has a witness of its parts"
        return witness

    # The session

    def _admitted(self, welcome: Welcome) -> list[MemberEvent]:
        self._take_in(act.EpochBegan(epoch=welcome.epoch))
        return super()._admitted(welcome)

    # Training

    def _layout_of(self, update: UpdateId) -> Layout:
        return self._specs[update.counter % self._shards].layout

    def _get(self, after: UpdateId | None) -> None:
        first = self._gets * self._shards
        self._gets += 1
        self._lanes[GetId(self.place.name, self.place.incarnation, first)] = after
        for shard, spec in enumerate(self._specs):
            follows = None if after is None else self._parts_witness.parts_of(after)[shard]
            get = GetId(self.place.name, self.place.incarnation, first + shard)
            request = GetRequested(get=get, model=spec.name, min_version=ModelVersion(0, 0), after_update=follows)
            self._take_in(act.GetCalled(request=request))

    def _push(self, version: ModelVersion, kind: UpdateKind, oddity: Oddity) -> UpdateId:
        push = UpdateId(self.place.name, self.place.incarnation, self._updates)
        self._updates += 1
        claimed = ModelVersion(version.epoch, version.number + 1000) if oddity is Oddity.FUTURE else version
        truth = Truth(model="", step=self._world.rng.getrandbits(64), computed_from=claimed, kind=kind, oddity=oddity)
        norm = float("nan") if oddity is Oddity.NAN else self._world.rng.expovariate(1.0)
        odd = self._world.rng.randrange(self._shards)
        for shard, update in enumerate(self._parts_witness.parts_of(push)):
            own = oddity if oddity in OF_ALL_PARTS or shard == odd else Oddity.NONE
            self.place.witness.truths[update] = replace(truth, model=self._specs[shard].name, oddity=own)
        for shard, update in enumerate(self._parts_witness.parts_of(push)):
            size_bytes = self._specs[shard].layout.size_bytes
            is_wrong = self.place.witness.truths[update].oddity is Oddity.SIZE
            request = PushRequested(
                update=update,
                model=self._specs[shard].name,
                size_bytes=size_bytes + 16 if is_wrong else size_bytes,
                computed_from=claimed,
                norm=norm,
                kind=kind,
            )
            self._take_in(act.PushCalled(request=request))
        return push

    # Actions out

    def _do(self, action: act.Action) -> None:
        match action:
            case act.Settle():
                self._parts_witness.learns_parts(self._parts_witness.push_of(action.update), action.outcome)
                self._leave_if_done()
            case act.FailPush():
                raise AssertionError(action.reason)
            case act.Deliver():
                self._deliver(action)
            case _:
                super()._do(action)

    def _deliver(self, action: act.Deliver) -> None:
        after, first = self._lanes.pop(action.get), action.get
        gets = [first._replace(counter=first.counter + shard) for shard in range(self._shards)]
        values = [self._attempts.values.pop(get) for get in gets]
        self._parts_witness.delivers_parts(action.get, self.place.spec.name, action.version, values, after)
        self._compute(action.version)
