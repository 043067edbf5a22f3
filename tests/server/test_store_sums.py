"""Groups, means, ADAM, and steps in two halves: what they make of the model is what single steps make of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import ConfigError, LayoutError, UsageError
from mlfabric.model.specs import Layout, ModelSpec, TensorKind
from mlfabric.model.stepping import Coefficients, member_coefficients
from mlfabric.model.update_rules import MomentumAt, RuleKind, RuleSpec
from mlfabric.server.rule_kernels import NotFinite, StepResult
from mlfabric.server.store import ModelStore, PreparedStep
from tests.server.models import bytes_of, draw, image_of, layout_of, step, store_of, weights_of

Tensors = dict[str, torch.Tensor]
ADAM = RuleSpec(kind=RuleKind.ADAM, lr=0.1)
BUFFER = "running_mean"
LINEAR = st.builds(
    RuleSpec,
    momentum=st.sampled_from([0.0, 0.5, 0.999999]),
    weight_decay=st.sampled_from([0.0, 0.1]),
    momentum_at=st.sampled_from([None, *MomentumAt]),
)


def a_store(rule: RuleSpec, dtype: str = "float64") -> ModelStore:
    return store_of(ModelSpec(name="net", layout=layout_of(dtype), rule=rule))


def sum_of(layout: Layout, updates: Sequence[Tensors], rule: RuleSpec, lrs: Sequence[float]) -> memoryview:
    """Sum a group as an aggregator does; what the second image has of buffers must never matter."""
    first = {t.name: torch.zeros_like(updates[0][t.name]) for t in layout.tensors}
    second = {t.name: torch.full_like(updates[0][t.name], math.nan) for t in layout.tensors}
    for tensor in layout.tensors:
        coefficients = (Coefficients(1.0, 0.0),) * len(lrs)
        if tensor.kind is TensorKind.PARAMETER:
            coefficients = member_coefficients(rule, lrs)
            second[tensor.name] = torch.zeros_like(first[tensor.name])
        for update, c in zip(updates, coefficients, strict=True):
            first[tensor.name] += update[tensor.name] * c.first
            second[tensor.name] += update[tensor.name] * c.second
    images = [image_of(layout, first), image_of(layout, second)][: rule.sum_images]
    return np.concatenate([np.frombuffer(image, dtype=np.uint8) for image in images]).data


def mean_of(updates: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([u[name] for u in updates]).mean(dim=0) for name in updates[0]}


def plain_sum(layout: Layout, updates: Sequence[Tensors]) -> memoryview:
    return image_of(layout, {t.name: sum(u[t.name] for u in updates) for t in layout.tensors})  # type: ignore[misc]


def assert_close(found: ModelStore, wanted: ModelStore, tolerance: float = 1e-12, *, without: str = "") -> None:
    with found.standing() as one, wanted.standing() as two:
        assert (one.version, one.steps) == (two.version, two.steps)
        for mine, others in ((one.model, two.model), (one.history, two.history), (one.squares, two.squares)):
            assert mine.keys() == others.keys()
            for name in mine.keys() - {without}:
                torch.testing.assert_close(mine[name], others[name], rtol=tolerance, atol=tolerance)


# Sums


@given(LINEAR, st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**16))
def test_a_group_is_as_many_steps_as_it_has_members(rule: RuleSpec, groups: list[int], seed: int) -> None:
    grouped, single = a_store(rule), a_store(rule)
    layout, rng = grouped.spec.layout, np.random.default_rng(seed)
    for n, count in enumerate(groups):
        updates = [draw(layout, 100 * n + j) for j in range(count)]
        lrs = rng.uniform(0.01, 0.3, count).tolist()
        before = weights_of(grouped)
        result = grouped.apply_sum(sum_of(layout, updates, rule, lrs), lrs)
        for update, lr in zip(updates, lrs, strict=True):
            assert isinstance(single.apply(image_of(layout, update), lr), StepResult)
        after = weights_of(grouped)
        parameters = before.keys() - {BUFFER}
        moved = math.sqrt(sum(float((after[name] - before[name]).square().sum()) for name in parameters))
        assert isinstance(result, StepResult)
        assert result.step_norm == pytest.approx(moved, rel=1e-12)
        assert_close(grouped, single, without=BUFFER)
        torch.testing.assert_close(after[BUFFER], mean_of(updates)[BUFFER], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sums_of_lower_precision_are_as_good_as_that_precision(dtype: str, momentum: float) -> None:
    rule, lrs = RuleSpec(momentum=momentum, weight_decay=0.01), [0.1, 0.05, 0.2]
    store, reference = a_store(rule, dtype), a_store(rule)
    updates = [draw(store.spec.layout, seed) for seed in (1, 2, 3)]
    store.apply_sum(sum_of(store.spec.layout, updates, rule, lrs), lrs)
    for update, lr in zip(updates, lrs, strict=True):
        reference.apply(image_of(reference.spec.layout, {n: t.double() for n, t in update.items()}), lr)
    wanted = {**weights_of(reference), BUFFER: mean_of(updates)[BUFFER].double()}
    for name, tensor in weights_of(store).items():
        precision = torch.finfo(tensor.dtype).eps
        torch.testing.assert_close(tensor.double(), wanted[name], rtol=16 * precision, atol=32 * precision)


@pytest.mark.parametrize("rule", [RuleSpec(), RuleSpec(momentum=0.9, weight_decay=0.01), ADAM])
def test_who_reads_does_not_change_what_a_group_makes(rule: RuleSpec) -> None:
    alone, read = a_store(rule), a_store(rule)
    layout, lrs = alone.spec.layout, [0.1, 0.2]
    updates = [draw(layout, 1), draw(layout, 2)]
    held = read.acquire()
    assert held is not None
    then = bytes(held.image)
    for store in (alone, read):
        store.apply_sum(sum_of(layout, updates, rule, lrs), lrs)
    assert bytes(held.image) == then
    assert bytes_of(alone) == bytes_of(read)


# Means


@pytest.mark.parametrize("rule", [RuleSpec(weight_decay=0.1), RuleSpec(momentum=0.9, weight_decay=0.1), ADAM])
def test_a_mean_is_one_step_of_the_mean_and_one_version(rule: RuleSpec) -> None:
    store, single = a_store(rule), a_store(rule)
    layout = store.spec.layout
    for seed in range(3):
        updates = [draw(layout, 10 * seed + j) for j in range(4)]
        assert isinstance(store.apply(plain_sum(layout, updates), 0.1, 4), StepResult)
        single.apply(image_of(layout, mean_of(updates)), 0.1)
    assert store.version == 3
    assert_close(store, single)


# ADAM


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_the_trajectory_is_that_of_torch_adam(dtype: str, tolerance: float, decay: float) -> None:
    layout = Layout(tuple(t for t in layout_of(dtype).tensors if t.kind is TensorKind.PARAMETER))
    rule = RuleSpec(kind=RuleKind.ADAM, beta1=0.8, beta2=0.99, epsilon=1e-6, weight_decay=decay)
    store = store_of(ModelSpec(name="net", layout=layout, rule=rule))
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in weights_of(store).items()}
    optimizer = torch.optim.Adam(parameters.values(), lr=0.1, betas=(0.8, 0.99), eps=1e-6, weight_decay=decay)
    for seed in range(1, 41):
        gradients = draw(layout, seed)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name]
        optimizer.param_groups[0]["lr"] = 0.1 / seed
        optimizer.step()
        store.apply(image_of(layout, gradients), 0.1 / seed)
    for name, tensor in weights_of(store).items():
        torch.testing.assert_close(tensor, parameters[name].detach(), rtol=tolerance, atol=tolerance)


def test_a_group_of_adam_makes_one_step_of_its_mean_and_a_version_for_each_member() -> None:
    store, mean = a_store(ADAM), a_store(ADAM)
    layout = store.spec.layout
    for seed in range(3):
        updates = [draw(layout, 10 * seed + j) for j in range(4)]
        result = store.apply_sum(plain_sum(layout, updates), [0.1, 0.7, 0.2, 0.2])
        assert isinstance(result, StepResult)
        assert result.version == 4 * (seed + 1)
        mean.apply(plain_sum(layout, updates), 0.1, 4)
    with store.standing() as one, mean.standing() as other:
        assert one.steps == other.steps == 3
        assert all(torch.equal(one.model[n], other.model[n]) for n in ("weight", "scalar", BUFFER))
        torch.testing.assert_close(one.model[BUFFER], mean_of(updates)[BUFFER])


def test_adam_in_half_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"weight is bfloat16 under adam.*allowed: float32, float64"):
        a_store(ADAM, "bfloat16")


# What changes nothing

SUM_WITH_MOMENTUM = RuleSpec(momentum=0.9, weight_decay=0.1)
CASES: dict[str, tuple[RuleSpec, Callable[[ModelStore, memoryview], StepResult | NotFinite]]] = {
    "sum": (RuleSpec(), lambda store, image: store.apply_sum(image, [0.1, 0.1])),
    "sum with momentum": (SUM_WITH_MOMENTUM, lambda store, image: store.apply_sum(image, [0.1, 0.1])),
    "mean": (RuleSpec(momentum=0.9), lambda store, image: store.apply(image, 0.1, 3)),
    "adam's sum": (ADAM, lambda store, image: store.apply_sum(image, [0.1, 0.1])),
    "adam": (ADAM, lambda store, image: store.apply(image, 0.1)),
}


@pytest.mark.parametrize(
    ("case", "name", "brings", "again", "keeps"),
    [
        *itertools.product(CASES, ["scalar", "running_mean"], [math.nan, -math.inf], [None], [{}]),
        *((case, "scalar", 3e38, None, {"model": 3e38}) for case in ("sum", "sum with momentum")),
        *(("sum with momentum", "scalar", None, bad, {"history": -2e38}) for bad in (math.nan, -3e38)),
        ("adam", "scalar", 1e30, None, {}),
    ],
)
def test_what_would_not_be_finite_changes_no_bit(
    case: str, name: str, brings: float | None, again: float | None, keeps: dict[str, float]
) -> None:
    """An update brings a number, a sum's second image another; the store keeps one already. Adam keeps squares."""
    rule, apply = CASES[case]
    store = a_store(rule, "float32")
    step(store, 1)
    with store.standing() as snapshot:
        for kind, kept in keeps.items():
            getattr(snapshot, kind)[name].fill_(kept)
    before, images = bytes_of(store), []
    for seed, number in ((2, brings), (3, again))[: 2 if case == "sum with momentum" else 1]:
        update = draw(store.spec.layout, seed)
        if number is not None:
            update[name].view(-1)[0] = number
        images.append(np.frombuffer(image_of(store.spec.layout, update), dtype=np.uint8))
    assert apply(store, np.concatenate(images).data) == NotFinite(version=1, tensor=name)
    assert bytes_of(store) == before
    assert store.version == 1
    assert store.acquire() is not None
    assert isinstance(step(store, 3), StepResult)


