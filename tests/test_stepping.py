"""However updates are grouped, the model is that of single steps."""

from __future__ import annotations

import math
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import ConfigError, UsageError
from mlfabric.rules import MomentumAt, RuleKind, RuleSpec, Schedule
from mlfabric.stepping import NOTHING, UpdateSum, member_coefficients, transition

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


def nested(gradients, lrs, rule, rng):
    """One sum, made of sums of neighbours in random order."""
    sums = [UpdateSum.of(g, rule, lr) for g, lr in zip(gradients, lrs, strict=True)]
    while len(sums) > 1:
        i = int(rng.integers(len(sums) - 1))
        sums[i : i + 2] = [sums[i].then(sums[i + 1])]
    return sums[0]


def fold(gradients, lrs, places, rule):
    """One worker's updates of a window, at these places of it."""
    window = UpdateSum.of(gradients[places[0]], rule, lrs[places[0]])
    for before, place in pairwise(places):
        window = window.waited(transition(rule, lrs[before + 1 : place]))
        window = window.then(UpdateSum.of(gradients[place], rule, lrs[place]))
    return window.waited(transition(rule, lrs[places[-1] + 1 :]))


def empty(rule, lrs):
    second = np.zeros(WIDTH) if rule.server_momentum > 0 else None
    return UpdateSum(places=transition(rule, lrs), first=np.zeros(WIDTH), second=second)


def check(window, case, rule, relative=1e-12):
    _, gradients, lrs, weights, history = case
    assert window.places.steps == len(gradients)
    wanted = single_steps(gradients, lrs, weights, history, rule)
    for apply in (applied, applied_in_place):
        found = apply(window, weights, history)
        assert np.linalg.norm(found[0] - wanted[0]) <= relative * np.linalg.norm(wanted[2])
        if history is not None:
            assert np.linalg.norm(found[1] - wanted[1]) <= relative * np.linalg.norm(wanted[2])


def applied(window, weights, history):
    return window.apply(weights, history)


def applied_in_place(window, weights, history):
    weights, history = weights.copy(), None if history is None else history.copy()
    window.apply_in_place(weights, history)
    return weights, history


@given(SEEDS, st.integers(1, 40), RULES)
def test_any_grouping_nested_too_is_that_many_single_steps(seed, count, rule):
    case = a_case(seed, count, rule)
    rng, gradients, lrs, _, _ = case
    check(nested(gradients, lrs, rule, rng), case, rule)


@given(SEEDS, st.integers(1, 40), RULES)
def test_the_members_coefficients_make_the_images_of_the_group(seed, count, rule):
    case = a_case(seed, count, rule)
    rng, gradients, lrs, _, _ = case
    window = empty(rule, lrs)
    coefficients = member_coefficients(rule, lrs)
    for j in rng.permutation(count).tolist():
        window.add_update_in_place(gradients[j], coefficients[j])
    check(window, case, rule)


@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.99, 0.999, 0.999999])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_six_hundred_updates_in_one_sum_are_six_hundred_steps(gamma, decay):
    rule = RuleSpec(momentum=gamma, weight_decay=decay)
    case = a_case(600, 600, rule)
    rng, gradients, lrs, _, _ = case
    check(nested(gradients, lrs, rule, rng), case, rule)


@pytest.mark.parametrize("gamma", [0.9, 0.999, 0.999999, 1 - 2**-52])
def test_near_one_no_digit_of_the_movement_is_lost(gamma):
    """All point the same way, so that the model itself is no smaller than the way that it went."""
    rule = RuleSpec(momentum=gamma)
    gradients = [np.full(WIDTH, 1.0 + k / 7) for k in range(200)]
    window = nested(gradients, [0.1] * 200, rule, np.random.default_rng(1))
    wanted = single_steps(gradients, [0.1] * 200, np.zeros(WIDTH), np.zeros(WIDTH), rule)
    found = window.apply(np.zeros(WIDTH), np.zeros(WIDTH))
    np.testing.assert_allclose(found[0], wanted[0], rtol=2e-14)
    np.testing.assert_allclose(found[1], wanted[1], rtol=2e-14)


