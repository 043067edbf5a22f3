"""What becomes of tensors that updates bring values for: buffers, counters, and the rates that Adam steps with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.model.specs import Layout, ModelSpec, TensorKind, TensorSpec
from mlfabric.model.update_rules import RuleKind, RuleSpec
from mlfabric.server.checkpoint import CheckpointDir, CheckpointExtra, load
from mlfabric.server.iteration_sum import add_up
from mlfabric.server.rule_kernels import NotFinite, StepResult
from mlfabric.server.seeds import packed, planted
from mlfabric.server.store import ModelStore
from mlfabric.server.value_kernels import MeanKernel
from tests.server.models import bytes_of, image_of, weights_of

BIG = 2**53 + 1  # no float64
VALUES = Layout(
    (
        TensorSpec(name="w", shape=(2,), dtype="float64"),
        TensorSpec(name="mean", shape=(3,), dtype="float32", kind=TensorKind.BUFFER),
        TensorSpec(name="half", shape=(2,), dtype="float16", kind=TensorKind.BUFFER),
        TensorSpec(name="seen", shape=(), dtype="int64", kind=TensorKind.COUNTER),
        TensorSpec(name="short", shape=(2,), dtype="int32", kind=TensorKind.COUNTER),
    )
)
RATED = Layout(
    (
        TensorSpec(name="a", shape=(3,), dtype="float64"),
        TensorSpec(name="b", shape=(5,), dtype="float64", group=1),
        TensorSpec(name="c", shape=(2,), dtype="float64"),
        TensorSpec(name="(rates)", shape=(2, 2), dtype="float64", kind=TensorKind.RATES),
    )
)
BETAS, EPSILON = (0.8, 0.95), 1e-6


def values(seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "w": torch.zeros(2, dtype=torch.float64),
        "mean": torch.randn(3, generator=draw),
        "half": torch.randn(2, generator=draw).half(),
        "seen": torch.tensor(BIG + seed),
        "short": torch.randint(-9, 9, (2,), generator=draw, dtype=torch.int32),
    }


def a_store(layout: Layout, rule: RuleSpec | None = None) -> ModelStore:
    store = ModelStore(ModelSpec(name="net", layout=layout, rule=rule or RuleSpec()))
    store.initialise(bytes(layout.size_bytes))
    return store


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("as_mean", [True, False])
def test_a_group_s_buffers_become_their_mean_and_counters_the_greatest(count: int, as_mean: bool) -> None:
    store, drawn = a_store(VALUES), [values(seed) for seed in range(count)]
    total = add_up(VALUES, [image_of(VALUES, one) for one in drawn])
    apply = store.apply(total, 0.1, count) if as_mean else store.apply_sum(total, [0.1] * count)
    assert isinstance(apply, StepResult)
    assert apply.step_norm == 0
    found = weights_of(store)
    for name, tolerance in (("mean", 1e-6), ("half", 4e-3)):
        wanted = torch.stack([one[name] for one in drawn]).double().mean(dim=0)
        torch.testing.assert_close(found[name].double(), wanted, rtol=tolerance, atol=tolerance)
    assert found["seen"] == BIG + count - 1
    assert torch.equal(found["short"], torch.stack([one["short"] for one in drawn]).amax(0).clamp(min=0))


def test_a_value_that_comes_alone_is_taken_to_the_last_bit_and_no_counter_falls() -> None:
    store = a_store(VALUES)
    for seed in (5, 2):
        assert isinstance(store.apply(image_of(VALUES, values(seed)), 0.3), StepResult)
        assert all(torch.equal(weights_of(store)[name], values(seed)[name]) for name in ("mean", "half"))
        assert weights_of(store)["seen"] == BIG + 5


def test_a_group_that_comes_in_two_parts_has_the_mean_of_both() -> None:
    store, drawn = a_store(VALUES), [values(seed) for seed in range(3)]
    store.apply_sum(add_up(VALUES, [image_of(VALUES, one) for one in drawn[:2]]), [0.1, 0.1])
    store.apply_sum(image_of(VALUES, drawn[2]), [0.1], MeanKernel(count=1, kept=2))
    wanted = sum(one["mean"] for one in drawn) / 3
    torch.testing.assert_close(weights_of(store)["mean"], wanted)


def test_a_buffer_that_is_not_finite_changes_no_bit() -> None:
    store, bad = a_store(VALUES), values(1)
    bad["half"][1] = torch.inf
    before = bytes_of(store)
    assert store.apply(image_of(VALUES, bad), 0.1) == NotFinite(version=0, tensor="half")
    assert bytes_of(store) == before


# Rates


def rated(seed: int, *rates: tuple[float, float]) -> memoryview:
    draw = torch.Generator().manual_seed(seed)
    tensors = {t.name: torch.randn(t.shape, generator=draw, dtype=torch.float64) for t in RATED.tensors[:-1]}
    return image_of(RATED, {**tensors, "(rates)": torch.tensor(rates, dtype=torch.float64)})


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@given(
    rates=st.lists(
        st.tuples(st.tuples(st.floats(0, 0.5), st.floats(0, 0.3)), st.tuples(st.floats(0, 0.5), st.floats(0, 0.3))),
        min_size=1,
        max_size=4,
    ),
    count=st.integers(1, 3),
)
def test_each_step_of_adam_has_the_rates_that_came_with_it(
    kind: type[torch.optim.Adam], rates: list[tuple[tuple[float, float], tuple[float, float]]], count: int
) -> None:
    is_decoupled = kind is torch.optim.AdamW
    rule = RuleSpec(kind=RuleKind.ADAM, lr=1.0, beta1=0.8, beta2=0.95, epsilon=EPSILON, decoupled=is_decoupled)
    store = a_store(RATED, rule)
    plain = {t.name: torch.zeros(t.shape, dtype=torch.float64, requires_grad=True) for t in RATED.tensors[:-1]}
    groups = [{"params": [plain["a"], plain["c"]]}, {"params": [plain["b"]]}]
    optimizer = kind(groups, betas=BETAS, eps=EPSILON)
    for number, two in enumerate(rates):
        images = [rated(10 * number + i, *((lr * 2 * i, wd * 2 * i) for lr, wd in two)) for i in range(count)]
        gradients = [weights_like(image) for image in images]
        for group, (lr, decay) in zip(optimizer.param_groups, two, strict=True):
            group["lr"], group["weight_decay"] = lr * (count - 1), decay * (count - 1)
        for name, tensor in plain.items():
            tensor.grad = torch.stack([one[name] for one in gradients]).mean(dim=0)
        optimizer.step()
        result = store.apply_sum(add_up(RATED, images), [1.0] * count)
        assert isinstance(result, StepResult)
    for name, tensor in weights_of(store).items():
        torch.testing.assert_close(tensor, plain[name].detach(), rtol=1e-10, atol=1e-12)


def weights_like(image: memoryview) -> dict[str, torch.Tensor]:
    numbers = np.frombuffer(bytes(image), dtype=np.float64)
    return {
        t.name: torch.from_numpy(numbers[at // 8 : at // 8 + t.numel].copy())
        for t, at in zip(RATED.tensors[:-1], RATED.offsets, strict=False)
    }


def test_rates_are_no_tensor_of_the_model_wherever_it_is_read_or_kept(tmp_path) -> None:
    store = a_store(RATED, RuleSpec(kind=RuleKind.ADAM, lr=1.0))
    store.apply(rated(1, (0.1, 0.0), (0.2, 0.0)), 1.0)
    names = {"a", "b", "c"}
    held = store.acquire()
    assert held is not None
    assert store.tensors(held).keys() == names
    path = CheckpointDir(tmp_path).save(store, CheckpointExtra(server_epoch=1, log_position=1, applied={}))
    again = load(path).store
    with store.standing() as snapshot:
        assert snapshot.model.keys() == snapshot.history.keys() == snapshot.squares.keys() == names
        seeded = planted(store.spec, packed(store.spec, snapshot), 1, 1)
    assert bytes_of(again) == bytes_of(store) == bytes_of(seeded)
    assert load(path).store.spec.layout == RATED
