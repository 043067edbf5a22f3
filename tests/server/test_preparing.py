"""Steps of a part of a model in a server: prepared in a copy, then committed or thrown away; pinned versions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from mlfabric.protocol import GetId, ModelVersion, SumId, TransferId, UpdateId
from mlfabric.server import actions as act
from mlfabric.server.stores import Stores
from mlfabric.specs import Layout, ModelSpec, TensorSpec
from tests.server.models import draw, image_of, layout_of, spec_of, store_of, weights_of

A, B, C = (UpdateId(name, 1, 0) for name in "abc")
G, H = GetId("a", 1, 0), GetId("b", 1, 0)
LAYOUT = layout_of("float64")


class Rack:
    """Stores that hold one model, and what they said."""

    def __init__(self, spec: ModelSpec) -> None:
        self.said: list[Any] = []
        self.stores = Stores(self.said.append, None)
        self.stores.add(spec, store_of(spec))
        self.layout = spec.layout

    def put(self, name: TransferId, seed: int, **bad: float) -> None:
        tensors = draw(self.layout, seed)
        for tensor, value in bad.items():
            tensors[tensor][0] = value
        image = image_of(self.layout, tensors)
        self.stores.reserve(name, image.nbytes)[:] = image

    def prepare(self, *names: TransferId, kind: act.StepKind = act.StepKind.ONE, version: int = 1) -> Any:
        step = act.PrepareStep(
            model="net",
            unit=version,
            transfers=names,
            kind=kind,
            lrs=(0.1,) * len(names),
            version=ModelVersion(1, version),
        )
        self.stores.prepare(step)
        return self.said.pop()

    def commit(self, *names: TransferId, version: int = 1) -> Any:
        made = ModelVersion(1, version)
        self.stores.commit(act.CommitStep(model="net", unit=version, transfers=names, version=made))
        return self.said.pop()

    def discard(self, unit: int = 1) -> Any:
        self.stores.discard(act.DiscardStep(model="net", unit=unit))
        return self.said.pop()

    def pin(self, get: GetId, version: int) -> None:
        self.stores.pin(act.PinModel(get=get, model="net", version=ModelVersion(1, version)))

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return weights_of(self.stores.store("net"))


def applied(spec: ModelSpec, kind: act.StepKind, *names: TransferId) -> tuple[Rack, Any]:
    """Return stores that have applied updates of seeds 1, 2, ... in one go."""
    rack = Rack(spec)
    for seed, name in enumerate(names, start=1):
        rack.put(name, seed)
    lrs, version = (0.1,) * len(names), ModelVersion(1, 1)
    rack.stores.apply(act.ApplyStep(model="net", transfers=names, kind=kind, lrs=lrs, version=version))
    return rack, rack.said.pop()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("kind", "names"), [(act.StepKind.ONE, (A,)), (act.StepKind.MEAN, (A, B, C))])
def test_a_step_in_two_passes_is_the_step_in_one(momentum, kind, names):
    spec = spec_of(LAYOUT, momentum=momentum, weight_decay=0.01)
    rack, (at_once, done) = Rack(spec), applied(spec, kind, *names)
    for seed, name in enumerate(names, start=1):
        rack.put(name, seed)
    assert rack.prepare(*names, kind=kind) == act.StepPrepared(model="net", unit=1)
    assert all(torch.equal(tensor, draw(LAYOUT, 0)[name]) for name, tensor in rack.weights.items())
    assert rack.commit(*names) == done
    assert all(torch.equal(tensor, at_once.weights[name]) for name, tensor in rack.weights.items())


@pytest.mark.parametrize("names", [(A,), (A, B, C)])
def test_what_was_thrown_away_can_be_prepared_again_from_the_same_buffers(names):
    spec, kind = spec_of(LAYOUT, momentum=0.9), act.StepKind.MEAN
    rack, (at_once, done) = Rack(spec), applied(spec, kind, *names)
    for seed, name in enumerate(names, start=1):
        rack.put(name, seed)
    for _ in range(2):
        rack.prepare(*names, kind=kind)
        assert rack.discard() == act.StepDiscarded(model="net", unit=1)
    rack.prepare(*names, kind=kind)
    assert rack.commit(*names) == done
    assert all(torch.equal(tensor, at_once.weights[name]) for name, tensor in rack.weights.items())


@pytest.mark.parametrize(("bad", "culprits"), [((A,), (A,)), ((B,), (B,)), ((A, C), (A, C))])
def test_who_is_to_blame_is_named_and_nothing_is_spoilt(bad, culprits):
    rack = Rack(spec_of(LAYOUT))
    for seed, name in enumerate((A, B, C), start=1):
        rack.put(name, seed, **({"weight": float("nan")} if name in bad else {}))
    refused = rack.prepare(A, B, C, kind=act.StepKind.MEAN)
    assert isinstance(refused, act.PrepareRefused)
    assert refused.culprits == culprits
    assert "weight" in refused.detail
    good = tuple(name for name in (A, B, C) if name not in bad)
    assert isinstance(rack.prepare(*good, kind=act.StepKind.MEAN), act.StepPrepared)


def test_a_sum_that_overflows_is_blamed_on_its_first_part():
    rack = Rack(spec_of(LAYOUT))
    rack.put(A, 1)
    rack.put(B, 2, weight=1.7e308)
    rack.put(C, 3, weight=1.7e308)
    refused = rack.prepare(A, B, C, kind=act.StepKind.MEAN)
    assert isinstance(refused, act.PrepareRefused)
    assert refused.culprits == (A,)


def test_a_sum_of_two_images_is_prepared_in_a_copy_of_both():
    spec, whole = spec_of(LAYOUT, momentum=0.9), SumId(1, 0)
    rack = Rack(spec)
    images = [image_of(LAYOUT, draw(LAYOUT, seed)) for seed in (1, 2)]
    rack.stores.reserve(whole, 2 * LAYOUT.size_bytes)[:] = b"".join(bytes(image) for image in images)
    before = bytes(rack.stores.buffer(whole))
    step = act.PrepareStep(
        model="net", unit=1, transfers=(whole,), kind=act.StepKind.SUM, lrs=(0.1, 0.1), version=ModelVersion(1, 2)
    )
    rack.stores.prepare(step)
    assert rack.said.pop() == act.StepPrepared(model="net", unit=1)
    assert bytes(rack.stores.buffer(whole)) == before
    assert isinstance(rack.commit(whole, version=2), act.StepDone)


def test_a_pinned_version_stays_while_later_ones_are_committed():
    rack = Rack(spec_of(LAYOUT))
    rack.pin(G, 0)
    for version, name in enumerate((A, B, C), start=1):
        rack.put(name, version)
        rack.prepare(name, version=version)
        rack.commit(name, version=version)
    held = rack.stores.acquire("net", G)
    tensors = rack.stores.store("net").tensors(held)
    assert held.version == 0
    assert all(torch.equal(tensor, draw(LAYOUT, 0)[name]) for name, tensor in tensors.items())
    assert rack.stores.acquire("net", H).version == 3


def test_what_is_unpinned_is_given_back_once():
    rack = Rack(spec_of(LAYOUT))
    for get in (G, H):
        rack.pin(get, 0)
    rack.stores.unpin(G)
    rack.stores.unpin(G)
    rack.put(A, 1)
    rack.prepare(A)
    rack.commit(A)
    assert rack.stores.memory_bytes()["model"] == 2 * LAYOUT.size_bytes
    rack.stores.store("net").release(rack.stores.acquire("net", H))


def test_a_big_part_is_prepared_and_committed_in_a_thread_and_its_copy_is_counted():
    layout = Layout((TensorSpec(name="w", shape=(40_000,), dtype="float64"),))
    rack = Rack(spec_of(layout))

    async def run() -> None:
        rack.put(A, 1)
        rack.stores.prepare(
            act.PrepareStep(
                model="net", unit=1, transfers=(A,), kind=act.StepKind.ONE, lrs=(0.5,), version=ModelVersion(1, 1)
            )
        )
        assert rack.said == []
        await rack.stores.close()
        assert rack.stores.memory_bytes()["updates"] == 2 * layout.size_bytes
        rack.stores.commit(act.CommitStep(model="net", unit=1, transfers=(A,), version=ModelVersion(1, 1)))
        await rack.stores.close()

    asyncio.run(run())
    assert [type(event) for event in rack.said] == [act.StepPrepared, act.StepDone]
    expected = draw(layout, 0)["w"] - 0.5 * draw(layout, 1)["w"]
    torch.testing.assert_close(rack.weights["w"], expected, rtol=1e-12, atol=1e-14)
