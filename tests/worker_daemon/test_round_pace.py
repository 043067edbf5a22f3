"""Whether an attempt at a round goes on as planned, told by what fills up at one worker."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from mlfabric.worker_daemon.round_pace import Pace

S = 1_000_000_000
PLANNED_NS = 6 * S
WINDOW_NS = PLANNED_NS // 3


def watched(
    done: Callable[[float], float], planned_ns: int = PLANNED_NS, *, flows: bool = False
) -> list[tuple[float, int]]:
    """Return when, in parts of the planned time, an attempt is found to be slow, and how long its rest then takes."""
    pace, now_ns, found = Pace(planned_ns, 5 * S), 5 * S, []
    while now_ns < 5 * S + 4 * planned_ns:
        now_ns += pace.look_ns
        at = (now_ns - 5 * S) / planned_ns
        if left_ns := pace.left_ns(min(1.0, done(at)), now_ns, flows=flows):
            found.append((at, left_ns))
    return found


@pytest.mark.parametrize("share", [1.0, 0.55])
def test_what_goes_on_about_as_planned_is_not_slow(share) -> None:
    assert watched(lambda at: share * at) == []


def test_late_first_bytes_and_a_fast_end_are_not_slow() -> None:
    assert watched(lambda at: max(0.0, at - 0.25)) == []
    assert watched(lambda at: at**0.5) == []


def test_a_link_that_becomes_slow_is_noticed_within_a_window_and_told_of_again_if_it_turns_out_worse() -> None:
    found = watched(lambda at: at if at < 0.3 else 0.3 + 0.3 * (at - 0.3))
    assert 0.3 < found[0][0] <= 0.3 + WINDOW_NS / PLANNED_NS
    told = [PLANNED_NS, *(left_ns for _, left_ns in found)]
    assert len(told) > 2
    assert all(1.2 * before < left_ns for before, left_ns in pairwise(told[1:]))
    assert 1.5 * PLANNED_NS < told[-1] < 0.7 / 0.3 * PLANNED_NS


def test_a_stream_that_waits_for_a_packet_lost_twice_is_not_slow() -> None:
    """TCP sends it again after 200 ms, and then after 400 ms more."""
    planned_ns = 2 * S
    assert watched(lambda at: min(at, max(0.3, at - 0.6 * S / planned_ns)), planned_ns) == []


def test_what_stands_still_from_the_beginning_is_expected_to_come_some_day() -> None:
    ((first, left_ns),) = watched(lambda at: 0.0)
    assert first <= 0.25 + 1.5 * WINDOW_NS / PLANNED_NS
    assert left_ns == 4 * PLANNED_NS


def test_what_is_slow_from_the_beginning_is_noticed_within_a_window_of_its_first_bytes() -> None:
    first, _ = watched(lambda at: at / 10, flows=True)[0]
    assert first <= 1.5 * WINDOW_NS / PLANNED_NS
    later, _ = watched(lambda at: at / 10)[0]
    assert later > first


def test_a_short_rest_is_told_of_too_with_what_it_would_take_as_planned() -> None:
    ((at, left_ns),) = watched(lambda at: at if at < 0.9 else 0.9 + 0.11 * (at - 0.9))
    assert at < 0.9 + WINDOW_NS / PLANNED_NS
    assert Pace(PLANNED_NS, 0).usual_ns(0.95) < 0.1 * PLANNED_NS < left_ns < PLANNED_NS


def test_a_round_that_is_over_within_a_window_is_never_slow() -> None:
    assert watched(lambda at: 0.0 if at < 2.0 else 1.0, planned_ns=S // 10) == []
