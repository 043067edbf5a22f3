"""The scenarios of ``mlfabric bench faults``, twice: real processes, and no update lost or applied twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.faults.bench import PRELOADED
from benchmarks.faults.scenarios import SCENARIOS
from benchmarks.faults.trials import Trial, run_trial, summary
from benchmarks.testbed.processes import Launcher
from mlfabric.errors import UnavailableError

pytestmark = pytest.mark.processes

TRIALS = 2
LEFT_OUT = {"server_replaced", "server_replaced_strict"}
"""``server_replaced_twice`` begins as the first; a bound of 0 is that of tests/security/test_promotion.py."""
MAY_LOSE = {"server_resumed", *(name for name in SCENARIOS if SCENARIOS[name].plan.replica_updates)}


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(preloaded=PRELOADED) as launcher:
        yield launcher


def trial(name: str, number: int, launcher: Launcher, folder: Path) -> Trial:
    return run_trial(SCENARIOS[name], launcher, folder / str(number), f"{name}-{number}", random.Random(number))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.root] * bool(s.hosts)) for n, s in SCENARIOS.items() if n not in LEFT_OUT],
)
def test_whoever_was_not_killed_goes_on_and_nothing_is_lost_or_applied_twice(
    name: str, launcher: Launcher, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(TRIALS) as pool:
        try:
            found = list(pool.map(lambda number: trial(name, number, launcher, tmp_path), range(TRIALS)))
        except UnavailableError as error:
            pytest.skip(str(error))
    figures = summary(SCENARIOS[name], found)
    assert figures["survived"] == TRIALS, figures["first_failures"]
    assert figures["first_violations"] == []
    assert figures["updates_twice"] == 0
    assert figures["updates_lost"] == 0 or name in MAY_LOSE
