"""AllReduce under faults, thousands of steps from a seed: see ``round_storm``."""

from __future__ import annotations

import pytest

from mlfabric.scheduler.members.membership import Membership
from mlfabric.scheduler.rounds.round_table import Rounds
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.open_reductions import Reducing

from .round_storm import Storm

TREE_BYTES = 300_000
RING_BYTES = 4_000_000


@pytest.mark.parametrize("seed", [*range(20), 1104])
def test_no_worker_ever_goes_on_past_a_round_that_it_does_not_have(seed) -> None:
    Storm(seed, workers=2 + seed % 3, rounds=40).run(1500)


@pytest.mark.parametrize("size_bytes", [TREE_BYTES, RING_BYTES])
@pytest.mark.parametrize("seed", range(3))
def test_trees_and_rings_add_every_tensor_once_whatever_breaks(seed, size_bytes) -> None:
    storm = Storm(seed, workers=3 + seed, rounds=20, size_bytes=size_bytes)
    storm.run(500)
    assert any(len(result) > 1 for result in storm.results.values()) == (size_bytes == RING_BYTES)


@pytest.mark.parametrize("seed", range(5))
def test_without_faults_every_round_is_of_all_workers(seed) -> None:
    storm = Storm(seed, workers=4, rounds=40)
    storm.run(0)
    assert [player.ends for player in storm.lives] == [storm.finished] * 4
    assert len(storm.finished) == 40


def planted(seeds: range, expected: str) -> None:
    """Play storms until one fails with ``expected`` in what it says."""
    said = []
    for seed in seeds:
        try:
            Storm(seed, workers=2 + seed % 3, rounds=40).run(1500)
        except AssertionError as error:
            said.append(str(error))
            if expected in said[-1]:
                return
    pytest.fail(f"none of {len(seeds)} seeds noticed; they said {said}")


def test_a_worker_that_takes_a_round_as_done_without_its_result_is_noticed(monkeypatch) -> None:
    def gullible(self, event):
        if self.open.pop(event.reduce, None) is not None:
            yield act.FinishReduce(reduce=event.reduce, workers=event.workers)

    monkeypatch.setattr(Reducing, "_settle", gullible)
    planted(range(10), "others did")


def test_a_worker_that_is_told_nothing_of_a_round_it_missed_is_noticed(monkeypatch) -> None:
    monkeypatch.setattr(Rounds, "_catch_up", lambda *_: iter(()))
    planted(range(100, 140), "others did")


def test_a_scheduler_that_waits_for_who_has_left_is_noticed(monkeypatch) -> None:
    monkeypatch.setattr(Membership, "left", lambda self, name, incarnation, detail, now_ns: iter(()))
    planted(range(3), "all wait")
