"""How long a worker's steps take: stretched to the scenario's pace by sleeping.

So "slow" and "fast" mean the same on every machine, and machines with fewer cores than workers can show it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from mlfabric.demo.scenario import Scenario

__all__ = ["Pace"]


class Pace:
    """How long each of a worker's steps takes: pace, and the scenario's slowness, jitter and pauses by the seed.

    Args:
        scenario: what is run.
        rank: of the worker.
        pace_s: how long a step takes on average at slowness 1.
    """

    def __init__(self, scenario: Scenario, rank: int, pace_s: float) -> None:
        self._scenario = scenario
        self._mean_s = pace_s * scenario.slowness[rank]
        self._random = np.random.default_rng([scenario.seed, rank, 1])

    @contextmanager
    def step(self) -> Iterator[None]:
        """Make the block take as long as one step."""
        began_s = time.monotonic()
        yield
        time.sleep(max(0.0, began_s + self._wanted_s() - time.monotonic()))

    def _wanted_s(self) -> float:
        sigma = self._scenario.jitter
        step_s = self._mean_s * self._random.lognormal(-(sigma**2) / 2, sigma)
        held_up = self._random.random() < self._scenario.pause_share
        return float(step_s + held_up * self._random.uniform(*self._scenario.pause_s))
