"""Stripes that took much longer than planned are left for a while, and then tried again."""

from __future__ import annotations

from mlfabric.scheduler.trust import Trust


def test_one_round_that_took_twice_as_long_as_planned_is_forgiven_and_several_much_longer_ones_are_not() -> None:
    trust = Trust()
    trust.took(2.0)
    assert not trust.is_lost
    trust.took(6.0)
    assert trust.is_lost


def rounds_until_found_again(trust: Trust) -> int:
    for rounds in range(1000):
        if not trust.is_lost:
            return rounds
        trust.took(None)
    return 1000


def test_good_rounds_win_it_back_at_once_and_rounds_of_other_shapes_in_time() -> None:
    trust = Trust()
    trust.took(100.0)
    assert 30 < rounds_until_found_again(trust) < 50
    trust.took(1.0)
    trust.took(3.0)
    assert not trust.is_lost
