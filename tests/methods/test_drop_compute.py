"""The threshold of DropCompute: chosen by the rule by which it is enforced, and the paper's formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.methods.drop_compute import (
    NO_THRESHOLD,
    UNLIMITED,
    Timings,
    best_threshold,
    expected_completed,
    expected_slowest_s,
    expected_speedup,
    speedup_at,
)

STEPS, WORKERS, MICRO = 200, 16, 12


def drawn(deviation: float, workers: int = WORKERS, seed: int = 0, rest_s: float = 0.2, steps: int = STEPS) -> Timings:
    rng = np.random.default_rng(seed)
    computed = np.maximum(0.01, rng.normal(1.0, deviation, (steps, workers, MICRO)))
    return Timings(computed_s=computed, rest_s=np.full(steps, rest_s))


def by_hand(timings: Timings, tau_s: float) -> tuple[float, float]:
    """Play the rule micro-batch by micro-batch; return speed-up and dropped share."""
    ratios, done_in_all = [], 0
    for step, rest_s in zip(timings.computed_s, timings.rest_s, strict=True):
        ends, done = [], 0
        for worker in step:
            at = 0.0
            for took in worker:
                if at >= tau_s:
                    break
                at, done = at + took, done + 1
            ends.append(at)
        whole = step.sum(axis=1).max() + rest_s
        ratios.append(done / step.size * whole / (max(ends) + rest_s))
        done_in_all += done
    return float(np.mean(ratios)), 1 - done_in_all / timings.computed_s.size


@given(tau=st.floats(0.1, 14.0), seed=st.integers(0, 50))
def test_what_a_threshold_does_is_what_its_rule_does(tau: float, seed: int) -> None:
    timings = drawn(0.4, workers=3, seed=seed, steps=5)
    found = speedup_at(timings, tau)
    assert (found.speedup, found.dropped) == pytest.approx(by_hand(timings, tau))


def test_the_best_threshold_is_at_least_as_good_as_any() -> None:
    timings = drawn(0.5)
    best = best_threshold(timings)
    assert best.speedup > 1.05
    assert 0.0 < best.dropped < 0.2
    assert all(speedup_at(timings, tau).speedup <= best.speedup + 0.01 for tau in np.linspace(6, 20, 57))


def test_of_very_many_times_the_last_steps_count_and_fewer_thresholds_are_tried() -> None:
    """A scheduler waits for it: 1,000 workers with 100 micro-batches each must not hold it up for seconds."""
    rng, workers, micro_batches = np.random.default_rng(0), 1_000, 100
    even, uneven = (
        np.ones((3, workers, micro_batches)),
        np.maximum(0.01, rng.normal(1, 0.5, (2, workers, micro_batches))),
    )
    timings = Timings(computed_s=np.concatenate((even, uneven)), rest_s=np.ones(5))
    last = Timings(computed_s=uneven, rest_s=np.ones(2))
    assert best_threshold(timings) == best_threshold(last)
    assert best_threshold(last).speedup > 1.05


def test_without_variance_there_is_no_threshold() -> None:
    assert best_threshold(drawn(0.0)) is UNLIMITED
    assert best_threshold(drawn(0.001)) is UNLIMITED


def test_one_worker_alone_gains_nothing() -> None:
    assert best_threshold(drawn(0.3, workers=1)).speedup < 1.05


def test_no_threshold_drops_nothing() -> None:
    found = speedup_at(drawn(0.5), NO_THRESHOLD)
    assert (found.speedup, found.dropped) == (1.0, 0.0)


def test_every_worker_has_at_least_one_micro_batch() -> None:
    assert speedup_at(drawn(0.5), 1e-9).dropped == pytest.approx(1 - 1 / MICRO)


@pytest.mark.parametrize("workers", [8, 64, 200])
def test_the_slowest_worker_takes_what_the_formula_says(workers: int) -> None:
    timings = drawn(0.2, workers=workers, steps=400)
    found = timings.computed_s.sum(axis=2).max(axis=1).mean()
    assert expected_slowest_s(workers, MICRO, 1.0, 0.04) == pytest.approx(found, rel=0.01)


def test_as_many_micro_batches_are_completed_as_the_formula_says() -> None:
    ends = drawn(0.3, workers=64).computed_s.cumsum(axis=2)
    for tau in (9.0, 11.0, 12.0, 13.0):
        assert expected_completed(tau, MICRO, 1.0, 0.09) == pytest.approx((ends < tau).sum(axis=2).mean(), rel=0.01)


def test_the_formula_of_the_speed_up() -> None:
    given_: Any = {"workers": 64, "micro_batches": MICRO, "mean_s": 1.0, "variance_s2": 0.09, "rest_s": 0.5}
    slowest = expected_slowest_s(64, MICRO, 1.0, 0.09)
    assert expected_speedup(1000.0, **given_) == pytest.approx(1.0)
    tau = 13.0
    wanted = expected_completed(tau, MICRO, 1.0, 0.09) / MICRO * (slowest + 0.5) / (tau + 0.5)
    assert expected_speedup(tau, **given_) == pytest.approx(wanted)
    measured = expected_speedup(tau, **given_, slowest_s=20.0)
    assert measured == pytest.approx(wanted * (20.0 + 0.5) / (slowest + 0.5))
    assert expected_slowest_s(1, MICRO, 1.0, 0.09) == MICRO


def test_steps_of_workers_are_put_beside_each_other() -> None:
    timings = Timings.beside([((1, 2, 3, 4, 5, 6), (30, 20, 10)), ((7, 8, 9, 9), (5, 40))], 2)
    assert (timings.computed_s * 1e9).round().tolist() == [[[3, 4], [7, 8]], [[5, 6], [9, 9]]]
    assert (timings.rest_s * 1e9).round().tolist() == [5, 10]
    assert math.isinf(NO_THRESHOLD)
