"""The whole fabric in virtual time: storms whose plans are validated, too, and proof that the witness would notice.

Many more seeds, without that, are played by ``mlfabric fuzz``, which ``scripts/test`` calls (design, section 9).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from mlfabric.model.specs import Method
from mlfabric.network import down_link
from mlfabric.protocol import DropReason, UpdateKind
from mlfabric.server.served_models import Servings
from mlfabric.simulator import CALM, STORMY, Simulation, SimulationConfig
from mlfabric.simulator.config import METHODS
from mlfabric.simulator.witness import Witness
from mlfabric.simulator.worker import SimulatedWorker
from tests.simulator.test_planted_bugs import slow_news

EVENTS = 2000


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_or_applied_twice_whatever_breaks(seed):
    summary = Simulation(SimulationConfig.drawn(seed)).run(EVENTS)
    assert summary.events >= EVENTS
    assert summary.gets > 0


@pytest.mark.parametrize("seed", range(300, 302))
def test_nothing_is_lost_or_applied_twice_where_news_is_slower_than_bytes(seed):
    faults = replace(STORMY, connection_hz=15.0, worker_stream_hz=4.0, server_stream_hz=2.0, outcome_lost=0.15)
    Simulation(replace(slow_news(seed), faults=faults)).run(EVENTS)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(400, 402))
def test_nothing_is_lost_or_applied_twice_where_updates_are_summed_on_their_way(seed, method):
    summary = Simulation(SimulationConfig.drawn_with_sums(seed, method=method)).run(EVENTS)
    assert summary.events >= EVENTS


@pytest.mark.parametrize(("copies", "waits"), [(0, True), (16, False)])
def test_a_get_waits_for_a_slower_one_only_while_the_server_may_not_copy_its_weights(copies, waits, monkeypatch):
    simulation = Simulation(SimulationConfig(seed=1, workers=6, server_share=4.0, weight_copies=copies))
    for worker in simulation.workers[:3]:
        simulation.flows.set_rate(down_link(worker.host), 20_000_000)
    lacking, advance = [], Servings.advance

    def watched(self, *given):
        yield from advance(self, *given)
        lacking.append(self.lacks_copy)

    monkeypatch.setattr(Servings, "advance", watched)
    simulation.run(EVENTS)
    assert any(lacking) == waits


@pytest.mark.parametrize("method", METHODS)
def test_calm_fabrics_sum_and_hand_models_on_in_every_method(method):
    sums, handed_on = Counter[int](), 0
    for seed in range(500, 503):
        config = SimulationConfig.drawn_with_sums(seed, CALM, method)
        simulation = Simulation(replace(config, workers=8, in_flight=2, server_share=0.2, most_updates=0))
        summary = simulation.run(EVENTS)
        if method is Method.ASYNCHRONOUS:
            assert not simulation.scheduler.state.count.torn
        sums += summary.sums
        handed_on += summary.handed_on
        assert summary.unheard == 0
    assert any(members > 2 for members in sums)
    assert handed_on > 0


def test_storms_tear_sums_and_sums_survive_storms():
    committed, torn = Counter[int](), 0
    for seed in range(600, 612):
        simulation = Simulation(SimulationConfig.drawn_with_sums(seed, method=Method.SYNCHRONOUS))
        committed += simulation.run(EVENTS).sums
        torn += sum(simulation.scheduler.state.count.torn.values())
    assert committed.total() > 20
    assert torn > 5


@pytest.mark.parametrize("seed", range(700, 702))
def test_in_calm_weather_every_iteration_has_an_update_of_every_worker(seed):
    config = SimulationConfig.drawn_with_sums(seed, CALM, Method.SYNCHRONOUS)
    simulation = Simulation(replace(config, in_flight=1))
    simulation.run(EVENTS)
    took_part = Counter(committed.version for committed in simulation.witness.applied.values())
    middle = sorted(took_part)[1:-2]
    assert middle
    assert {took_part[version] for version in middle} == {config.workers}


@pytest.mark.parametrize("seed", range(800, 802))
def test_in_calm_weather_nobody_is_further_ahead_than_the_slack_allows(seed, monkeypatch):
    config = replace(SimulationConfig.drawn_with_sums(seed, CALM, Method.STALE_SYNCHRONOUS), in_flight=1)
    finished, most = Counter[str](), 0
    learns = Witness.learns

    def counted(self, update, outcome):
        nonlocal most
        learns(self, update, outcome)
        finished[update.worker] += 1
        most = max(most, max(finished.values()) - min(finished[f"worker-{i}"] for i in range(config.workers)))

    monkeypatch.setattr(Witness, "learns", counted)
    Simulation(config).run(EVENTS)
    joined_late = 2  # who joins while others train begins where the slowest is; one more is the initial update
    assert 0 < most <= config.slack + 1 + joined_late


@pytest.mark.parametrize("slack", [0, 2, 4])
@pytest.mark.parametrize("seed", range(820, 823))
def test_the_slack_holds_though_schedulers_begin_anew_again_and_again(seed, slack, monkeypatch):
    config = SimulationConfig(
        seed=seed,
        workers=4,
        in_flight=1,
        method=Method.STALE_SYNCHRONOUS,
        slack=slack,
        compute_ns=20_000_000,
        model_bytes=100_000,
        silence_ns=60_000_000_000,  # nobody is given up
        faults=replace(CALM, scheduler_hz=3.0),
    )
    began, finished, most = dict[str, int](), Counter[str](), 0
    learns, admitted = Witness.learns, SimulatedWorker.admitted

    def begun(self, welcome):
        began.setdefault(self.name, welcome.clock)
        return admitted(self, welcome)

    def counted(self, update, outcome):
        nonlocal most
        learns(self, update, outcome)
        if self.truths[update].kind is UpdateKind.GRADIENT:
            finished[update.worker] += 1
        # A new scheduler cannot know of a worker that it has not met and that has no update in the model.
        clocks = [clock + finished[worker] for worker, clock in began.items() if finished[worker]]
        if clocks and simulation.world.is_stormy:
            most = max(most, max(clocks) - min(clocks))

    monkeypatch.setattr(Witness, "learns", counted)
    monkeypatch.setattr(SimulatedWorker, "admitted", begun)
    simulation = Simulation(config)
    summary = simulation.run(2 * EVENTS)
    assert simulation.scheduler.term > 1
    assert summary.gets > 50
    assert most <= slack + 1


@pytest.mark.parametrize("seed", range(200, 204))
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


@pytest.mark.parametrize("draw", [SimulationConfig.drawn, SimulationConfig.drawn_with_replicas])
def test_the_same_seed_plays_the_same_run(draw):
    first, again = (Simulation(draw(11)).run(EVENTS) for _ in range(2))
    assert first == again


def test_storms_know_every_kind_of_fault():
    seen = set[str]()
    for seed in range(12):
        for drawn in (SimulationConfig.drawn_of_any_kind(seed), SimulationConfig.drawn_with_sums(seed)):
            seen |= set(Simulation(drawn).run(1000).faults)
    kinds = {"connection broke", "stream broke", "scheduler died", "link changed", "outcome lost", "aggregator died"}
    kinds |= {"hung", "cut", "disk full", "server died", "several at once", "monitor died", "worker died"}
    assert kinds <= seen


def test_a_failure_tells_the_seed_and_the_end_of_the_story(monkeypatch):
    simulation = Simulation(SimulationConfig.drawn(3))

    def fail(state, now_ns):
        if simulation.world.now_ns > 1_100_000_000:
            raise AssertionError("something that must hold does not")

    monkeypatch.setattr(simulation.witness, "rested", fail)
    with pytest.raises(AssertionError) as caught:
        simulation.run(EVENTS)
    told = "\n".join(caught.value.__notes__)
    assert "seed=3" in told
    assert "scheduler <-" in told
