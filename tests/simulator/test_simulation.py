"""The whole fabric in virtual time: a hundred storms, and proof that the witness would notice (design, section 9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.protocol import DropReason
from mlfabric.simulator import CALM, STORMY, Simulation, SimulationConfig

EVENTS = 2000


@pytest.mark.parametrize("seed", range(100))
def test_nothing_is_lost_or_applied_twice_whatever_breaks(seed):
    summary = Simulation(SimulationConfig.drawn(seed)).run(EVENTS)
    assert summary.events >= EVENTS
    assert summary.gets > 0


@pytest.mark.parametrize("seed", range(300, 320))
def test_nothing_is_lost_or_applied_twice_where_news_is_slower_than_bytes(seed):
    faults = replace(STORMY, connection_hz=15.0, worker_stream_hz=4.0, server_stream_hz=2.0, outcome_lost=0.15)
    config = SimulationConfig(
        seed=seed,
        workers=4,
        tau_max=2,
        notice_ns=60_000_000,
        latency_ns=5_000_000,
        compute_ns=5_000_000,
        model_bytes=300_000,
        faults=faults,
    )
    Simulation(config).run(EVENTS)


@pytest.mark.parametrize("seed", range(200, 210))
def test_a_calm_fabric_drops_nothing_but_what_its_bound_forbids(seed):
    config = replace(SimulationConfig.drawn(seed, CALM), latency_ns=100_000)
    summary = Simulation(config).run(EVENTS)
    by_bound = {r.name for r in (DropReason.DEADLINE_PAST, DropReason.DEADLINE_CONFLICT, DropReason.NEXT_IS_FASTER)}
    assert set(summary.dropped) <= by_bound
    assert summary.unheard == 0
    assert not summary.faults


def test_two_workers_in_calm_weather_lose_nothing_under_the_default_bound():
    summary = Simulation(SimulationConfig(seed=7, workers=2, in_flight=1)).run(EVENTS)
    assert summary.committed > 50
    assert not summary.dropped


def test_the_same_seed_plays_the_same_run():
    first, again = (Simulation(SimulationConfig.drawn(11)).run(EVENTS) for _ in range(2))
    assert first == again


def test_another_seed_plays_another_run():
    digests = {Simulation(SimulationConfig.drawn(seed)).run(300).digest for seed in range(5)}
    assert len(digests) == 5


def test_storms_know_every_kind_of_fault():
    seen = set[str]()
    for seed in range(12):
        seen |= set(Simulation(SimulationConfig.drawn(seed, STORMY)).run(1000).faults)
    kinds = {"connection broke", "stream broke", "worker died", "scheduler died", "link changed", "outcome lost"}
    assert kinds <= seen


def test_a_failure_tells_the_seed_and_the_end_of_the_story(monkeypatch):
    simulation = Simulation(SimulationConfig.drawn(3))

    def fail(state):
        if simulation.world.now_ns > 1_100_000_000:
            raise AssertionError("something that must hold does not")

    monkeypatch.setattr(simulation.witness, "rested", fail)
    with pytest.raises(AssertionError) as caught:
        simulation.run(EVENTS)
    told = "\n".join(caught.value.__notes__)
    assert "seed=3" in told
    assert "scheduler <-" in told
