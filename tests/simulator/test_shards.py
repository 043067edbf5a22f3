"""Models that are cut, in virtual time: whatever breaks, all parts make the same steps, and no get is torn."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from mlfabric.model.specs import Method
from mlfabric.planning import Shape
from mlfabric.protocol import Committed, Dropped, DropReason, Prepared
from mlfabric.scheduler.shards.shard_gets import ShardGets
from mlfabric.scheduler.shards.shard_levels import ShardLevels
from mlfabric.scheduler.shards.shard_table import ShardTable
from mlfabric.scheduler.shards.shard_units import ShardUnits, Stage
from mlfabric.scheduler.updates.push_table import PushTable
from mlfabric.server.shard import ShardModel
from mlfabric.simulator import CALM, FaultRates, Simulation, SimulationConfig
from mlfabric.simulator.config import METHODS
from tests.simulator.test_planted_bugs import caught

EVENTS = 1500


def hectic(seed: int, method: Method = Method.ASYNCHRONOUS) -> SimulationConfig:
    """Return a fabric whose scheduler and servers are away again and again in the middle of commits."""
    faults = FaultRates(
        scheduler_hz=5.0,
        server_stream_hz=4.0,
        worker_stream_hz=1.0,
        crash_hz=1.0,
        connection_hz=1.0,
        outcome_lost=0.1,
        late=0.05,
        repeated=0.05,
        odd=0.05,
    )
    return SimulationConfig(
        seed=seed,
        workers=3,
        servers=3,
        shards=3,
        method=method,
        in_flight=1 if method is Method.SYNCHRONOUS else 2,
        model_bytes=12_000,
        compute_ns=2_000_000,
        latency_ns=1_000_000,
        notice_ns=1_000_000,
        silence_ns=2_000_000_000,
        faults=faults,
    )


def forgotten(seed: int, scheduler_hz: float) -> SimulationConfig:
    """Return a fabric whose servers all die again and again, and begin with nothing."""
    faults = FaultRates(
        rollback_hz=3.0, amnesia=1.0, scheduler_hz=scheduler_hz, crash_hz=0.5, connection_hz=1.0, worker_stream_hz=1.0
    )
    return replace(hectic(seed), servers=2, shards=2, compute_ns=20_000_000, model_bytes=300_000, faults=faults)


def rolled_back(seed: int, method: Method = Method.ASYNCHRONOUS) -> SimulationConfig:
    """Return a fabric whose servers all die again and again, and go on from checkpoints of one older version."""
    config = hectic(seed, method)
    return replace(config, faults=replace(config.faults, rollback_hz=4.0, scheduler_hz=0.0, server_stream_hz=1.0))


def all_anew(seed: int, method: Method = Method.ASYNCHRONOUS) -> SimulationConfig:
    """Return a fabric whose servers go back like that while its scheduler begins anew again and again, too."""
    config = rolled_back(seed, method)
    return replace(config, faults=replace(config.faults, scheduler_hz=4.0, server_stream_hz=2.0))


def test_parts_count_under_the_epoch_of_the_one_whose_server_began_with_nothing():
    assert Simulation(SimulationConfig.drawn_of_any_kind(81)).run(5000).events >= 5000


def test_a_push_of_which_only_its_worker_knows_that_parts_were_committed_does_not_wait_for_ever():
    assert Simulation(SimulationConfig.drawn_of_any_kind(11481)).run(5000).events >= 5000


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(4))
def test_all_parts_make_the_same_steps_whatever_breaks(seed, method):
    summary = Simulation(SimulationConfig.drawn_with_shards(seed, method=method)).run(EVENTS)
    assert summary.events >= EVENTS


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(4))
def test_all_parts_make_the_same_steps_where_the_scheduler_and_servers_are_away_in_mid_commit(seed, method):
    Simulation(hectic(seed, method)).run(EVENTS)


@pytest.mark.parametrize("method", METHODS)
def test_everybody_goes_on_where_all_servers_went_back_to_checkpoints_of_one_older_version(method):
    faults = Counter[str]()
    for seed in range(12):
        faults += Simulation(rolled_back(seed, method)).run(EVENTS).faults
    assert faults["servers died"] >= 2


@pytest.mark.parametrize(
    ("seed", "method"),
    [
        (51, Method.ASYNCHRONOUS),
        (122, Method.ASYNCHRONOUS),
        (165, Method.ASYNCHRONOUS),
        (491, Method.STALE_SYNCHRONOUS),
        (541, Method.STALE_SYNCHRONOUS),
        (73, Method.SYNCHRONOUS),
    ],
)
def test_everybody_goes_on_where_all_servers_went_back_and_the_scheduler_began_anew(seed, method):
    assert Simulation(all_anew(seed, method)).run(EVENTS).faults["servers died"]


def test_a_worker_that_alone_knows_of_a_commit_goes_on_where_servers_began_with_nothing_under_a_scheduler_that_stays():
    config = hectic(29, Method.SYNCHRONOUS)
    faults = FaultRates(rollback_hz=8.0, amnesia=1.0, late=0.05)
    assert Simulation(replace(config, faults=faults)).run(EVENTS).faults["servers died"] >= 10


def test_storms_leave_units_half_committed_and_they_are_rolled_forward(monkeypatch):
    opened = Counter[bool]()
    begin = ShardUnits._open_unit

    def counted(self, pushes, version, stages):
        opened[Stage.COMMITTED in stages] += 1
        begin(self, pushes, version, stages)

    monkeypatch.setattr(ShardUnits, "_open_unit", counted)
    for seed in range(12):
        Simulation(hectic(seed)).run(EVENTS)
    assert opened[True] >= 2
    assert opened[False] >= 20


@pytest.mark.parametrize("method", METHODS)
def test_in_calm_weather_every_push_is_committed_at_every_part(method):
    config = SimulationConfig(seed=3, workers=2, servers=3, shards=3, method=method, in_flight=1)
    simulation = Simulation(config)
    summary = simulation.run(EVENTS)
    assert not summary.dropped
    assert summary.unheard == 0
    by_part = Counter(update.counter % 3 for update in simulation.witness.applied)
    assert by_part[0] == by_part[1] == by_part[2] > 10


def test_parts_are_summed_on_their_way_in_synchronous_training():
    groups = Counter[tuple[Shape, int]]()
    for seed in range(3):
        config = SimulationConfig.drawn_with_shards(seed, CALM, Method.SYNCHRONOUS)
        simulation = Simulation(replace(config, workers=6, aggregators=2, server_share=0.2, most_updates=0))
        simulation.run(EVENTS)
        groups += simulation.scheduler.state.count.groups
    assert any(members > 1 for _, members in groups)


# Bugs planted on purpose


@pytest.mark.parametrize("scheduler_hz", [0.0, 4.0])
def test_all_servers_of_a_model_may_begin_with_nothing_and_nobody_waits_for_a_version_of_before(scheduler_hz):
    summaries = [Simulation(forgotten(seed, scheduler_hz)).run(EVENTS) for seed in range(5)]
    assert sum(summary.faults["servers died"] for summary in summaries) > 4
    assert sum(summary.committed for summary in summaries) > 20


def test_a_scheduler_that_does_not_roll_forward_is_caught(monkeypatch):
    monkeypatch.setattr(ShardLevels, "_compare_parts", lambda self: None)
    caught("and no open unit", hectic)


@pytest.mark.parametrize("method", [Method.SYNCHRONOUS, Method.STALE_SYNCHRONOUS])
@pytest.mark.parametrize("seed", range(5))
def test_the_first_iteration_waits_for_all_workers_whatever_breaks_but_the_scheduler(seed, method):
    config = hectic(seed, method)
    stays = replace(config.faults, scheduler_hz=0.0)
    assert Simulation(replace(config, forms=True, faults=stays)).run(EVENTS).committed


def test_a_first_iteration_that_does_not_wait_for_all_workers_is_caught(monkeypatch):
    monkeypatch.setattr(PushTable, "missing", 0)
    caught("have joined", lambda seed: replace(hectic(seed, Method.SYNCHRONOUS), forms=True), first=27)


def test_a_drop_that_stays_at_one_part_is_caught(monkeypatch):
    monkeypatch.setattr(ShardTable, "_take_refusals", lambda self: None)
    caught("waits for ever", hectic, first=9)


def test_a_push_that_was_lost_and_is_not_answered_is_caught(monkeypatch):
    monkeypatch.setattr(ShardTable, "_lose", lambda self, push, outcome: None)
    caught("waits for ever", rolled_back, first=7)


def test_a_lost_part_that_is_dropped_before_its_worker_knows_better_is_caught(monkeypatch):
    let_end = ShardTable._let_end

    def at_once(self, push, known, outcome):
        if isinstance(outcome, Committed):
            outcome = Dropped(cause=DropReason.ROLLED_BACK, detail="it was lost")
            known.doomed, known.lost = outcome, None
            self._lost.discard(push)
        yield from let_end(self, push, known, outcome)

    monkeypatch.setattr(ShardTable, "_let_end", at_once)
    caught("it was lost", rolled_back, first=7)


def test_a_unit_that_is_decided_by_its_first_part_is_caught(monkeypatch):
    prepared = ShardUnits.prepared

    def hasty(self, event: Prepared, shard: int, now_ns: int):
        unit = self.unit
        if unit is not None and unit.number == event.unit and event.accepted:
            for other, stage in enumerate(unit.stages):
                if stage is Stage.PREPARING:
                    unit.stages[other] = Stage.PREPARED
            return
        yield from prepared(self, event, shard, now_ns)

    monkeypatch.setattr(ShardUnits, "prepared", hasty)
    caught("there is something wrong with", hectic, first=27)


def test_a_get_that_is_served_while_a_unit_is_open_is_caught(monkeypatch):
    serve_gets = ShardGets._serve_gets

    def at_any_time(self):
        unit, self.unit = self.unit, None
        yield from serve_gets(self)
        self.unit = unit

    def pin_what_is_there(self, get):
        known = self.gets.gets.get(get)
        if known is not None and known.plan.version is not None and self.gets.pinned_for(get) is None:
            yield from self.gets.pin(get, known.plan.version)
        return True

    monkeypatch.setattr(ShardGets, "_serve_gets", at_any_time)
    monkeypatch.setattr(ShardModel, "_pin", pin_what_is_there)
    caught("is pinned at", hectic)
