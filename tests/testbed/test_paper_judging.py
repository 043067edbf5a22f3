from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.testbed.judging import Curve, curve_of, isotonic
from benchmarks.testbed.runs import Snapshot

values = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(values)
def test_smoothing_is_isotonic_regression(row):
    """By its max-min formula: the greatest, over starts before, of the least mean, over ends behind."""
    n = len(row)
    expected = [max(min(np.mean(row[j : k + 1]) for k in range(i, n)) for j in range(i + 1)) for i in range(n)]

    assert isotonic(row) == pytest.approx(expected)


@given(values)
def test_smoothing_leaves_a_curve_alone_that_never_falls(row):
    assert isotonic(sorted(row)) == pytest.approx(sorted(row))


def _curve(*accuracy):
    n = len(accuracy)
    return Curve(
        time_s=tuple(float(i) for i in range(n)), gradients=tuple(10 * i for i in range(n)), accuracy=tuple(accuracy)
    )


def test_the_time_to_a_target_is_read_between_snapshots():
    curve = _curve(0.0, 0.4, 0.8, 0.9)

    assert curve.time_to(0.6) == pytest.approx(1.5)
    assert curve.gradients_to(0.6) == pytest.approx(15.0)


def test_one_lucky_snapshot_does_not_meet_the_target():
    assert _curve(0.0, 0.4, 0.95, 0.5, 0.6, 0.7).time_to(0.9) is None


def test_a_target_that_is_met_at_the_start_takes_no_time():
    assert _curve(0.9, 0.95).time_to(0.5) == 0.0


def test_accuracy_at_the_end_is_the_mean_over_the_last_fifth_of_the_gradients():
    curve = _curve(*(0.1 * i for i in range(11)))

    assert curve.at_end() == pytest.approx((0.8 + 0.9 + 1.0) / 3)
    assert curve.at_end(50) == pytest.approx((0.4 + 0.5) / 2)


def test_snapshots_are_evaluated_with_undilated_times_and_single_gradients():
    snapshots = [
        Snapshot(time_ns=1_000_000_000 + i * 500_000_000, updates=i, weights=np.full(1, i, np.float32))
        for i in range(3)
    ]
    curve = curve_of(
        snapshots,
        lambda weights: float(weights[0]) / 10,
        began_ns=1_000_000_000,
        dilation=2.0,
        gradients_after=lambda updates: 30 * updates,
    )

    assert (curve.time_s, curve.gradients) == ((0.0, 0.25, 0.5), (0, 30, 60))
    assert curve.accuracy == pytest.approx((0.0, 0.1, 0.2))
