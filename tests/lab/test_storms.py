"""AllReduce jobs in storms, each from a seed; ``scripts/test`` plays 200 more before all tests."""

from __future__ import annotations

import gc

import pytest

from mlfabric.lab.playing import drawn, play

EVENTS = 10_000


@pytest.mark.parametrize("seed", range(1000, 1006))
def test_whatever_breaks_every_result_is_whole_and_everybody_goes_on(seed, compiled_planner) -> None:
    try:
        assert play(drawn(seed, EVENTS))[1].witness.finished
    finally:
        gc.collect()


def test_a_storm_is_the_same_each_time_it_is_played(compiled_planner) -> None:
    first, second = (list(play(drawn(7, 3000))[0].story) for _ in range(2))
    assert first == second
    assert any("fault" in line for line in first)
