"""Primaries die in virtual time: replicas take their places, and lose no more than a bound allows."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from mlfabric.model.specs import Method
from mlfabric.scheduler.followers import replication_state
from mlfabric.scheduler.followers.promotions import Promotions
from mlfabric.scheduler.updates.push_ends import PushEnds
from mlfabric.simulator import Simulation, SimulationConfig
from mlfabric.simulator.config import METHODS
from mlfabric.worker_daemon.state import DaemonState
from tests.simulator.test_planted_bugs import caught

EVENTS = 1500


def drawn(seed: int, method: Method, **often: float) -> SimulationConfig:
    """Draw a fabric with a replica; ``often`` are rates of faults."""
    config = SimulationConfig.drawn_with_replicas(4000 + seed, method=method)
    return replace(config, faults=replace(config.faults, **often))


def deadly(seed: int) -> SimulationConfig:
    return drawn(seed, METHODS[seed % 3], server_hz=1.0)


def strict(seed: int) -> SimulationConfig:
    return replace(drawn(seed, Method.ASYNCHRONOUS, server_hz=2.0, server_stream_hz=2.0), div_max_updates=0)


def lonely(seed: int) -> SimulationConfig:
    """Draw a fabric whose primary is cut off for so long that another takes its place, and does not know it."""
    return drawn(seed, Method.ASYNCHRONOUS, server_stream_hz=2.0, away=0.5)


def slow(seed: int) -> SimulationConfig:
    """The same, while some links are so slow that updates are under way from before another one took its place."""
    far = replace(lonely(seed), div_max=math.inf, div_max_updates=20, tau_max=20, receive_updates=4, aggregators=0)
    fast = replace(far, model_bytes=2_000_000, link_bps=1_000_000_000, server_share=1.0, latency_ns=100_000)
    return replace(fast, workers=4, faults=replace(far.faults, link_hz=30.0, away=0.9))


@pytest.mark.parametrize("seed", range(6))
def test_whoever_dies_a_replica_goes_on_within_the_bound_and_nothing_is_stuck(seed):
    assert Simulation(deadly(seed)).run(EVENTS).events >= EVENTS


def test_storms_kill_primaries_that_are_replaced_and_some_updates_are_lost():
    found = Counter[str]()
    for seed in range(8, 12):
        summary = Simulation(deadly(seed)).run(EVENTS)
        found += Counter(died=summary.faults["server died"], promoted=summary.promotions, lost=summary.lost)
    assert found["died"] > 2
    assert found["promoted"] > 2
    assert found["lost"] > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_primary_that_is_only_cut_off_is_fenced_off(seed):
    Simulation(lonely(seed)).run(EVENTS)


def test_a_primary_that_is_let_back_while_its_replica_takes_its_place_is_caught(monkeypatch):
    monkeypatch.setattr(Promotions, "refusal", lambda self, event: None)
    caught("for made; the newest is", lambda seed: lonely(10 + seed))


def test_a_worker_that_goes_on_with_a_server_that_was_replaced_is_caught(monkeypatch):
    monkeypatch.setattr(DaemonState, "_begin_anew", lambda self: iter(()))
    caught("and believes", slow, first=40)


def test_a_scheduler_that_still_calls_committed_what_was_lost_is_caught(monkeypatch):
    monkeypatch.setattr(PushEnds, "_lose", lambda self, holds: None)
    caught("it was lost", deadly)


def test_a_replica_that_is_not_foretold_what_may_have_been_committed_is_caught(monkeypatch):
    monkeypatch.setattr(replication_state, "foretold", lambda pushes, held, told, version: iter(()))
    caught("behind what was committed", strict, first=54)
