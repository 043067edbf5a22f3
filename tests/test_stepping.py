"""However updates are grouped, the model is that of single steps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import ConfigError, UsageError
from mlfabric.model.specs import TensorKind
from mlfabric.model.stepping import NOTHING, member_coefficients, transition
from mlfabric.model.update_rules import MomentumAt, RuleKind, RuleSpec, Schedule
from mlfabric.server.rule_kernels import sum_kernels

SEEDS = st.integers(0, 2**32 - 1)
WIDTH = 6
RULES = st.builds(
    RuleSpec,
    momentum=st.sampled_from([0.0, 0.3, 0.9, 0.999, 0.999999]),
    weight_decay=st.sampled_from([0.0, 1e-4, 0.1]),
)
SGD = RuleSpec(momentum=0.5)


def a_case(seed, count, rule):
    """Gradients of very different sizes, learning rates that move, weights and history."""
    rng = np.random.default_rng(seed)
    gradients = rng.standard_normal((count, WIDTH)) * 10.0 ** rng.integers(-3, 4, (count, 1))
    lrs = (10.0 ** rng.uniform(-3, 0, count)).tolist()
    history = rng.standard_normal(WIDTH) if rule.server_momentum > 0 else None
    return rng, list(gradients), lrs, rng.standard_normal(WIDTH), history


def single_steps(gradients, lrs, weights, history, rule):
    """The steps as the rule has them, and the length of the way that each element of the weights goes."""
    way = np.abs(weights)
    for gradient, lr in zip(gradients, lrs, strict=True):
        step = -lr * (gradient + rule.server_weight_decay * weights)
        if history is not None:
            step = history = rule.server_momentum * history + step
        weights = weights + step
        way = way + np.abs(step)
    return weights, history, way


def grouped(case, rule):
    """The group in one step: its members' coefficients, added in any order, and the kernel that a server steps with."""
    rng, gradients, lrs, weights, history = case
    coefficients = np.transpose(member_coefficients(rule, lrs))[: rule.sum_images]
    order = rng.permutation(len(lrs))
    images = [torch.from_numpy(row[order] @ np.array(gradients)[order]) for row in coefficients]
    weights = torch.from_numpy(weights.copy())
    state = [] if history is None else [torch.from_numpy(history.copy())]
    kernel = sum_kernels(rule, lrs=lrs, steps=0)[TensorKind.PARAMETER]
    kernel.make(images, weights, state)
    kernel.take(images, weights, weights, state)
    return weights.numpy(), *(tensor.numpy() for tensor in state)


def check(case, rule, relative=1e-12):
    _, gradients, lrs, weights, history = case
    *wanted, way = single_steps(gradients, lrs, weights, history, rule)
    for found, want in zip(grouped(case, rule), wanted, strict=False):
        assert np.linalg.norm(found - want) <= relative * np.linalg.norm(way)


@given(SEEDS, st.integers(1, 40), RULES)
def test_a_group_is_as_many_single_steps(seed, count, rule):
    check(a_case(seed, count, rule), rule)


@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.99, 0.999, 0.999999])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_six_hundred_updates_in_one_sum_are_six_hundred_steps(gamma, decay):
    rule = RuleSpec(momentum=gamma, weight_decay=decay)
    check(a_case(600, 600, rule), rule)


@pytest.mark.parametrize("gamma", [0.9, 0.999, 0.999999, 1 - 2**-52])
def test_near_one_no_digit_of_the_movement_is_lost(gamma):
    """All point the same way, so that the model itself is no smaller than the way that it went."""
    rule = RuleSpec(momentum=gamma)
    gradients, lrs, zeros = [np.full(WIDTH, 1.0 + k / 7) for k in range(200)], [0.1] * 200, np.zeros(WIDTH)
    wanted = single_steps(gradients, lrs, zeros, zeros, rule)
    found = grouped((np.random.default_rng(1), gradients, lrs, zeros, zeros), rule)
    np.testing.assert_allclose(found, wanted[:2], rtol=2e-14)


@given(SEEDS, st.integers(1, 12), st.integers(0, 12), RULES)
def test_transitions_compose(seed, count, cut, rule):
    _, _, lrs, _, _ = a_case(seed, count, rule)
    joined = transition(rule, lrs[:cut]).then(transition(rule, lrs[cut:]))
    np.testing.assert_allclose(joined, transition(rule, lrs), rtol=1e-13, atol=1e-13)
    assert NOTHING.then(joined) == joined.then(NOTHING) == joined


def test_others_places_only_let_history_coast_and_weights_decay():
    assert transition(RuleSpec(momentum=0.5), [0.1] * 3) == (3, 1, 0.875, 0, 0.125)
    assert transition(RuleSpec(momentum=0.5), []) == NOTHING
    assert transition(RuleSpec(weight_decay=0.5), [0.5, 1.0]).ww == 0.375


