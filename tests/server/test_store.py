"""The model store's numbers: trajectories, norms, how weights come in, and updates that change nothing."""

from __future__ import annotations

import math

import pytest
import torch

from mlfabric.errors import LayoutError, UsageError
from mlfabric.model.specs import Layout, TensorKind, TensorSpec
from mlfabric.server.rule_kernels import NotFinite, StepResult
from mlfabric.server.store import ModelStore
from tests.server.models import bytes_of, draw, image_of, layout_of, spec_of, step, store_of, weights_of

# Trajectories


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_the_trajectory_is_that_of_torch_sgd(dtype: str, tolerance: float, momentum: float, decay: float) -> None:
    layout = Layout(tuple(t for t in layout_of(dtype).tensors if t.kind is TensorKind.PARAMETER))
    store = store_of(spec_of(layout, momentum=momentum, weight_decay=decay))
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in weights_of(store).items()}
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1, momentum=momentum, weight_decay=decay)
    for seed in range(1, 31):
        gradients = draw(layout, seed)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name]
        optimizer.step()
        store.apply(image_of(layout, gradients), 0.1)
    for name, tensor in weights_of(store).items():
        torch.testing.assert_close(tensor, parameters[name].detach(), rtol=tolerance, atol=3 * tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_follows_the_float32_trajectory_to_its_own_precision(dtype: str) -> None:
    half, full = layout_of(dtype), layout_of("float32")
    rules = {"momentum": 0.9, "weight_decay": 0.01}
    store, reference = ModelStore(spec_of(half, **rules)), ModelStore(spec_of(full, **rules))
    start = draw(half, 0)
    store.initialise(image_of(half, start))
    reference.initialise(image_of(full, {name: t.float() for name, t in start.items()}))
    for seed in range(1, 9):
        update = draw(half, seed)
        store.apply(image_of(half, update), 0.1)
        reference.apply(image_of(full, {name: t.float() for name, t in update.items()}), 0.1)
    wanted = weights_of(reference)
    for name, tensor in weights_of(store).items():
        precision = torch.finfo(tensor.dtype).eps
        torch.testing.assert_close(tensor.float(), wanted[name], rtol=8 * precision, atol=16 * precision)


def test_norms_are_exact_over_all_parameters_and_padding_is_not_read() -> None:
    store = store_of(spec_of(momentum=0.9))
    for seed in (1, 2):
        before, update = weights_of(store), draw(store.spec.layout, seed)
        result = store.apply(image_of(store.spec.layout, update), 0.1)
        after = weights_of(store)
        names = before.keys() - {"running_mean"}
        moved = math.sqrt(sum(float((after[n].double() - before[n].double()).square().sum()) for n in names))
        assert isinstance(result, StepResult)
        assert result.version == seed
        assert result.step_norm == pytest.approx(moved, rel=1e-14)


# Coming into being


def test_the_initial_image_is_version_0_bit_for_bit() -> None:
    tensors = draw(layout_of(), 4)
    store = ModelStore(spec_of())
    assert not store.is_initialised
    assert store.acquire() is None
    store.initialise(bytes(image_of(layout_of(), tensors)))
    assert store.version == 0
    held = store.acquire()
    assert held is not None
    assert held.version == 0
    found = store.tensors(held)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_model_without_elements_counts_versions() -> None:
    layout = Layout((TensorSpec(name="nothing", shape=(0,), dtype="float32"),))
    store = ModelStore(spec_of(layout, momentum=0.5))
    store.initialise(b"")
    assert store.apply(memoryview(bytearray()), 0.1) == StepResult(version=1, step_norm=0.0)


@pytest.mark.parametrize("length", [0, 1, layout_of().size_bytes - 1, layout_of().size_bytes + 16])
def test_an_image_of_wrong_length_is_refused_and_says_both_lengths(length: int) -> None:
    store = ModelStore(spec_of())
    with pytest.raises(LayoutError, match=rf"{length} bytes; allowed: {layout_of().size_bytes}"):
        store.initialise(bytes(length))
    assert not store.is_initialised
    store = store_of(spec_of())
    with pytest.raises(LayoutError, match=rf"{length} bytes; allowed: {layout_of().size_bytes}"):
        store.apply(memoryview(bytearray(length)), 0.1)
    assert store.version == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_initial_weights_that_are_not_finite_are_refused_and_others_may_follow(bad: float) -> None:
    tensors = draw(layout_of(), 0)
    tensors["running_mean"][2] = bad
    store = ModelStore(spec_of())
    with pytest.raises(LayoutError, match="running_mean has NaN or Inf"):
        store.initialise(image_of(layout_of(), tensors))
    assert not store.is_initialised
    assert store.memory_bytes()["model"] == 0
    store.initialise(image_of(layout_of(), draw(layout_of(), 0)))


@pytest.mark.parametrize(
    ("change", "story"),
    [
        ({"scalar": torch.zeros(1)}, r"scalar is torch.float32\[1\]; allowed: torch.float32\[\]"),
        ({"scalar": torch.zeros((), dtype=torch.float64)}, "scalar is torch.float64"),
        ({"other": torch.zeros(1)}, "other"),
        ({"scalar": torch.tensor(math.nan)}, "scalar has NaN or Inf"),
    ],
)
def test_restoring_what_does_not_fit_is_refused_by_name(change: dict[str, torch.Tensor], story: str) -> None:
    store = ModelStore(spec_of())
    with pytest.raises(LayoutError, match=story):
        store.restore(version=3, model={**draw(layout_of(), 0), **change})
    assert not store.is_initialised


def test_a_store_without_weights_refuses_steps_and_snapshots() -> None:
    store = ModelStore(spec_of())
    with pytest.raises(UsageError, match="no weights yet"):
        step(store, 1)
    with pytest.raises(UsageError, match="no weights yet"), store.standing():
        pass


# Updates that change nothing

BAD = (math.nan, -math.inf, 3e38)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize(
    ("name", "bad", "lr"),
    [*(("weight", bad, 10.0) for bad in BAD), ("weight", math.inf, 0.0), ("running_mean", math.nan, 10.0)],
)
def test_a_step_that_is_not_finite_changes_no_bit(
    momentum: float, pinned: bool, bad: float, name: str, lr: float
) -> None:
    store = store_of(spec_of(momentum=momentum))
    step(store, 1)
    with store.standing() as snapshot:
        snapshot.model[name].view(-1)[0] = -3e38
    before = bytes_of(store)
    held = store.acquire() if pinned else None
    update = draw(store.spec.layout, 2)
    update[name].view(-1)[0] = bad
    assert store.apply(image_of(store.spec.layout, update), lr) == NotFinite(version=1, tensor=name)
    assert bytes_of(store) == before
    assert store.version == 1
    if held is not None:
        store.release(held)
    assert isinstance(step(store, 3), StepResult)