@given(SEEDS, st.integers(1, 30), RULES, st.integers(1, 4))
def test_what_workers_folded_of_their_own_updates_adds_up_to_the_window(seed, count, rule, workers):
    case = a_case(seed, count, rule)
    rng, gradients, lrs, _, _ = case
    owners = rng.integers(workers, size=count).tolist()
    places = [[p for p in range(count) if owners[p] == owner] for owner in sorted(set(owners))]
    folds = [fold(gradients, lrs, own, rule) for own in places]
    whole = reduce(UpdateSum.beside, folds)
    assert max(f.places.steps for f in folds) == whole.places.steps
    check(UpdateSum(places=transition(rule, lrs), first=whole.first, second=whole.second), case, rule)
    first_place_taken = next(f for f, own in zip(folds, places, strict=True) if own[0] == 0)
    assert whole.places == first_place_taken.places


@given(SEEDS, st.integers(1, 30), RULES, st.integers(1, WIDTH))
def test_an_aggregator_adds_chunk_by_chunk_in_the_order_of_arrival(seed, count, rule, chunk):
    case = a_case(seed, count, rule)
    rng, gradients, lrs, _, _ = case
    cuts = [0, *sorted(rng.choice(np.arange(1, count), size=min(3, count - 1), replace=False).tolist()), count]
    inputs = [(nested(gradients[a:b], lrs[a:b], rule, rng), transition(rule, lrs[b:])) for a, b in pairwise(cuts)]
    window = empty(rule, lrs)
    pieces = [(n, start) for n in range(len(inputs)) for start in range(0, WIDTH, chunk)]
    for k in rng.permutation(len(pieces)).tolist():
        n, start = pieces[k]
        arrived, behind = inputs[n]
        window.part(start, start + chunk).add_in_place(arrived.part(start, start + chunk), behind)
    check(window, case, rule)


@given(SEEDS, st.lists(st.integers(0, 4), min_size=1, max_size=10), RULES)
def test_a_worker_folds_in_place_what_it_would_fold_anew(seed, gaps, rule):
    rng, gradients, lrs, _, _ = a_case(seed, len(gaps) + 1, rule)
    inputs = [gradient.copy() for gradient in gradients]
    folded = UpdateSum.of(gradients[0], rule, lrs[0])
    anew = UpdateSum.of(gradients[0], rule, lrs[0])
    for gradient, lr, gap in zip(gradients[1:], lrs[1:], gaps, strict=True):
        skipped = transition(rule, rng.uniform(0, 1, gap).tolist())
        folded = folded.append_in_place(UpdateSum.of(gradient, rule, lr), skipped)
        anew = anew.waited(skipped).then(UpdateSum.of(gradient, rule, lr))
    assert folded.places.steps == anew.places.steps == len(gradients) + sum(gaps)
    np.testing.assert_allclose(folded.places, anew.places, rtol=1e-12, atol=1e-12)
    rounding = 1e-13 * float(np.abs(gradients).sum())
    np.testing.assert_allclose(folded.first, anew.first, rtol=0, atol=rounding)
    if folded.second is not None:
        assert anew.second is not None
        np.testing.assert_allclose(folded.second, anew.second, rtol=0, atol=rounding)
    np.testing.assert_array_equal(gradients, inputs)


@given(SEEDS, st.integers(1, 12), st.integers(0, 12), RULES)
def test_transitions_compose_like_the_windows_that_they_belong_to(seed, count, cut, rule):
    _, _, lrs, _, _ = a_case(seed, count, rule)
    joined = transition(rule, lrs[:cut]).then(transition(rule, lrs[cut:]))
    np.testing.assert_allclose(joined, transition(rule, lrs), rtol=1e-13, atol=1e-13)
    assert NOTHING.then(joined) == joined.then(NOTHING) == joined


