"""Steps that a server's stores make of transfers' buffers: in one pass, or prepared in a copy and then committed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from mlfabric.model.specs import Layout, ModelSpec, TensorSpec
from mlfabric.model.update_rules import RuleKind
from mlfabric.protocol import GetId, ModelVersion, SumId, TransferId, UpdateId
from mlfabric.server import actions as act
from mlfabric.server.iteration_sum import add_up, is_finite
from mlfabric.server.stores import Stores
from tests.server.models import draw, image_of, layout_of, spec_of, store_of, weights_of

A, B, C = (UpdateId(name, 1, 0) for name in "abc")
G, H = GetId("a", 1, 0), GetId("b", 1, 0)
S = SumId(1, 0)
LAYOUT = layout_of("float64")
BIG = Layout((TensorSpec(name="w", shape=(40_000,), dtype="float64"),))
ONE, MEAN, SUM = act.StepKind.ONE, act.StepKind.MEAN, act.StepKind.SUM


class Rack:
    """Stores that hold one model, and what they said."""

    def __init__(self, spec: ModelSpec | None = None) -> None:
        spec = spec or spec_of(LAYOUT)
        self.said: list[Any] = []
        self.stores = Stores(self.said.append)
        self.stores.add(spec, store_of(spec))
        self.layout = spec.layout

    def put(self, *names: TransferId, bad: tuple[TransferId, ...] = (), value: float = float("nan")) -> None:
        """Take in updates of seeds 1, 2, ...; some have a value that is bad."""
        for seed, name in enumerate(names, start=1):
            tensors = draw(self.layout, seed)
            if name in bad:
                tensors["weight"][1, 2] = value
            image = image_of(self.layout, tensors)
            self.stores.reserve(name, image.nbytes)[:] = image

    def begin(self, step: type[Any], *names: TransferId, kind: act.StepKind, version: int = 1, lr: float = 0.1) -> None:
        """Tell the stores to make a step of these, or to prepare it."""
        fields: dict[str, Any] = {"unit": version} if step is act.PrepareStep else {}
        lrs, made = (lr,) * max(len(names), 1 + (kind is SUM)), ModelVersion(1, version)
        does = self.stores.prepare if step is act.PrepareStep else self.stores.apply
        does(step(model="net", transfers=names, kind=kind, lrs=lrs, version=made, **fields))

    def apply(self, *names: TransferId, kind: act.StepKind) -> Any:
        self.begin(act.ApplyStep, *names, kind=kind)
        return self.said.pop()

    def prepare(self, *names: TransferId, kind: act.StepKind = ONE, version: int = 1) -> Any:
        self.begin(act.PrepareStep, *names, kind=kind, version=version)
        return self.said.pop()

    def commit(self, *names: TransferId, version: int = 1) -> Any:
        made = ModelVersion(1, version)
        self.stores.commit(act.CommitStep(model="net", unit=version, transfers=names, version=made))
        return self.said.pop()

    def pin(self, get: GetId) -> None:
        self.stores.pin(act.PinModel(get=get, model="net", version=ModelVersion(1, 0)))

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return weights_of(self.stores.store("net"))


# In two passes


@pytest.mark.parametrize("rule", [{"momentum": 0.0}, {"momentum": 0.9}, {"kind": RuleKind.ADAM}])
@pytest.mark.parametrize(("kind", "names"), [(ONE, (A,)), (MEAN, (A, B, C))])
def test_a_step_in_two_passes_is_the_step_in_one_also_if_it_was_thrown_away_before(rule, kind, names):
    spec = spec_of(LAYOUT, weight_decay=0.01, **rule)
    rack, at_once = Rack(spec), Rack(spec)
    for each in (rack, at_once):
        each.put(*names)
    for _ in range(2):
        assert rack.prepare(*names, kind=kind) == act.StepPrepared(model="net", unit=1)
        assert all(torch.equal(tensor, draw(LAYOUT, 0)[name]) for name, tensor in rack.weights.items())
        rack.stores.discard(act.DiscardStep(model="net", unit=1))
        assert rack.said.pop() == act.StepDiscarded(model="net", unit=1)
    rack.prepare(*names, kind=kind)
    assert rack.commit(*names) == at_once.apply(*names, kind=kind)
    assert all(torch.equal(tensor, at_once.weights[name]) for name, tensor in rack.weights.items())


def test_a_sum_of_two_images_is_prepared_in_a_copy_of_both():
    rack = Rack(spec_of(LAYOUT, momentum=0.9))
    images = [image_of(LAYOUT, draw(LAYOUT, seed)) for seed in (1, 2)]
    rack.stores.reserve(S, 2 * LAYOUT.size_bytes)[:] = b"".join(bytes(image) for image in images)
    before = bytes(rack.stores.buffer(S))
    assert rack.prepare(S, kind=SUM, version=2) == act.StepPrepared(model="net", unit=2)
    assert bytes(rack.stores.buffer(S)) == before
    assert isinstance(rack.commit(S, version=2), act.StepDone)


def test_a_pinned_version_stays_while_later_ones_are_committed():
    rack = Rack()
    rack.pin(G)
    for version, name in enumerate((A, B, C), start=1):
        rack.put(name)
        rack.prepare(name, version=version)
        rack.commit(name, version=version)
    held = rack.stores.acquire("net", G)
    tensors = rack.stores.store("net").tensors(held)
    assert held.version == 0
    assert all(torch.equal(tensor, draw(LAYOUT, 0)[name]) for name, tensor in tensors.items())
    assert rack.stores.acquire("net", H).version == 3


def test_what_is_unpinned_is_given_back_once():
    rack = Rack()
    for get in (G, H):
        rack.pin(get)
    for _ in range(2):
        rack.stores.unpin(G)
    rack.put(A)
    rack.prepare(A)
    rack.commit(A)
    assert rack.stores.memory_bytes()["model"] == 2 * LAYOUT.size_bytes
    rack.stores.store("net").release(rack.stores.acquire("net", H))


# In a thread


def test_a_big_part_is_prepared_and_committed_in_a_thread_and_its_copy_is_counted():
    rack = Rack(spec_of(BIG))

    async def run() -> None:
        rack.put(A)
        rack.begin(act.PrepareStep, A, kind=ONE, lr=0.5)
        assert rack.said == []
        await rack.stores.close()
        assert rack.stores.memory_bytes()["updates"] == 2 * BIG.size_bytes
        rack.stores.commit(act.CommitStep(model="net", unit=1, transfers=(A,), version=ModelVersion(1, 1)))
        await rack.stores.close()

    asyncio.run(run())
    assert [type(event) for event in rack.said] == [act.StepPrepared, act.StepDone]
    torch.testing.assert_close(rack.weights["w"], draw(BIG, 0)["w"] - 0.5 * draw(BIG, 1)["w"], rtol=1e-12, atol=1e-14)


# What is not finite


@pytest.mark.parametrize(
    ("bad", "culprits", "spoilt"),
    [((A,), (A,), ()), ((B,), (B,), (A,)), ((B, C), (B, C), (A,)), ((A, C), (C,), (A,))],
)
def test_who_is_to_blame_for_an_iteration_is_named_and_what_the_sum_spoilt(bad, culprits, spoilt):
    rack = Rack()
    rack.put(A, B, C, bad=bad)
    refused = rack.apply(A, B, C, kind=MEAN)
    assert isinstance(refused, act.StepRefused)
    assert (refused.culprits, refused.spoilt) == (culprits, spoilt)
    assert "weight" in refused.detail
    assert all(torch.equal(rack.weights[name], tensor) for name, tensor in draw(LAYOUT, 0).items())


@pytest.mark.parametrize("bad", [(A,), (B,), (A, C)])
def test_who_is_to_blame_for_what_is_prepared_is_named_and_nothing_is_spoilt(bad):
    rack = Rack()
    rack.put(A, B, C, bad=bad)
    refused = rack.prepare(A, B, C, kind=MEAN)
    assert isinstance(refused, act.PrepareRefused)
    assert refused.culprits == bad
    assert "weight" in refused.detail
    good = tuple(name for name in (A, B, C) if name not in bad)
    assert isinstance(rack.prepare(*good, kind=MEAN), act.StepPrepared)


@pytest.mark.parametrize("make", [Rack.apply, Rack.prepare])
def test_a_sum_that_overflows_is_blamed_on_its_first_part(make):
    rack = Rack()
    rack.put(A, B, C, bad=(B, C), value=1.7e308)
    assert make(rack, A, B, C, kind=MEAN).culprits == (A,)


def test_what_stays_of_a_refused_iteration_can_still_be_applied():
    rack = Rack()
    rack.put(A, B, C, bad=(C,))
    rack.apply(A, B, C, kind=MEAN)
    assert isinstance(rack.apply(B, kind=MEAN), act.StepDone)
    expected = draw(LAYOUT, 0)["weight"] - 0.1 * draw(LAYOUT, 2)["weight"]
    torch.testing.assert_close(rack.weights["weight"], expected, rtol=1e-12, atol=1e-14)


def test_a_sum_that_is_not_finite_is_to_blame_itself():
    rack = Rack()
    rack.put(S, bad=(S,))
    refused = rack.apply(S, kind=SUM)
    assert isinstance(refused, act.StepRefused)
    assert (refused.culprits, refused.spoilt) == ((S,), ())


# Sums


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_images_are_added_up_in_their_own_dtype_in_the_memory_of_the_first(dtype):
    layout = layout_of(dtype)
    images = [image_of(layout, draw(layout, seed)) for seed in (1, 2, 3)]
    total = add_up(layout, images)
    assert total is images[0]
    for tensor, at in zip(layout.tensors, layout.offsets, strict=True):
        one, two, three = (draw(layout, seed)[tensor.name] for seed in (1, 2, 3))
        got = torch.frombuffer(total, dtype=one.dtype, count=tensor.numel, offset=at) if tensor.numel else one.view(-1)
        assert torch.equal(got, ((one + two) + three).view(-1))
        rest = torch.frombuffer(images[2], dtype=one.dtype, count=tensor.numel, offset=at) if tensor.numel else three
        assert torch.equal(rest.view(-1), three.view(-1))


def test_padding_that_is_not_finite_is_nobody_s_fault():
    tensors = draw(LAYOUT, 1)
    assert is_finite(LAYOUT, image_of(LAYOUT, tensors))
    tensors["weight"][1, 2] = float("nan")
    assert not is_finite(LAYOUT, image_of(LAYOUT, tensors))
