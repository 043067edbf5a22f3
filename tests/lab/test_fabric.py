"""Whole AllReduce jobs in virtual time, without faults."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mlfabric.lab.collective import AllReduceJob
from mlfabric.lab.fabric import Fabric, FabricConfig
from mlfabric.scheduler.rounds.round_carrier import RoundCarrier

SMALL, STRIPED = 4, 64


def played(seed: int, workers: int = 2, rows: int = SMALL, calls: int = 10) -> tuple[Fabric, AllReduceJob]:
    """Play until every worker has made so many calls and has left."""
    job = AllReduceJob(rows=rows, compute_s=(0.01, 0.05), workers=workers, leave_after=dict.fromkeys(range(9), calls))
    fabric = Fabric(FabricConfig(seed=seed, workers=workers), job)
    try:
        fabric.start_scheduler()
        for index in range(workers):
            fabric.start_worker(index)
        fabric.run(60.0, lambda: not any(life.is_alive for life in fabric.lives))
    finally:
        fabric.close()
    return fabric, job


@pytest.mark.parametrize("rows", [SMALL, STRIPED])
def test_a_scheduler_and_its_workers_make_rounds_of_all_of_them_until_they_leave(rows, compiled_planner) -> None:
    fabric, job = played(1, workers=3, rows=rows)
    assert job.witness.finished == {0: 10, 1: 10, 2: 10}
    assert job.witness.failed == 0
    assert len([line for line in fabric.story if "has left" in line]) == 3


def test_the_same_seed_plays_the_same_and_another_one_does_not(compiled_planner) -> None:
    stories = [list(played(seed)[0].story) for seed in (1, 1, 2)]
    assert stories[0] == stories[1] != stories[2]


def test_what_is_played_does_not_depend_on_the_hashes_of_strings() -> None:
    said = set()
    for hashes in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        code = "from tests.lab.test_fabric import played; print(*played(3, 3, 64)[0].story, sep='\\n')"
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=100
        )
        said.add(done.stdout)
    assert len(said) == 1
    assert "w2 has call 9" in said.pop()


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_a_connection_that_breaks_costs_one_attempt_at_most(seed, compiled_planner, monkeypatch) -> None:
    """What the broken attempt leaves behind is not used by the next one."""
    broken, breaks, counted = 0, 0, RoundCarrier.broken

    def count(carrier: RoundCarrier, now_ns: int) -> None:
        nonlocal broken
        broken += 1
        counted(carrier, now_ns)

    monkeypatch.setattr(RoundCarrier, "broken", count)
    job = AllReduceJob(rows=STRIPED, compute_s=(0.01, 0.05), workers=5, leave_after=dict.fromkeys(range(9), 40))
    fabric = Fabric(FabricConfig(seed=seed, workers=5), job)
    try:
        fabric.start_scheduler()
        for index in range(5):
            fabric.start_worker(index)
        for n in range(30):
            fabric.run(0.031 + 0.001 * n)
            breaks += bool(fabric.links.break_one())
        fabric.run(60.0, lambda: not any(life.is_alive for life in fabric.lives))
    finally:
        fabric.close()
    assert 0 < broken <= breaks
    assert job.witness.failed == 0
