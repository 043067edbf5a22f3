"""Workers claim to know of later versions than there are, while servers die."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from mlfabric.protocol import ModelVersion
from mlfabric.server.shard import ShardModel
from mlfabric.simulator import FaultRates, Simulation, SimulationConfig
from mlfabric.simulator.config import HARSH, MODES
from mlfabric.simulator.worker import SimulatedWorker
from mlfabric.specs import NO_TERM

MS = 1_000_000


@pytest.fixture
def claims(monkeypatch, seed):
    """Let a quarter of all workers that join claim to know of a version, and give what they claim."""
    joining, chance, claims = SimulatedWorker._joining, Random(seed), []

    def claiming(self):
        event = joining(self)
        if chance.random() >= 0.25:
            return event
        claims.append(ModelVersion(event.known.epoch + chance.choice((0, 1, 3)), 5))
        return replace(event, member=replace(event.member, seen=NO_TERM), known=claims[-1])

    monkeypatch.setattr(SimulatedWorker, "_joining", claiming)
    return claims


@pytest.mark.parametrize(("seed", "amnesia"), [(53, 0.0), (376, 0.0), (386, 0.3), (430, 0.3)])
def test_servers_that_die_while_workers_claim_to_know_of_later_versions_take_back_no_more_than_they_lost(
    seed, amnesia, claims
):
    faults = FaultRates(
        server_hz=4.0,
        amnesia=amnesia,
        scheduler_hz=1.0,
        several_hz=1.0,
        hang_hz=2.0,
        crash_hz=3.0,
        connection_hz=2.0,
        worker_stream_hz=4.0,
        server_stream_hz=2.0,
    )
    config = SimulationConfig(seed=seed, workers=4, tau_max=8, compute_ns=20 * MS, faults=faults)
    assert Simulation(config).run(1500).faults["server died"] > 1
    assert len(claims) > 1


@pytest.mark.parametrize("seed", [36, 38, 47, 49, 131, 1075, 1915])
def test_replicas_follow_within_the_bound_and_take_their_primaries_places_under_epochs_that_workers_claim(seed, claims):
    config = SimulationConfig.drawn_with_replicas(seed, HARSH, MODES[seed % 3])
    config = replace(config, faults=replace(config.faults, amnesia=0.5 * (seed % 2)))
    Simulation(config).run(3000)
    assert len(claims) > 1


@pytest.mark.parametrize("seed", [2, 4, 5, 7])
def test_the_parts_of_a_model_go_on_under_epochs_that_workers_claim_and_stay_alike(seed, claims, monkeypatch):
    take_epoch, began = ShardModel._take_epoch, []

    def noted(self):
        for action in take_epoch(self):
            began.append(self.cleared)
            yield action

    monkeypatch.setattr(ShardModel, "_take_epoch", noted)
    config = SimulationConfig.drawn_with_shards(seed, HARSH, MODES[seed % 3])
    rates = {"amnesia": 0.5 * (seed % 2), "rollback_hz": max(1.0, config.faults.rollback_hz)}
    config = replace(config, faults=replace(config.faults, **rates))
    assert Simulation(config).run(3000).faults["servers died"] > 1
    assert len(began) > 1
