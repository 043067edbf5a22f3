"""For how long workers are worth waiting for: the most gradients a second, whatever steps take."""

from __future__ import annotations

import random

import pytest

from mlfabric.methods.patience import worth_waiting_ns

MS = 1_000_000
STEPS_NS = [100 * MS] * 27 + [200 * MS] * 3


def test_slow_steps_are_waited_for_where_rounds_are_long() -> None:
    assert worth_waiting_ns(STEPS_NS, 160 * MS) == 105 * MS
    assert worth_waiting_ns(STEPS_NS, 2000 * MS) == 210 * MS


def test_one_step_that_took_ages_is_not_waited_for_again() -> None:
    assert worth_waiting_ns([*STEPS_NS, 60_000 * MS], 2000 * MS) == 210 * MS


def test_of_equals_the_longest_is_taken_and_short_steps_have_some_ms() -> None:
    assert worth_waiting_ns([95 * MS, 200 * MS], 10 * MS) == 210 * MS
    assert worth_waiting_ns([MS], 0) == 6 * MS


@pytest.mark.parametrize("round_ms", [1, 50, 400, 3000])
@pytest.mark.parametrize("seed", range(5))
def test_no_other_patience_makes_more_gradients_a_second(seed: int, round_ms: int) -> None:
    drawn = random.Random(seed)
    took_ns = [round(MS * drawn.lognormvariate(4.6, 0.5)) for _ in range(200)]

    def gained(until_ns: int) -> float:
        return sum(1.05 * one <= until_ns for one in took_ns) / (until_ns + round_ms * MS)

    best = gained(worth_waiting_ns(took_ns, round_ms * MS) + 1)
    assert all(gained(round(1.05 * one) + 1) <= best * (1 + 1e-6) for one in took_ns)
