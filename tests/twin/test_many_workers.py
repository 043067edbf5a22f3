"""Large clusters, in which fewer may help: how little a run changes by it; and what a run leaves behind."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from benchmarks import twin as benchmark
from mlfabric.lab.simulation import simulate
from mlfabric.model.specs import Method
from mlfabric.network import down_link, up_link
from mlfabric.twin import planned
from mlfabric.twin.cluster import Cluster
from mlfabric.twin.planned import Planner
from tests.twin.clusters import cluster_of, helped

pytestmark = [pytest.mark.usefixtures("compiled_planner"), pytest.mark.timeout(900)]


def uneven(workers: int, **options: Any) -> Cluster:
    return helped(cluster_of(workers, stragglers="C1", network="N1", **options))


@pytest.mark.parametrize("method", [Method.ASYNCHRONOUS, Method.STALE_SYNCHRONOUS])
def test_fewer_helpers_change_an_iteration_by_less_than_a_tenth(method, monkeypatch):
    clusters = [uneven(40, method=method, iterations=20, seed=seed) for seed in (1, 2)]
    full = [simulate(cluster).mean_iteration_s for cluster in clusters]
    monkeypatch.setattr(planned, "MANY_WORKERS", 8)
    monkeypatch.setattr(planned, "OTHER_HELPERS", 6)
    fewer = [simulate(cluster).mean_iteration_s for cluster in clusters]
    assert np.mean(fewer) == pytest.approx(np.mean(full), rel=0.1)


@pytest.mark.parametrize(("workers", "method"), [(30, Method.ASYNCHRONOUS), (201, Method.SYNCHRONOUS)])
def test_small_clusters_and_synchronous_ones_may_be_helped_by_all(workers, method):
    planner = Planner(uneven(workers, method=method))
    assert planner.helpers_of({"w3"}, 1) == planner.helpers


def test_of_very_many_those_help_that_have_updates_and_those_with_fast_idle_links(monkeypatch):
    monkeypatch.setattr(planned, "MANY_WORKERS", 8)
    planner = Planner(uneven(12))
    rates = np.full(26, 1.0)
    rates[[0, 1, 2]] = 0.5
    planner.learn(rates)
    transfer = planner.plan_updates([planner.candidate(3, 0, 0, 0)], 0).transfers[0]
    way = planner.reserve(("push", 1), transfer)
    assert [helper.host for helper in planner.helpers_of({"w1", "w9", "server"}, 2)] == ["w1", "w4", "w5", "w9"]
    planner.release(("push", 1), way)
    assert [helper.host for helper in planner.helpers_of((), 2)] == ["w3", "w4"]


def test_fewer_others_help_where_few_updates_are_to_be_summed(monkeypatch):
    monkeypatch.setattr(planned, "MANY_WORKERS", 8)
    planner = Planner(uneven(30))
    updates = [planner.candidate(worker, 0, 0, 0) for worker in range(25, 30)]
    helpers = [helper.host for helper in planner.plan_updates(updates, 0).state.aggregators]
    assert helpers == ["w0", "w1", "w2", "w3", "w25", "w26", "w27", "w28", "w29"]
    gets = [planner.get(worker, 0, 0) for worker in range(25, 30)]
    assert planner.plan_gets(gets, 0).state.distributors == planner.helpers[:30]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_workers_own_links_are_reserved_only_if_it_may_have_several_round_trips_open(in_flight):
    planner = Planner(cluster_of(4, aggregators=("w0",), in_flight=in_flight))
    network = planner.network
    transfer = planner.plan_updates([planner.candidate(3, 0, 0, 0)], 0).transfers[0]
    way = planner.reserve(("push", 1), transfer)
    assert way.links == (planner.up["w3"], planner.down["server"])
    assert network.free_line(down_link("server")).at(0) == 0
    assert (network.free_line(up_link("w3")).at(0) == network.rate_bps(up_link("w3"), 0)) == (in_flight == 1)
    planner.release(("push", 1), way)
    assert network.free_line(down_link("server")).at(0) == network.rate_bps(down_link("server"), 0)


def test_a_run_leaves_garbage_collection_as_it_was():
    before = gc.get_threshold()
    simulate(cluster_of(2, iterations=2))
    assert gc.get_threshold() == before
    with pytest.raises(RuntimeError, match="enough"):
        simulate(cluster_of(2, iterations=2, method=Method.SYNCHRONOUS), progress=stop)
    assert gc.get_threshold() == before


def stop(done: int, total: int) -> None:
    raise RuntimeError("enough")


def test_the_benchmark_says_what_an_update_takes():
    found = benchmark.run(iterations=2, wide_iterations=1, workers=4)
    assert list(found) == ["synchronous", "asynchronous", "wide_synchronous", "wide_asynchronous"]
    assert [row["updates"] for row in found.values()] == [8, 8, 4, 4]
    for row in found.values():
        assert row["full_run_s"] == pytest.approx(row["us_per_update"] * 4 * 1000 / 1e6)
        assert row["iteration_s"] > 0.1
