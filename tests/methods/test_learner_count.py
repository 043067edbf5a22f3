"""How many learners a device is to have (CROSSBOW, algorithm 2)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mlfabric.methods.learner_count import WORTH_WHILE, LearnerCount

CURVES: dict[str, Callable[[int], float]] = {
    "no gain": lambda n: 1.0,
    "two": lambda n: min(n, 2) * 1.0,
    "five": lambda n: min(n, 5) * 1.0,
    "less and less": lambda n: n / (1 + 0.15 * (n - 1)),
    "worse after four": lambda n: n if n <= 4 else 4 * 0.9 ** (n - 4),
}


def best(curve: Callable[[int], float]) -> int:
    count = 1
    while curve(count + 1) > (1 + WORTH_WHILE) * curve(count):
        count += 1
    return count


@pytest.mark.parametrize("name", CURVES)
def test_it_is_off_by_one_at_most_with_noise_of_five_percent(name: str) -> None:
    curve = CURVES[name]
    for seed in range(50):
        draw, tuner = random.Random(seed), LearnerCount(32)
        while not tuner.is_settled:
            tuner.read(curve(tuner.count) * draw.gauss(1.0, 0.05))
        assert abs(tuner.count - best(curve)) <= 1, f"seed {seed}"


def test_there_are_never_more_than_allowed() -> None:
    tuner = LearnerCount(3)
    while not tuner.is_settled:
        tuner.read(float(tuner.count))
    assert tuner.count == 3
    tuner.limit(2)
    assert tuner.count == 2
