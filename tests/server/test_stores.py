"""Steps that a server's stores make of transfers' buffers: a sum is its members' steps, a mean is one step of them."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from mlfabric.protocol import ModelVersion, SumId, TransferId, UpdateId
from mlfabric.server import actions as act
from mlfabric.server.adding import add_up, is_finite
from mlfabric.server.stores import Stores
from mlfabric.specs import Layout, ModelSpec, TensorKind, TensorSpec
from mlfabric.stepping import member_coefficients
from tests.server.models import draw, image_of, layout_of, spec_of, store_of, weights_of

A, B, C = (UpdateId(name, 1, 0) for name in "abc")
S = SumId(1, 0)
LAYOUT = layout_of("float64")


class Rack:
    """Stores that hold one model, and what they said."""

    def __init__(self, spec: ModelSpec, seed: int = 0) -> None:
        self.said: list[Any] = []
        self.stores = Stores(self.said.append)
        self.stores.add(spec, store_of(spec, seed))
        self.spec = spec

    def put(self, name: TransferId, image: memoryview) -> None:
        self.stores.reserve(name, image.nbytes)[:] = image

    def apply(self, kind: act.StepKind, lrs: tuple[float, ...], version: int, *names: TransferId) -> Any:
        step = act.ApplyStep(model="net", transfers=names, kind=kind, lrs=lrs, version=ModelVersion(1, version))
        self.stores.apply(step)
        return self.said.pop()

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return weights_of(self.stores.store("net"))


def summed(spec: ModelSpec, seeds: tuple[int, ...], lrs: tuple[float, ...]) -> memoryview:
    """Return the images that an aggregator would send of these updates."""
    drawn = [draw(spec.layout, seed) for seed in seeds]
    images = []
    for image in range(spec.rule.sum_images):
        parts = {}
        for tensor in spec.layout.tensors:
            plain = [(1.0, 0.0)] * len(lrs)
            each = plain if tensor.kind is TensorKind.BUFFER else member_coefficients(spec.rule, lrs)
            parts[tensor.name] = sum(
                (t[tensor.name] * c[image] for t, c in zip(drawn, each, strict=True)),
                torch.zeros(tensor.shape, dtype=torch.float64),
            )
        images.append(np.frombuffer(image_of(spec.layout, parts), dtype=np.uint8))
    return np.concatenate(images).data


def plainly_summed(layout: Layout, *seeds: int) -> memoryview:
    images = [image_of(layout, draw(layout, seed)) for seed in seeds]
    return add_up(layout, images)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_sum_ends_where_its_members_steps_end(momentum):
    spec, lrs = spec_of(LAYOUT, momentum=momentum, weight_decay=0.01), (0.1, 0.05, 0.2)
    one_by_one, at_once = Rack(spec), Rack(spec)
    for version, (name, seed, lr) in enumerate(zip((A, B, C), (1, 2, 3), lrs, strict=True), start=1):
        one_by_one.put(name, image_of(LAYOUT, draw(LAYOUT, seed)))
        one_by_one.apply(act.StepKind.ONE, (lr,), version, name)
    at_once.put(S, summed(spec, (1, 2, 3), lrs))
    done = at_once.apply(act.StepKind.SUM, lrs, 3, S)
    assert isinstance(done, act.StepDone)
    parameters = [t.name for t in LAYOUT.tensors if t.kind is TensorKind.PARAMETER]
    for tensor_name in parameters:
        found, wanted = at_once.weights[tensor_name], one_by_one.weights[tensor_name]
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)
    norm = sum(float((at_once.weights[n] - draw(LAYOUT, 0)[n]).square().sum()) for n in parameters)
    assert done.step_norm == pytest.approx(norm**0.5, rel=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_iteration_is_one_step_of_the_mean_however_it_is_parted(momentum):
    spec = spec_of(LAYOUT, momentum=momentum)
    alone, parted = Rack(spec), Rack(spec)
    mean = {
        name: sum((draw(LAYOUT, seed)[name] for seed in (1, 2, 3)), torch.zeros_like(tensor)) / 3
        for name, tensor in draw(LAYOUT, 1).items()
    }
    alone.put(A, image_of(LAYOUT, mean))
    alone.apply(act.StepKind.ONE, (0.1,), 1, A)
    parted.put(A, image_of(LAYOUT, draw(LAYOUT, 1)))
    parted.put(S, plainly_summed(LAYOUT, 2, 3))
    done = parted.apply(act.StepKind.MEAN, (0.1,) * 3, 1, A, S)
    assert isinstance(done, act.StepDone)
    for name, tensor in alone.weights.items():
        torch.testing.assert_close(parted.weights[name], tensor, rtol=1e-12, atol=1e-14)


def test_a_big_iteration_is_applied_in_a_thread():
    layout = Layout((TensorSpec(name="w", shape=(40_000,), dtype="float64"),))
    rack = Rack(spec_of(layout))

    async def apply() -> None:
        for name, seed in ((A, 1), (B, 2)):
            rack.put(name, image_of(layout, draw(layout, seed)))
        step = act.ApplyStep(
            model="net", transfers=(A, B), kind=act.StepKind.MEAN, lrs=(0.5, 0.5), version=ModelVersion(1, 1)
        )
        rack.stores.apply(step)
        assert rack.said == []
        await rack.stores.close()

    asyncio.run(apply())
    assert [type(event) for event in rack.said] == [act.StepDone]
    expected = draw(layout, 0)["w"] - 0.25 * (draw(layout, 1)["w"] + draw(layout, 2)["w"])
    torch.testing.assert_close(rack.weights["w"], expected, rtol=1e-12, atol=1e-14)


def bad_image(layout: Layout, seed: int = 1, value: float = float("nan")) -> memoryview:
    tensors = draw(layout, seed)
    tensors["weight"][1, 2] = value
    return image_of(layout, tensors)


def iteration(bad: tuple[TransferId, ...], value: float = float("nan")) -> tuple[Rack, Any]:
    rack = Rack(spec_of(LAYOUT))
    for seed, name in enumerate((A, B, C), start=1):
        good = image_of(LAYOUT, draw(LAYOUT, seed))
        rack.put(name, bad_image(LAYOUT, seed, value) if name in bad else good)
    return rack, rack.apply(act.StepKind.MEAN, (0.1,) * 3, 1, A, B, C)


@pytest.mark.parametrize(
    ("bad", "culprits", "spoilt"),
    [((A,), (A,), ()), ((B,), (B,), (A,)), ((B, C), (B, C), (A,)), ((A, C), (C,), (A,))],
)
def test_who_is_to_blame_for_an_iteration_is_named_and_what_the_sum_spoilt(bad, culprits, spoilt):
    rack, refused = iteration(bad)
    assert isinstance(refused, act.StepRefused)
    assert (refused.culprits, refused.spoilt) == (culprits, spoilt)
    assert "weight" in refused.detail
    for name, tensor in draw(LAYOUT, 0).items():
        assert torch.equal(rack.weights[name], tensor)


def test_a_sum_that_overflows_is_blamed_on_its_first_part():
    _, refused = iteration((B, C), 1.7e308)
    assert isinstance(refused, act.StepRefused)
    assert (refused.culprits, refused.spoilt) == ((A,), ())


def test_what_stays_of_a_refused_iteration_can_still_be_applied():
    rack, _ = iteration((C,))
    done = rack.apply(act.StepKind.MEAN, (0.1,), 1, B)
    assert isinstance(done, act.StepDone)
    expected = draw(LAYOUT, 0)["weight"] - 0.1 * draw(LAYOUT, 2)["weight"]
    torch.testing.assert_close(rack.weights["weight"], expected, rtol=1e-12, atol=1e-14)


def test_a_sum_that_is_not_finite_is_to_blame_itself():
    rack = Rack(spec_of(LAYOUT))
    rack.put(S, bad_image(LAYOUT))
    refused = rack.apply(act.StepKind.SUM, (0.1, 0.1), 2, S)
    assert isinstance(refused, act.StepRefused)
    assert (refused.culprits, refused.spoilt) == ((S,), ())


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
    assert is_finite(LAYOUT, image_of(LAYOUT, draw(LAYOUT, 1)))
    assert not is_finite(LAYOUT, bad_image(LAYOUT))
