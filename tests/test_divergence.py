"""The estimate of a divergence is never below the truth."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import UsageError
from mlfabric.model.divergence import (
    Adam,
    Lead,
    Limit,
    RuleState,
    as_norm,
    step_bound,
    units_above,
    units_below,
)
from mlfabric.model.stepping import member_coefficients, transition
from mlfabric.model.update_rules import MomentumAt, RuleKind, RuleSpec

GAMMAS = st.sampled_from([0.0, 0.25, 0.5, 0.9, 0.99])
SEEDS = st.integers(0, 2**32 - 1)
NORMS = st.floats(0, 1e12)
WIDTH = 5


def momentum_bound(gamma, norms, history):
    """Bound steps whose updates are norms already."""
    return step_bound(RuleSpec(momentum=gamma), norms, [1.0] * len(norms), RuleState(history_norm=history))


def exact(units):
    return Fraction(units, 2**100)


def steps_of(updates, history, gamma):
    """Every |h_i| in one dimension, exactly."""
    steps, h = [], Fraction(history)
    for update in updates:
        h = Fraction(gamma) * h + Fraction(update)
        steps.append(h)
    return steps


def a_run(seed, count, gamma):
    """A primary's weights after every commit, and norms as its workers would send them."""
    rng = np.random.default_rng(seed)
    updates = rng.standard_normal((count, WIDTH)) * 10.0 ** rng.integers(-2, 3, (count, 1))
    if rng.random() < 0.3:
        updates = np.abs(updates)
    history = rng.standard_normal(WIDTH) * 10.0 ** rng.integers(-2, 3)
    weights = [rng.standard_normal(WIDTH)]
    histories = [history]
    for update in updates:
        histories.append(gamma * histories[-1] + update)
        weights.append(weights[-1] + histories[-1])
    return rng, updates, weights, histories


def replica_of(updates, weights, history, gamma, rng):
    """What a replica has after these updates, which reached it as sums of its own grouping."""
    count = len(updates)
    while count > 0:
        taken = int(rng.integers(1, count + 1))
        rule, lrs = RuleSpec(momentum=gamma), [1.0] * taken
        first, second = np.transpose(member_coefficients(rule, lrs)) @ -updates[:taken]
        p = transition(rule, lrs)
        weights, history = p.ww * weights + p.wh * history + first, p.hw * weights + p.hh * history + second
        updates, count = updates[taken:], count - taken
    return weights


@given(SEEDS, st.integers(1, 25), GAMMAS)
def test_no_lead_diverges_further_than_its_bound(seed, count, gamma):
    rng, updates, weights, histories = a_run(seed, count, gamma)
    norms = np.linalg.norm(updates, axis=1).tolist()
    lead = Lead(momentum_bound(gamma, norms, float(np.linalg.norm(histories[0]))))
    for held in range(count + 1):
        replica = replica_of(updates[:held], weights[0], histories[0], gamma, rng)
        for committed in range(held, count + 1):
            truth = float(np.linalg.norm(weights[committed] - replica))
            most = max(float(np.linalg.norm(w)) for w in weights)
            assert truth <= as_norm(lead.bound(held, committed)) + 1e-12 * most


@given(SEEDS, st.integers(1, 25), GAMMAS, st.data())
def test_of_commits_already_made_the_known_steps_count(seed, count, gamma, data):
    _, updates, weights, histories = a_run(seed, count, gamma)
    made = data.draw(st.integers(0, count))
    norms = np.linalg.norm(updates, axis=1).tolist()
    known = [float(np.linalg.norm(history)) for history in histories[1 : made + 1]]
    planned = momentum_bound(gamma, norms[made:], float(np.linalg.norm(histories[made])))
    lead = Lead([*map(units_above, known), *planned])
    blind = Lead(momentum_bound(gamma, norms, float(np.linalg.norm(histories[0]))))
    most = max(float(np.linalg.norm(w)) for w in weights)
    for held in range(count + 1):
        truth = float(np.linalg.norm(weights[-1] - weights[held]))
        assert truth <= as_norm(lead.bound(held, count)) + 1e-12 * most
        assert lead.bound(held, count) <= blind.bound(held, count) + units_above(1e-12 * most)


@given(st.lists(NORMS, min_size=1, max_size=60), NORMS, GAMMAS)
def test_not_by_a_rounding_is_it_below_the_truth_and_by_less_than_1e9th_above_it(norms, history, gamma):
    """All point the same way in one dimension: the case with equality, in exact arithmetic."""
    lead = Lead(momentum_bound(gamma, norms, history))
    steps = steps_of(norms, history, gamma)
    for held in range(0, len(norms) + 1, 7):
        for committed in range(held, len(norms) + 1, 5):
            truth, bound = sum(steps[held:committed], Fraction(0)), exact(lead.bound(held, committed))
            assert truth <= bound <= truth * (1 + Fraction(1, 10**9)) + Fraction(1, 10**20)


