"""Replicas in virtual time: whatever breaks, a primary is never further ahead than its bound (paper, section 5.3)."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from mlfabric.model.specs import Method
from mlfabric.model.update_rules import RuleKind, RuleSpec
from mlfabric.simulator import CALM, Simulation, SimulationConfig
from mlfabric.simulator.config import METHODS

EVENTS = 2000
FOUND_ONCE = (11, 21, 29, 30, 35, 51, 55, 70, 76, 91, 203, 282, 341, 2199)
"""Seeds that found something once; each with its method of then."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(2000, 2002))
def test_no_lead_is_ever_above_its_bound_and_all_goes_on_whatever_breaks(seed, method):
    summary = Simulation(SimulationConfig.drawn_with_replicas(seed, method=method)).run(EVENTS)
    assert summary.events >= EVENTS


@pytest.mark.parametrize("seed", FOUND_ONCE)
def test_what_storms_found_once_they_do_not_find_again(seed):
    Simulation(SimulationConfig.drawn_with_replicas(seed, method=METHODS[seed % 3])).run(EVENTS)


def summing_for_adam(seed: int) -> SimulationConfig:
    """Draw a fabric whose primary makes one step of a whole sum, and may be one update ahead."""
    config = SimulationConfig.drawn_with_replicas(seed)
    return replace(
        config,
        rule=RuleSpec(lr=0.5, kind=RuleKind.ADAM),
        workers=6,
        aggregators=2,
        server_share=0.2,
        model_bytes=300_000,
        sum_updates=2,
        div_max=math.inf,
        div_max_updates=1,
    )


def test_what_a_replica_holds_of_a_sum_for_adam_is_not_counted_on_before_it_holds_all():
    sums = Counter[int]()
    for seed in range(2500, 2506):
        sums += Simulation(summing_for_adam(seed)).run(EVENTS).sums
    assert sums[2] > 20


def test_storms_hold_promises_make_holes_and_kill_replicas():
    promises, holes, died = 0, 0, 0
    for seed in range(2100, 2105):
        summary = Simulation(SimulationConfig.drawn_with_replicas(seed)).run(EVENTS)
        promises += summary.promises
        holes += summary.terms_by_hole
        died += summary.faults["replica died"]
    assert promises > 5
    assert holes > 0
    assert died > 0


def calm(seed: int, method: Method, updates: int) -> SimulationConfig:
    config = SimulationConfig.drawn_with_replicas(seed, CALM, method)
    return replace(config, workers=4, aggregators=0, div_max=math.inf, div_max_updates=updates)


@pytest.mark.parametrize(("method", "most_holes"), list(zip(METHODS, (0, 3, 3), strict=True)))
def test_in_calm_weather_one_seed_is_enough_until_workers_leave_and_the_bound_is_made_use_of(method, most_holes):
    longest = 0
    for seed in range(2200, 2203):
        simulation = Simulation(calm(seed, method, updates=12))
        summary = simulation.run(EVENTS)
        assert summary.terms_by_hole <= most_holes
        assert summary.promises == 1
        longest = max(longest, *simulation.witness.leads.longest.values())
    assert 2 < longest <= 12


def test_in_calm_weather_a_strict_replica_has_everything_before_it_is_committed():
    simulation = Simulation(calm(2300, Method.ASYNCHRONOUS, updates=0))
    summary = simulation.run(EVENTS)
    assert summary.committed > 20
    assert set(simulation.witness.leads.longest.values()) == {0}