@given(SEEDS, st.integers(1, 12), RULES)
def test_tensors_of_torch_are_summed_alike(seed, count, rule):
    case = a_case(seed, count, rule)
    rng, gradients, lrs, weights, history = case
    window = nested([torch.from_numpy(gradient) for gradient in gradients], lrs, rule, rng)
    w, h = torch.from_numpy(weights.copy()), None if history is None else torch.from_numpy(history.copy())
    found = window.apply(w, h)[0].numpy()
    window.apply_in_place(w, h)
    wanted, _, way = single_steps(gradients, lrs, weights, history, rule)
    assert np.linalg.norm(w.numpy() - wanted) <= 1e-12 * np.linalg.norm(way)
    assert np.linalg.norm(found - wanted) <= 1e-12 * np.linalg.norm(way)


@pytest.mark.parametrize("make", [np.ones, torch.ones])
def test_single_precision_stays_single_precision(make):
    update: Any = make(4) if make is torch.ones else make(4, np.float32)
    rule = RuleSpec(momentum=0.9, weight_decay=0.01)
    one = UpdateSum.of(update, rule, 0.1)
    found: Any = one.then(one).waited(transition(rule, [0.1])).apply(update, update)
    assert [tensor.dtype for tensor in found] == [update.dtype] * 2


def test_a_window_of_others_updates_only_lets_history_coast_and_weights_decay():
    weights, history = empty(RuleSpec(momentum=0.5), [0.1] * 3).apply(np.zeros(WIDTH), np.ones(WIDTH))
    assert (weights[0], history[0]) == (0.875, 0.125)
    weights, history = empty(RuleSpec(momentum=0.5), []).apply(np.zeros(WIDTH), np.ones(WIDTH))
    assert (weights[0], history[0]) == (0, 1)
    weights, _ = empty(RuleSpec(weight_decay=0.5), [0.5, 1.0]).apply(np.ones(WIDTH), None)
    assert weights[0] == 0.375


def test_without_momentum_one_tensor_is_enough():
    window = UpdateSum.of(np.ones(2), RuleSpec(), 0.5).then(UpdateSum.of(np.ones(2), RuleSpec(), 0.25))
    assert window.second is None
    weights, history = window.apply(np.zeros(2), None)
    assert (weights.tolist(), history) == ([-0.75, -0.75], None)


def test_momentum_at_the_workers_leaves_the_server_nothing_but_the_rate():
    rule = RuleSpec(momentum=0.9, weight_decay=0.1, momentum_at=MomentumAt.WORKERS)
    assert member_coefficients(rule, [0.5, 0.25]) == ((-0.5, 0), (-0.25, 0))
    assert transition(rule, [0.5, 0.25]) == (2, 1, 0, 0, 0)
    assert UpdateSum.of(np.ones(2), rule, 0.5).second is None


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


def test_misuse_says_what_is_allowed():
    one, other = UpdateSum.of(np.ones(2), SGD, 0.1), UpdateSum.of(np.ones(2), RuleSpec(), 0.1)
    for join in (one.then, one.beside, one.append_in_place, one.add_in_place, other.then):
        with pytest.raises(UsageError, match="sums of one job"):
            join(other if join != other.then else one)
    with pytest.raises(UsageError, match="allowed: 2 at most before its end"):
        empty(SGD, [0.1] * 3).add_in_place(one, transition(SGD, [0.1] * 3))
    aliased = UpdateSum(places=one.places, first=one.first, second=one.first)
    for write in (aliased.append_in_place, aliased.add_in_place):
        with pytest.raises(UsageError, match="one tensor"):
            write(one)
    with pytest.raises(UsageError, match="zeros at first"):
        one.apply(np.ones(2), None)


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
