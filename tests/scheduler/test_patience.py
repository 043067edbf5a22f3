"""How long updates wait for one another: the rules as functions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlfabric.scheduler.updates.pace import MOST_MISSED, Pace
from mlfabric.scheduler.updates.patience import (
    EXPECTED_LATE_NS,
    NO_END_NS,
    Late,
    Way,
    group_cost_ns,
    keep_open_until_ns,
    patience_ns,
    room_ns,
    ways,
)

MS = 1_000_000
INSTANTS = st.lists(st.integers(0, 200 * MS), max_size=8)


@given(INSTANTS, st.integers(1, 9), st.integers(0, 100 * MS), st.integers(0, 200 * MS))
def test_a_batch_is_kept_open_only_as_long_as_those_who_come_gain_more_than_those_who_wait_lose(
    expected_ns, count, least_ns, now_ns
):
    until_ns = keep_open_until_ns(expected_ns, count, least_ns, now_ns)
    coming = sorted(ns for ns in expected_ns if now_ns < ns < now_ns + least_ns)
    if until_ns is None:
        assert all((count + n) * (ns - now_ns) >= n * least_ns for n, ns in enumerate(coming, 1))
    else:
        at_ns = until_ns - EXPECTED_LATE_NS
        places = [n for n, ns in enumerate(coming, 1) if ns == at_ns]
        assert any((count + n) * (at_ns - now_ns) < n * least_ns for n in places)


def test_what_is_fresh_enough_is_put_behind_and_counts_for_those_after_it():
    late = [Late([5], 900, 10), Late([5, 5], 900, 10), Late([9], 900, 10)]
    assert ways(late, 8, 3) == [Way.BEHIND, Way.TOO_LATE, Way.BEHIND]
    assert ways(late, 8, 5) == [Way.BEHIND, Way.BEHIND, Way.BEHIND]


def test_what_cannot_be_put_behind_is_waited_for_if_it_is_there_soon():
    assert ways([Late([0], 10, 10)], 8, 3) == [Way.STAYS]
    assert ways([Late([0], 11, 10)], 8, 3) == [Way.TOO_LATE]


def test_what_is_waited_for_takes_a_place_and_what_is_given_up_takes_none():
    last = Late([6], 900, 10)
    assert ways([Late([0], 10, 10), last], 8, 2) == [Way.STAYS, Way.TOO_LATE]
    assert ways([Late([0], 11, 10), last], 8, 2) == [Way.TOO_LATE, Way.BEHIND]


def test_others_wait_for_half_a_send_and_without_end_for_who_has_missed_too_often():
    pace = Pace()
    assert patience_ns(pace, ["a", "b"], 100) == 50
    for _ in range(MOST_MISSED):
        pace.missed("b")
    assert patience_ns(pace, ["a", "b"], 100) == NO_END_NS
    assert patience_ns(pace, ["a"], 100) == 50
    pace.made_it("b")
    assert patience_ns(pace, ["a", "b"], 100) == 50


def test_a_group_costs_others_half_a_send_each_and_nothing_if_there_are_none():
    assert group_cost_ns(100, 4) == 200
    assert group_cost_ns(100, 0) == group_cost_ns(100, -3) == 0


def test_a_batch_needs_room_for_itself_unless_something_stays_that_comes_much_later():
    assert room_ns([], 100, 1000) == 100
    assert room_ns([1020, 1150], 100, 1000) == 100
    assert room_ns([1020, 1151], 100, 1000) == NO_END_NS