def test_whole_numbers_stay_whole():
    lead = Lead(momentum_bound(0.5, [3.0, 1.0, 1.0], 2.0))
    assert [as_norm(lead.bound(0, n)) for n in range(4)] == [0, 4, 7, 9.5]
    assert lead.bound(1, 3) == units_below(5.5)


@given(st.floats(0, 1e308))
def test_norms_are_rounded_up_and_limits_down(value):
    above, below = units_above(value), units_below(value)
    if below is None:
        assert value >= 2.0**900
        assert above > units_above(2.0**899)
    else:
        assert exact(below) <= Fraction(value) <= exact(above) < exact(below + 2)


@pytest.mark.parametrize("value", [-1.0, math.nan, -math.inf])
def test_what_is_no_norm_is_refused(value):
    with pytest.raises(UsageError, match="0 or more"):
        units_above(value)
    with pytest.raises(UsageError, match="0 or more"):
        units_below(value)


def test_an_infinite_norm_is_beyond_every_limit_and_an_infinite_limit_is_none():
    bounds = momentum_bound(0.1, [math.inf, 1.0, 1.0], 0.0)
    assert min(bounds) > units_above(2.0**899)
    assert as_norm(bounds[2]) == math.inf
    assert units_below(math.inf) is None


@given(SEEDS, st.integers(1, 60), st.sampled_from([(0.9, 0.999), (0.0, 0.9), (0.9, 0.81), (0.99, 0.5)]))
def test_adam_steps_no_further_than_its_bound(seed, count, betas):
    """With gradients that grow, vanish and return, which is what makes its steps long."""
    rng = np.random.default_rng(seed)
    beta1, beta2 = betas
    m = v = np.zeros(WIDTH)
    bounds = Adam(elements=WIDTH, beta1=beta1, beta2=beta2).step_bound([0.1] * count, 0)
    growth = 10.0 ** rng.uniform(-1, 1)
    for t, bound in enumerate(bounds, 1):
        gradient = rng.standard_normal(WIDTH) * growth**t if rng.random() < 0.7 else np.zeros(WIDTH)
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
        if (v > 0).all():
            step = 0.1 * (m / (1 - beta1**t)) / np.sqrt(v / (1 - beta2**t))
            assert np.linalg.norm(step) <= as_norm(bound)


def test_the_bound_of_adam_is_reached_by_gradients_that_grow_as_cauchy_and_schwarz_want():
    beta1, beta2, steps = 0.9, 0.999, 50
    gradients = [(beta1 / beta2) ** (steps - t) for t in range(1, steps + 1)]
    m = v = 0.0
    for gradient in gradients:
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
    step = (m / (1 - beta1**steps)) / math.sqrt(v / (1 - beta2**steps))
    bound = Adam(elements=1).step_bound([1.0], steps - 1)[0]
    assert as_norm(bound) == pytest.approx(step, rel=1e-6)


def test_adam_without_memory_of_squares_has_no_bound_unless_it_has_none_of_gradients_either():
    assert as_norm(Adam(elements=1, beta2=0.0).step_bound([1.0, 1.0, 0.0], 0)[1]) == math.inf
    assert [as_norm(u) for u in Adam(elements=4, beta1=0.0, beta2=0.0).step_bound([1.0, 0.0], 5)] == pytest.approx(
        [2, 0]
    )
    assert as_norm(Adam(elements=1, beta1=0.9, beta2=0.1).step_bound([1.0], 10**6)[0]) == math.inf


RULES = [
    RuleSpec(),
    RuleSpec(momentum=0.9),
    RuleSpec(momentum=0.9, weight_decay=0.1),
    RuleSpec(weight_decay=0.5),
    RuleSpec(momentum=0.9, weight_decay=0.1, momentum_at=MomentumAt.WORKERS),
    RuleSpec(kind=RuleKind.ADADELAY, smoothness=1.0, delay_scale=0.5, weight_decay=0.1),
    RuleSpec(kind=RuleKind.ADAM, weight_decay=0.1),
    RuleSpec(kind=RuleKind.ADAM, beta1=0.5, beta2=0.6),
    RuleSpec(kind=RuleKind.ADAM, weight_decay=0.3, decoupled=True),
]


