"""Processes that hang, hosts that are cut off, clocks that differ, disks that are full, servers that die."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from mlfabric.simulator import FaultRates, Simulation, SimulationConfig
from mlfabric.simulator.link_sharing import Flows
from mlfabric.simulator.process_states import Process
from mlfabric.simulator.simulated_connections import Connection, End, Stream
from mlfabric.simulator.world import World

EVENTS = 1500
MS = 1_000_000
A, B, C = Process("a", "host of a"), Process("b", "host of b"), Process("c", "host of c")


@pytest.fixture
def world():
    return World(SimulationConfig(seed=1, latency_ns=1000, notice_ns=1000))


@pytest.fixture
def flows(world):
    flows = Flows(world)
    for process in (A, B, C):
        flows.add_host(process.host)
    return flows


def run(world):
    while world.step():
        pass


def told_at(world, stream, towards):
    """Say something over a stream, and return at how many ms it arrives, None if it does not."""
    began, heard = world.now_ns, []
    stream.send(towards, "word", lambda: heard.append(round((world.now_ns - began) / MS)))
    run(world)
    return heard[0] if heard else None


# Processes


def test_a_stopped_process_takes_everything_in_at_once_and_in_order_when_it_goes_on(world):
    heard = []

    def note(number):
        heard.append((number, world.now_ns))

    world.stop(A)
    for number in range(5):
        world.later(number * MS, "number", partial(note, number), A)
    world.later(2 * MS, "other", lambda: heard.append(("other", world.now_ns)), B)
    world.later(9 * MS, "goes on", lambda: world.go_on(A), B)
    began = world.now_ns
    run(world)
    late = began + 9 * MS
    assert heard == [("other", began + 2 * MS), *((number, late) for number in range(5))]


# Partitions


def test_what_is_said_across_a_partition_arrives_when_it_is_over_and_the_other_way_at_once(world):
    stream = Stream(world, "x", lambda end: None, A, B)
    world.cuts.cut(A.host, B.host, world.now_ns + 50 * MS)
    assert told_at(world, stream, End.NEAR) == 0
    assert told_at(world, stream, End.FAR) == 50


def test_that_an_end_was_closed_is_heard_across_a_partition_only_when_that_is_over(world):
    began, heard = world.now_ns, []
    stream = Stream(world, "x", lambda end: heard.append((end, round((world.now_ns - began) / MS))), A, B)
    world.cuts.cut(A.host, B.host, world.now_ns + 50 * MS)
    stream.close(End.NEAR)
    run(world)
    assert heard == [(End.FAR, 50)]


@pytest.mark.parametrize("way", [(A, B), (B, A)])
def test_bytes_stall_while_either_direction_is_cut_and_leave_their_links_to_others(world, flows, way):
    over, began = {}, world.now_ns

    def arrived(name):
        over[name] = round((world.now_ns - began) / MS)

    for name, sender in (("cut", A), ("other", C)):
        connection = Connection(world, flows, 1, name, lambda end: None, sender, B)
        connection.move(End.FAR, 1_000_000, 0, partial(arrived, name))
    world.cuts.cut(way[0].host, way[1].host, began + 50 * MS)
    flows.cuts_changed()

    def heal():
        world.cuts.forget(world.now_ns)
        flows.cuts_changed()

    world.later(50 * MS, "heal", heal)
    run(world)
    assert over == {"other": 8, "cut": 58}


# Whole fabrics


@pytest.mark.parametrize("seed", range(4100, 4104))
def test_nothing_depends_on_what_the_clocks_of_hosts_show(seed):
    config = SimulationConfig.drawn_of_any_kind(seed)
    alike, differ = (Simulation(replace(config, skew_ns=ns)).run(EVENTS) for ns in (0, 10_000_000_000))
    assert alike == differ


def test_updates_computed_from_versions_that_were_lost_long_ago_are_dropped():
    """Servers die again and again while slow workers compute; found once: only the last death was remembered."""
    dropped, died = Counter[str](), 0
    for seed in range(4):
        config = SimulationConfig(
            seed=seed,
            workers=5,
            tau_max=30,
            notice_ns=5 * MS,
            compute_ns=150 * MS,
            model_bytes=100_000,
            in_flight=3,
            faults=FaultRates(server_hz=12.0),
        )
        summary = Simulation(config).run(EVENTS)
        dropped += summary.dropped
        died += summary.faults["server died"]
    assert died > 10
    assert dropped["ROLLED_BACK"] > 0


def test_a_worker_that_comes_too_late_may_mean_a_former_model_by_the_versions_of_one_that_has_come_as_far():
    assert Simulation(SimulationConfig.drawn_of_any_kind(43158)).run(4800).gets > 0


def test_a_member_that_hangs_for_long_is_given_up_and_comes_back(monkeypatch):
    config = SimulationConfig(seed=5, workers=3, answer_ns=50 * MS, faults=FaultRates(hang_hz=12.0))
    simulation = Simulation(config)
    given_up, unanswered = [], simulation.scheduler.unanswered

    def noted(process):
        given_up.append(process.name)
        unanswered(process)

    monkeypatch.setattr(simulation.scheduler, "unanswered", noted)
    summary = simulation.run(EVENTS)
    assert len(given_up) > 2
    assert summary.committed > 10
    assert summary.unheard == 0
