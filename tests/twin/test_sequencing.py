"""Who waits for whom in the twin, seen in whole runs: by the rules that the live scheduler goes by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mlfabric.lab.simulation import simulate
from mlfabric.model.specs import Method
from mlfabric.network import Piece, Profile
from mlfabric.twin import planned, sequencing
from mlfabric.twin.cluster import Compute, Host
from mlfabric.twin.groups import Group, Leg, Update
from mlfabric.twin.planned import Way
from mlfabric.twin.run_world import RunWorld
from mlfabric.twin.sequencing import Expected, Sequencing
from tests.twin.clusters import cluster_of, helped

pytestmark = [pytest.mark.usefixtures("compiled_planner"), pytest.mark.timeout(900)]

MS = 1_000_000


def sequencing_of(tau_max: int = 10) -> Sequencing:
    """Of four workers with aggregators; an update takes 8 ms to come in, 80 ms from w3."""
    cluster = helped(cluster_of(4))
    slow = Host(name="w3", up_bps=1e8, down_bps=1e8)
    return Sequencing(RunWorld(replace(cluster, workers=(*cluster.workers[:3], slow))), tau_max)


def group(*members: Update, due_ms: float) -> Group:
    due_ns = int(due_ms * MS)
    return Group(
        members=members,
        root=0,
        flows={},
        due_ns=due_ns,
        patience_ns=50.0 * MS,
        start_ns=due_ns - 8 * MS,
        end_ns=due_ns,
        begin_ns=due_ns - 8 * MS,
        known=np.zeros(0, np.int64),
    )


def test_a_lone_worker_never_waits_for_a_batch():
    cluster = helped(cluster_of(1, control_s=0.0, latency_s=0.0))
    assert simulate(cluster).mean_iteration_s == pytest.approx(0.02 + 2 * 0.008, abs=0.0002)


def test_a_batch_stays_open_for_a_while_where_there_are_many_workers(monkeypatch):
    def closes_ns() -> float:
        one = sequencing_of()
        for version in range(10):
            one.pace.look(version, 3 * version * MS)
        return one.closes_ns(0.0, 1, (), 0)

    assert closes_ns() == 0
    monkeypatch.setattr(planned, "MANY_WORKERS", 3)
    monkeypatch.setattr(sequencing, "LINGER_PART", 2)  # half of the time that four updates take, one in 3 ms
    assert closes_ns() == 6 * MS
    assert sequencing_of().closes_ns(0.0, 1, (), 0) == 0  # the pace is not known


def test_who_comes_soon_is_waited_for_and_who_does_not_push_any_more_is_not():
    expected = Expected(["a", "b"])
    for step in range(3):
        expected.pushed(Update(0, step, step), (2 * step + 1) * 100 * MS)
        expected.settled(Update(0, step, step), step + 1)
        expected.served(0, (2 * step + 2) * 100 * MS)
    assert expected.within(600 * MS, 150 * MS) == [700 * MS]
    assert expected.within(600 * MS, 100 * MS) == []
    assert expected.within(700 * MS, 150 * MS) == []
    expected.pushed(Update(0, 3, 3), 650 * MS)
    assert expected.within(600 * MS, 150 * MS) == []


def test_who_cannot_be_in_time_is_turned_away_at_once_until_it_is_waited_for():
    cluster = helped(cluster_of(8, rate_bps=1e8, compute=Compute(mean_s=0.1), iterations=150, tau_max=8))
    slow = Host(name="w7", up_bps=2e6, down_bps=1e8)
    cluster = replace(cluster, workers=(*cluster.workers[:7], slow))
    found = simulate(cluster, Method.ASYNCHRONOUS)
    assert found.dropped[7] > 0.8 * found.pushed[7]
    assert found.dropped[7] < found.pushed[7]
    assert found.dropped[:7].sum() == 0
    steps_s = np.diff(found.ended_s, axis=1).mean(axis=1)
    assert steps_s[7] < 2 * steps_s[:7].mean()


def test_a_batch_closes_before_what_is_reserved_for_later_if_all_that_is_late_makes_way():
    sequencing = sequencing_of(tau_max=3)
    network, path = sequencing._planner.network, sequencing._planner.network.path("w3", "server")
    network.set_rate(path[0], 10**9)
    network.reserve("sum", path, Profile(72 * MS, 80 * MS, (Piece(72 * MS, 80 * MS, 10**9),)))
    late = group(Update(3, 0, 0), due_ms=80)
    assert sequencing.closes_ns(0.0, 3, [late], 0) == 0
    assert sequencing.closes_ns(0.0, 4, [late], 0) > 70 * MS
    assert sequencing.closes_ns(0.0, 4, [group(Update(3, 0, 0), due_ms=12)], 0) < 70 * MS


def test_a_sum_is_granted_its_time_once_more_by_what_was_late_before_it():
    first, lone = group(Update(0, 0, 0), Update(1, 0, 0), due_ms=20), group(Update(2, 0, 0), due_ms=20)
    for one in (first, lone):
        one.put_off_behind(30 * MS)
    assert first.due_ns == 38 * MS
    assert lone.due_ns == 20 * MS


@pytest.mark.parametrize(("rate", "is_off"), [(1.25, False), (1.26, True), (0.75, False), (0.74, True)])
def test_links_that_are_faster_or_slower_by_a_quarter_are_off_for_what_has_not_begun(rate, is_off):
    one = group(Update(0, 0, 0), due_ms=20)
    one.known = np.array([1000, 1000], np.int64)
    one.flows = {0: Leg(0, 0, 12 * MS, 20 * MS, Way((), (), (0, 1)))}
    known = np.array([1000, int(1000 * rate)], np.int64)
    assert one.is_off(known, 11 * MS) is is_off
    assert one.is_off(known, 12 * MS) is False
