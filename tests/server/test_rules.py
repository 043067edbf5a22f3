"""The update rule against plain Python, element by element."""

from __future__ import annotations

import math
import struct
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import ConfigError
from mlfabric.server.kernels import CHUNK_ELEMENTS, Kernel, LinearKernel
from mlfabric.server.rules import mean_kernels
from mlfabric.server.value_kernels import MeanKernel
from mlfabric.specs import RuleSpec, TensorKind

RULE = RuleSpec(lr=0.1, momentum=0.9, weight_decay=0.01)
NUMBERS = st.floats(-1e6, 1e6, width=32)


def kernel(rule: RuleSpec, kind: TensorKind = TensorKind.PARAMETER, *, lr: float) -> Kernel:
    return mean_kernels(rule, lr=lr, count=1, steps=1)[kind]


def make_step(
    one: Kernel, update: torch.Tensor, weights: torch.Tensor, history: torch.Tensor | None
) -> tuple[float, float]:
    norms = one.make([update], weights, [] if history is None else [history])
    return norms.update_sq, norms.step_sq


def float32(x: float) -> float:
    return float(struct.unpack("f", struct.pack("f", x))[0])


def test_a_parameter_steps_against_its_gradient_with_momentum_and_decay() -> None:
    found = kernel(RULE, lr=0.5)
    assert found == LinearKernel(momentum=0.9, gradient=-0.5, decay=-0.005)


def test_a_buffer_takes_the_value_that_comes_at_any_rate() -> None:
    for lr in (0.0, 0.5):
        assert kernel(RULE, TensorKind.BUFFER, lr=lr) == MeanKernel(count=1)


@pytest.mark.parametrize("lr", [-0.1, math.nan, math.inf])
def test_a_rate_out_of_range_is_refused_with_what_is_allowed(lr: float) -> None:
    with pytest.raises(ConfigError, match=r"finite and >= 0"):
        kernel(RULE, lr=lr)


@given(
    rows=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=8),
    momentum=st.floats(0, 0.99),
    decay=st.floats(0, 0.1),
    lr=st.floats(0, 10),
)
def test_a_step_is_the_linear_form_of_every_element(
    rows: list[tuple[float, float, float]], momentum: float, decay: float, lr: float
) -> None:
    rule = RuleSpec(momentum=momentum, weight_decay=decay)
    update, weights, history = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3).T.contiguous()
    make_step(kernel(rule, lr=lr), update, weights, history)
    wanted = [momentum * h - lr * (g + decay * w) for g, w, h in rows]
    scale = [abs(momentum * h) + lr * (abs(g) + decay * abs(w)) for g, w, h in rows]
    for found, want, magnitude in zip(update.tolist(), wanted, scale, strict=True):
        assert abs(found - want) <= 1e-14 * magnitude + sys.float_info.min


@given(rows=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=8), lr=st.floats(0, 10))
def test_norms_are_those_of_the_update_and_of_what_the_stored_weights_change_by(
    rows: list[tuple[float, float]], lr: float
) -> None:
    update, weights = torch.tensor(rows, dtype=torch.float32).reshape(-1, 2).T.contiguous()
    before = weights.clone()
    update_sq, step_sq = make_step(kernel(RuleSpec(), lr=lr), update, weights, None)
    stored = [float32(w + u) for w, u in zip(weights.tolist(), update.tolist(), strict=True)]
    assert update_sq == pytest.approx(math.fsum(g * g for g, _ in rows), rel=1e-14)
    assert step_sq == pytest.approx(math.fsum((n - w) ** 2 for n, (_, w) in zip(stored, rows, strict=True)), rel=1e-14)
    assert torch.equal(weights, before)


def test_chunks_do_not_show() -> None:
    draw = torch.Generator().manual_seed(5)
    update, weights, history = torch.randn(3, 2 * CHUNK_ELEMENTS + 3, generator=draw)
    whole = 0.9 * history - 0.1 * (update + 0.01 * weights)
    update_sq, step_sq = make_step(kernel(RULE, lr=0.1), update, weights, history)
    torch.testing.assert_close(update, whole, rtol=1e-5, atol=1e-6)
    assert math.sqrt(step_sq) == pytest.approx(float(whole.double().norm()), rel=1e-6)
    assert math.sqrt(update_sq) == pytest.approx(math.sqrt(2 * CHUNK_ELEMENTS), rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(6)
    update, weights, history = torch.randn(3, 1000, generator=draw).to(dtype)
    g, w, h = update.float(), weights.float(), history.float()
    wanted = (0.9 * h + (-0.1 * g + -0.001 * w)).to(dtype)
    make_step(kernel(RULE, lr=0.1), update, weights, history)
    assert float((update.float() - wanted.float()).abs().max()) <= 2 * torch.finfo(dtype).eps * float(
        wanted.abs().max()
    )
    assert float((update != wanted).float().mean()) < 0.01


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("lr", [0.0, 0.1])
def test_norms_are_not_finite_where_an_element_is_not(bad: float, lr: float) -> None:
    update, weights = torch.zeros(5), torch.ones(5)
    update[3] = bad
    update_sq, step_sq = make_step(kernel(RuleSpec(), lr=lr), update, weights, None)
    assert not math.isfinite(update_sq)
    assert not math.isfinite(step_sq)


def test_an_overflow_that_only_the_rounding_makes_is_in_the_norm() -> None:
    update, weights = torch.full((2,), -6e4, dtype=torch.float16), torch.full((2,), 6e4, dtype=torch.float16)
    update_sq, step_sq = make_step(kernel(RuleSpec(), lr=1.0), update, weights, None)
    assert math.isfinite(update_sq)
    assert not math.isfinite(step_sq)
