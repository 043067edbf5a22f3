"""What counts as late: far later than is usual, and never because of one stuck transfer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.network import Profile
from mlfabric.scheduler.records import OVERDUE_SLACK_NS, Lateness

MS = 1_000_000
BRIEF = Profile(0, MS, ())


@pytest.mark.parametrize("late_ns", [[0] * 100, [3_600_000 * MS]], ids=["on time", "once, by an hour"])
def test_a_transfer_is_given_the_slack_while_others_are_on_time_or_one_is_stuck(late_ns: list[int]) -> None:
    lateness = Lateness()
    for late in late_ns:
        lateness.note(late)
    assert lateness.patience_ns(BRIEF) == OVERDUE_SLACK_NS


def test_a_long_transfer_is_given_half_its_time() -> None:
    assert Lateness().patience_ns(Profile(0, 1000 * MS, ())) == 500 * MS


def test_where_all_are_late_nobody_is_overdue() -> None:
    lateness = Lateness()
    for _ in range(200):
        lateness.note(300 * MS)
    assert lateness.patience_ns(BRIEF) > 300 * MS


@given(st.lists(st.integers(-1000 * MS, 10_000 * MS), max_size=200))
def test_the_estimate_stays_within_what_was_seen(samples: list[int]) -> None:
    lateness = Lateness()
    for sample in samples:
        lateness.note(sample)
    assert 0 <= lateness.usual_ns <= max([0, *samples])
