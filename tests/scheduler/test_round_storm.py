"""AllReduce under faults, thousands of steps from a seed: see ``round_storm``."""

from __future__ import annotations

import pytest

from mlfabric.scheduler.modes import all_reduce

from .round_storm import Storm


@pytest.mark.parametrize("seed", range(20))
def test_no_worker_ever_goes_on_past_a_round_that_it_does_not_have(seed, monkeypatch) -> None:
    monkeypatch.setattr(all_reduce, "is_planner_loaded", lambda: False)
    storm = Storm(seed, workers=2 + seed % 3, rounds=40)
    storm.run(1500)


@pytest.mark.parametrize("seed", range(5))
def test_without_faults_every_round_is_of_all_workers(seed, monkeypatch) -> None:
    monkeypatch.setattr(all_reduce, "is_planner_loaded", lambda: False)
    storm = Storm(seed, workers=4, rounds=40)
    storm.run(0)
    rounds = [player.ends[:39] for player in storm.players]
    assert rounds == [storm.finished[:39]] * 4
