"""Rounds that workers apply by themselves, under storms: what must hold of gradients, sums, models and delays."""

from __future__ import annotations

import pytest

from mlfabric.model.specs import Mode
from tests.scheduler.step_storm import StepStorm

CASES = [
    (Mode.ELASTIC, {}),
    (Mode.ELASTIC, {"tau_max": 0, "at_least": 0.2}),
    (Mode.PARTIAL, {"quorum": "solo", "full_every": 4}),
    (Mode.PARTIAL, {"quorum": "majority"}),
    (Mode.PARTIAL, {"quorum": "2", "full_every": 7}),
    (Mode.ALL_REDUCE, {}),
]


@pytest.mark.parametrize(("mode", "options"), CASES)
@pytest.mark.parametrize("seed", range(6))
def test_storms(mode: Mode, options: dict[str, object], seed: int) -> None:
    StepStorm(seed, 2 + seed % 4, 30, mode, **options).run(1500)
