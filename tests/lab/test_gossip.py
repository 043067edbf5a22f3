"""Gossip in virtual time: what workers give each other adds up, and who agrees has the mean of all."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from mlfabric.channels.memory import SEGMENT_BYTES
from mlfabric.lab.fabric import Fabric, FabricConfig, host_of
from mlfabric.lab.gossip import NEAR, GossipJob
from mlfabric.model.round_options import RoundOptions
from mlfabric.model.specs import Method
from mlfabric.scheduler.rounds.probe_plans import Probing, Probings

WORKERS = 5


@pytest.mark.parametrize("method", [method for method in Method if method.is_gossip])
@pytest.mark.parametrize("agrees", [False, True])
def test_without_faults_every_model_is_given_away_whole(method: Method, agrees: bool, compiled_planner) -> None:
    job = GossipJob(
        method=method, rounds=RoundOptions(), rows=16, compute_s=(0.02, 0.1), workers=WORKERS, agrees=agrees
    )
    fabric = Fabric(FabricConfig(seed=3, workers=WORKERS), job)
    try:
        fabric.start_scheduler()
        for index in range(WORKERS):
            fabric.start_worker(index)
        fabric.run(5.0)
    finally:
        fabric.close()
    done = job.witness.finished
    assert min(done.values()) > 20
    whole = {offer: given for offer, given in job.witness.given.items() if offer[1] < done[offer[0]] - 2}
    assert len(whole) > 100
    np.testing.assert_allclose(list(whole.values()), 1.0, atol=NEAR)
    if agrees:
        assert any(f"a mean of {WORKERS}" in line for line in fabric.story)


SLOW, TEAM, LINK_BPS, PIECE_BYTES = 0.1, 12, 40e6, 2 * SEGMENT_BYTES


def rounds_over_slow_links(method: Method, turns: int = 3) -> int:
    """Return how many rounds workers make while half of all links are slow, in each turn others."""
    job = GossipJob(method=method, rounds=RoundOptions(), rows=400, compute_s=(0.02, 0.03), workers=TEAM)
    config = FabricConfig(seed=3, workers=TEAM, hosts=TEAM + 1, link_bps=LINK_BPS, latency_s=(0.0002, 0.0006))
    fabric = Fabric(config, job)
    fabric.links.piece_bytes = PIECE_BYTES
    draw = random.Random(5)
    try:
        fabric.start_scheduler()
        for index in range(TEAM):
            fabric.start_worker(index)
        for _ in range(turns):
            for index in range(TEAM):
                for direction in ("up", "down"):
                    fabric.links.set_rate(host_of(index), direction, draw.choice((1.0, SLOW)) * LINK_BPS)
            fabric.run(8.0)
    finally:
        fabric.close()
    return min(job.witness.finished.values())


def test_groups_around_fast_links_make_more_rounds_than_random_rings(compiled_planner) -> None:
    assert rounds_over_slow_links(Method.RAND_AWARE) > 1.3 * rounds_over_slow_links(Method.RAND)


def test_while_links_stay_as_they_are_rounds_do_not_wait_for_probes(compiled_planner, monkeypatch) -> None:
    probed, begin = 0, Probing.begin

    def count(probing: Probing, *given: Any) -> Probings | None:
        nonlocal probed
        probings = begin(probing, *given)
        probed += probings is not None
        return probings

    monkeypatch.setattr(Probing, "begin", count)
    rounds = rounds_over_slow_links(Method.RAND_AWARE, turns=2)
    assert 0 < 2 * probed < rounds
