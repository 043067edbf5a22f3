"""What counts as late: far later than is usual, and never because of one stuck transfer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlfabric.network import Profile
from mlfabric.scheduler.records import OVERDUE_SLACK_NS, Lateness

MS = 1_000_000
BRIEF = Profile(0, MS, ())


def test_a_transfer_is_given_the_slack_while_transfers_are_on_time() -> None:
    lateness = Lateness()
    for _ in range(100):
        lateness.note(0)
    assert lateness.patience_ns(BRIEF) == OVERDUE_SLACK_NS


def test_a_long_transfer_is_given_half_its_time() -> None:
    assert Lateness().patience_ns(Profile(0, 1000 * MS, ())) == 500 * MS


def test_where_all_are_late_nobody_is_overdue() -> None:
    lateness = Lateness()
    for _ in range(200):
        lateness.note(300 * MS)
    assert lateness.patience_ns(BRIEF) > 300 * MS


def test_one_stuck_transfer_does_not_make_the_others_wait() -> None:
    lateness = Lateness()
    lateness.note(3_600_000 * MS)
    assert lateness.patience_ns(BRIEF) == OVERDUE_SLACK_NS


@given(st.lists(st.integers(-1000 * MS, 10_000 * MS), max_size=200))
def test_the_estimate_stays_within_what_was_seen(samples: list[int]) -> None:
    lateness = Lateness()
    for sample in samples:
        lateness.note(sample)
    assert 0 <= lateness.usual_ns <= max([0, *samples])