def test_misuse_says_what_is_allowed_and_changes_nothing() -> None:
    store = a_store(RuleSpec(momentum=0.9))
    layout, before = store.spec.layout, bytes_of(store)
    two = memoryview(bytearray(2 * layout.size_bytes))
    with pytest.raises(LayoutError, match=f"{layout.size_bytes} bytes; allowed: {2 * layout.size_bytes}"):
        store.apply_sum(two[: layout.size_bytes], [0.1])
    with pytest.raises(ConfigError, match="learning rate nan"):
        store.apply_sum(two, [0.1, math.nan])
    assert bytes_of(store) == before


# In two halves


def test_of_prepared_steps_there_is_one_and_it_is_settled_once() -> None:
    store = a_store(RuleSpec())
    first = store.prepare(image_of(store.spec.layout, draw(store.spec.layout, 1)), 0.1)
    assert isinstance(first, PreparedStep)
    image = memoryview(bytearray(store.spec.layout.size_bytes))
    for other in (lambda: step(store, 2), lambda: store.prepare(image, 0.1)):
        with pytest.raises(UsageError, match="another step is prepared; commit or discard it first"):
            other()
    store.commit(first)
    for settle in (store.commit, store.discard):
        with pytest.raises(UsageError, match="settled before"):
            settle(first)
    assert store.version == 1
    assert isinstance(step(store, 2), StepResult)
