"""Gossip in virtual time: what workers give each other adds up, and who agrees has the mean of all."""

from __future__ import annotations

import numpy as np
import pytest

from mlfabric.lab.fabric import Fabric, FabricConfig
from mlfabric.lab.gossip import NEAR, GossipJob
from mlfabric.model.round_options import RoundOptions
from mlfabric.model.specs import Method

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