class Model:
    """Weights that a rule steps, by the formulas of mlfabric.model.update_rules."""

    def __init__(self, rule, rng):
        self.rule = rule
        self.weights = rng.standard_normal(WIDTH) * 10.0 ** rng.integers(-1, 2)
        self.history, self.squares = np.zeros(WIDTH), np.zeros(WIDTH)
        self.steps = 0

    def step(self, gradient, lr):
        before, rule = self.weights, self.rule
        self.steps += 1
        if rule.kind is RuleKind.ADAM:
            full = gradient if rule.decoupled else gradient + rule.weight_decay * before
            before_step = before * (1 - lr * rule.weight_decay) if rule.decoupled else before
            self.history = rule.beta1 * self.history + (1 - rule.beta1) * full
            self.squares = rule.beta2 * self.squares + (1 - rule.beta2) * full**2
            root = np.sqrt(self.squares / (1 - rule.beta2**self.steps)) + rule.epsilon
            self.weights = before_step - lr * self.history / (1 - rule.beta1**self.steps) / root
        else:
            decayed = gradient + rule.server_weight_decay * before
            self.history = rule.server_momentum * self.history - lr * decayed
            self.weights = before + self.history
        return self.weights - before

    def state(self):
        history, weights = float(np.linalg.norm(self.history)), float(np.linalg.norm(self.weights))
        is_adam = self.rule.kind is RuleKind.ADAM
        return RuleState(
            history_norm=0.0 if is_adam else history,
            weights_norm=weights,
            steps=self.steps,
            elements=WIDTH,
        )


@given(SEEDS, st.integers(1, 25), st.sampled_from(RULES))
def test_no_rule_steps_further_than_its_bound(seed, count, rule):
    rng = np.random.default_rng(seed)
    model = Model(rule, rng)
    gradients = rng.standard_normal((2 * count, WIDTH)) * 10.0 ** rng.integers(-2, 3, (2 * count, 1))
    if rng.random() < 0.3:
        gradients = -np.abs(gradients) * np.sign(model.weights)
    lrs = [rule.lr_at(version, int(rng.integers(9))) for version in range(2 * count)]
    if rule.kind is not RuleKind.ADADELAY:
        lrs = (10.0 ** rng.uniform(-3, 0.7, 2 * count)).tolist()
    for gradient, lr in zip(gradients[:count], lrs, strict=False):
        model.step(gradient, lr)
    norms = np.sqrt((gradients**2).sum(axis=1)).tolist()
    bounds = step_bound(rule, norms[count:], lrs[count:], model.state())
    for gradient, lr, bound in zip(gradients[count:], lrs[count:], bounds, strict=True):
        truth = float(np.linalg.norm(model.step(gradient, lr)))
        assert truth <= as_norm(bound) * (1 + 1e-9) + 1e-12 * float(np.linalg.norm(model.weights))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(0, 1e6), st.floats(0, 2), st.floats(0, 3))
def test_with_weight_decay_it_is_not_below_the_truth_by_a_rounding(norms, weights, decay, lr):
    """One dimension, exact arithmetic; gradients that point away from the weights lengthen every step."""
    rule = RuleSpec(momentum=0.5, weight_decay=decay)
    bounds = step_bound(rule, norms, [lr] * len(norms), RuleState(weights_norm=weights))
    w, h = Fraction(weights), Fraction(0)
    for norm, bound in zip(norms, bounds, strict=True):
        gradient = Fraction(norm) if w > 0 else -Fraction(norm)
        h = h / 2 - Fraction(lr) * (gradient + Fraction(decay) * w)
        w += h
        assert abs(h) <= exact(bound)


def test_a_first_step_that_all_points_one_way_is_bounded_by_its_length():
    rule = RuleSpec(momentum=0.5, weight_decay=0.5)
    state = RuleState(history_norm=2.0, weights_norm=8.0)
    assert step_bound(rule, [3.0], [0.25], state)[0] == units_below(0.5 * 2 + 0.25 * (3 + 0.5 * 8))


def test_every_step_has_a_rate():
    with pytest.raises(UsageError, match="1 learning rates for 2 steps; allowed: one for each"):
        step_bound(RuleSpec(), [1.0, 1.0], [0.1], RuleState())


def test_weights_are_not_thought_shorter_than_they_are_by_a_rounding():
    """One unit decays by a half each time; rounded down, nothing would be left for the second step."""
    state = RuleState(weights_norm=2.0**-100)
    assert min(step_bound(RuleSpec(weight_decay=0.5), [0.0] * 4, [1.0] * 4, state)) >= 1


@given(
    norms=st.lists(st.integers(0, 3), max_size=9),
    most=st.integers(0, 6),
    most_commits=st.sampled_from([None, 0, 1, 2, 4]),
)
def test_a_limit_allows_what_it_says_is_the_most_and_no_more(norms, most, most_commits):
    lead, limit = Lead(map(units_above, map(float, norms))), Limit.of(most, most_commits)

    def fits(held, committed):
        length = committed - held
        is_short = (most_commits is None or length <= most_commits) and (most > 0 or not length)
        return is_short and sum(norms[held:committed]) <= most

    for held in range(len(norms) + 1):
        fitting = [n for n in range(held, len(norms) + 1) if fits(held, n)]
        assert limit.most(lead, [held]) == [max(fitting)]
        assert [n for n in range(held, len(norms) + 1) if limit.allows(lead, held, n)] == fitting
