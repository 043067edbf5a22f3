"""Rounds over links that become slow: they go on with what all workers have, and every result is what it should be."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from mlfabric.lab.collective import AllReduceJob
from mlfabric.lab.fabric import Fabric, FabricConfig, host_of
from mlfabric.lab.steps import StepJob
from mlfabric.model.ranges import Ranges
from mlfabric.model.round_options import RoundOptions
from mlfabric.model.specs import Method
from mlfabric.protocol import ReduceRequested
from mlfabric.scheduler.rounds.round_carrier import RoundCarrier
from mlfabric.worker_daemon.attempts import Attempt
from mlfabric.worker_daemon.kept_results import KeptResult

WORKERS, ROWS, LINK_BPS = 6, 1024, 2e6
"""A tensor takes a second."""
COMPUTE_S = (0.1, 0.3)


@pytest.fixture
def gone_on(monkeypatch) -> list[int]:
    """How many bytes are left in rounds that go on, each time that is found out."""
    found: list[int] = []
    go_on = RoundCarrier.go_on

    def counted(carrier: RoundCarrier, ready: dict[str, ReduceRequested], workers: Collection[str]) -> object:
        heads = go_on(carrier, ready, workers)
        if carrier._rest:
            found.append(sum(end - start for start, end in carrier._rest))
        return heads

    monkeypatch.setattr(RoundCarrier, "go_on", counted)
    return found


def play(seed: int, job: AllReduceJob | StepJob, *, breaks: bool) -> list[int]:
    """Play for three minutes in which another link is slow every few seconds and, with ``breaks``, connections break.

    Returns:
        How many results each worker has.
    """
    draw = random.Random(f"slow {seed}")
    fabric = Fabric(FabricConfig(seed=seed, workers=WORKERS, link_bps=LINK_BPS), job)
    try:
        fabric.start_scheduler()
        for index in range(WORKERS):
            fabric.start_worker(index)
        slow = host_of(0), "up"
        for _ in range(30):
            fabric.run(draw.uniform(3.0, 9.0))
            fabric.links.set_rate(*slow, LINK_BPS)
            slow = host_of(draw.randrange(WORKERS)), draw.choice(("up", "down"))
            fabric.links.set_rate(*slow, LINK_BPS / 10)
            if breaks and draw.random() < 0.2:
                fabric.links.break_one()
        return [job.progress(life) for life in fabric.lives]
    finally:
        fabric.close()


def steps(*, overlap: bool) -> StepJob:
    rounds = RoundOptions(tau_max=2, at_least=0.5)
    return StepJob(
        method=Method.ELASTIC, rounds=rounds, rows=ROWS, compute_s=COMPUTE_S, workers=WORKERS, overlap=overlap
    )


@pytest.mark.parametrize("breaks", [False, True])
def test_calls_of_all_reduce_give_the_sum_of_all(breaks, gone_on, compiled_planner) -> None:
    done = play(1, AllReduceJob(rows=ROWS, compute_s=COMPUTE_S, workers=WORKERS), breaks=breaks)
    assert min(done) > 5
    assert gone_on


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("breaks", [False, True])
def test_all_models_stay_the_same_and_no_gradient_is_in_two_rounds(breaks, overlap, gone_on, compiled_planner) -> None:
    done = play(1, steps(overlap=overlap), breaks=breaks)
    assert min(done) > 5
    assert gone_on


def test_a_byte_that_is_kept_in_another_place_is_found(monkeypatch, compiled_planner) -> None:
    take = KeptResult.take

    def misplace(kept: KeptResult, attempt: Attempt, rest: Ranges) -> None:
        take(kept, attempt, rest)
        kept.total[:256], kept.total[256:512] = bytes(kept.total[256:512]), bytes(kept.total[:256])

    monkeypatch.setattr(KeptResult, "take", misplace)
    with pytest.raises(AssertionError):
        play(1, steps(overlap=False), breaks=False)