def test_momentum_at_the_workers_leaves_the_server_nothing_but_the_rate():
    rule = RuleSpec(momentum=0.9, weight_decay=0.1, momentum_at=MomentumAt.WORKERS)
    assert member_coefficients(rule, [0.5, 0.25]) == ((-0.5, 0), (-0.25, 0))
    assert transition(rule, [0.5, 0.25]) == (2, 1, 0, 0, 0)


def test_adadelay_sums_with_the_rates_of_its_delays():
    rule = RuleSpec(kind=RuleKind.ADADELAY, smoothness=2.0, delay_scale=1.0)
    lrs = [rule.lr_at(version, tau) for version, tau in ((0, 0), (1, 3), (2, 7))]
    assert lrs == [1 / 2, 1 / 4, 1 / 5]
    assert member_coefficients(rule, lrs) == ((-1 / 2, 0), (-1 / 4, 0), (-1 / 5, 0))


def test_a_group_of_adam_is_a_plain_sum_and_no_linear_step():
    rule = RuleSpec(kind=RuleKind.ADAM)
    assert member_coefficients(rule, [0.1, 0.2]) == ((1, 0), (1, 0))
    with pytest.raises(UsageError, match=r"adam are not linear.*allowed: sgd, adadelay"):
        transition(rule, [0.1])


@pytest.mark.parametrize("lr", [-0.1, math.nan, math.inf])
def test_a_rate_out_of_range_is_refused(lr):
    for ask in (transition, member_coefficients):
        with pytest.raises(ConfigError, match="finite and >= 0"):
            ask(SGD, [0.1, lr])


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(0, 10**6), st.integers(0, 10**4))
def test_adadelay_steps_less_far_the_later_and_the_more_delayed(smoothness, scale, version, tau):
    rule = RuleSpec(kind=RuleKind.ADADELAY, smoothness=smoothness, delay_scale=scale)
    assert rule.lr_at(version, tau) == pytest.approx(1 / (smoothness + scale * (version + tau) ** 0.5))
    assert rule.lr_at(version, tau + 1) <= rule.lr_at(version, tau) <= rule.lr_at(0) == 1 / smoothness


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"lr": 0.0}, r"sgd: lr=0\.0; allowed: > 0"),
        ({"clip_norm": -1.0}, r"clip_norm=-1\.0; allowed: >= 0 and finite; 0 for none"),
        ({"clip_norm": math.inf}, "clip_norm=inf; allowed"),
        ({"weight_decay": math.nan}, "weight_decay=nan; allowed"),
        ({"kind": RuleKind.ADAM, "beta1": 1.0}, r"adam: beta1=1\.0; allowed: in \[0, 1\)"),
        ({"kind": RuleKind.ADAM, "beta2": -0.1}, r"beta2=-0\.1; allowed: in \[0, 1\)"),
        ({"kind": RuleKind.ADAM, "epsilon": 0.0}, r"epsilon=0\.0; allowed: > 0"),
        ({"kind": RuleKind.ADAM, "momentum": 0.9}, r"adam: momentum=0\.9 has no part in it; allowed: lr, .*beta1"),
        ({"kind": RuleKind.ADAM, "momentum_at": MomentumAt.WORKERS}, "momentum_at=.* has no part in it"),
        ({"beta1": 0.5}, r"sgd: beta1=0\.5 has no part in it; allowed: lr, momentum"),
        ({"kind": RuleKind.ADADELAY}, r"adadelay: smoothness=0\.0; allowed: > 0"),
        ({"kind": RuleKind.ADADELAY, "smoothness": 1.0}, r"delay_scale=0\.0; allowed: > 0"),
        ({"kind": RuleKind.ADADELAY, "lr": 0.2}, r"lr=0\.2 has no part in it; allowed: weight_decay, kind, smoothness"),
        ({"schedule": Schedule.COSINE}, "total_versions=0; allowed: > 0 for the cosine schedule"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_what_is_allowed(fields, said):
    with pytest.raises(ConfigError, match=said):
        RuleSpec(**fields)


def test_where_the_momentum_is_there_is_the_weight_decay():
    at_server, at_workers = (RuleSpec(momentum=0.9, weight_decay=0.1, momentum_at=where) for where in MomentumAt)
    nobody_chose = RuleSpec(momentum=0.9, weight_decay=0.1)
    for rule in (at_server, nobody_chose):
        assert (rule.server_momentum, rule.server_weight_decay) == (0.9, 0.1)
        assert (rule.worker_momentum, rule.worker_weight_decay) == (0, 0)
        assert (rule.state_images, rule.sum_images) == (1, 2)
    assert (at_workers.server_momentum, at_workers.server_weight_decay) == (0, 0)
    assert (at_workers.worker_momentum, at_workers.worker_weight_decay) == (0.9, 0.1)
    assert (at_workers.state_images, at_workers.sum_images) == (0, 1)
    plain = RuleSpec(weight_decay=0.1, momentum_at=MomentumAt.WORKERS)
    assert (plain.worker_weight_decay, plain.server_weight_decay) == (0, 0.1)
    adam = RuleSpec(kind=RuleKind.ADAM)
    assert (adam.state_images, adam.sum_images) == (2, 1)
