"""The twin as a whole: what must hold of every run, closed forms where there are any, the simulator as a yardstick."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlfabric.lab.simulation import simulate
from mlfabric.model.specs import Method
from mlfabric.simulator import CALM, Simulation, SimulationConfig
from mlfabric.twin.closed_forms import ring_share
from mlfabric.twin.cluster import Compute, Monitoring, Spread
from mlfabric.twin.comparison import WAYS, compare, formula_s
from mlfabric.twin.flows import Flows
from mlfabric.twin.run import Baseline
from tests.twin.clusters import cluster_of, helped

pytestmark = [pytest.mark.usefixtures("compiled_planner"), pytest.mark.timeout(900)]

SERVED = [way for way in WAYS if isinstance(way, Baseline) or way.has_server]

CLUSTERS = st.builds(
    cluster_of,
    st.integers(1, 7),
    network=st.sampled_from(["N0", "N1", "N3"]),
    stragglers=st.sampled_from(["C0", "C2"]),
    iterations=st.integers(1, 12),
    tau_max=st.sampled_from([None, 0, 3, 8]),
    slack=st.integers(0, 3),
    in_flight=st.integers(1, 2),
    model_bytes=st.sampled_from([10_000, 1_000_000, 30_000_000]),
    is_server_in_weather=st.booleans(),
    seed=st.integers(0, 1000),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CLUSTERS, st.booleans(), st.sampled_from(SERVED))
def test_every_step_is_made_and_every_update_ends_once(cluster, is_helped, way):
    cluster = helped(cluster) if is_helped else cluster
    found = simulate(cluster, way)
    workers = len(cluster.workers)
    assert (np.diff(found.ended_s, axis=1) > 0).all()
    assert (found.ended_s > 0).all()
    assert (found.pushed == cluster.iterations).all()
    assert found.pushed.sum() == found.dropped.sum() + len(found.delays)
    assert (np.diff(found.committed_s) >= 0).all()
    assert (found.link_use <= 1.0 + 1e-6).all()
    if way is Method.ASYNCHRONOUS:
        assert (found.delays <= cluster.delay_bound).all()
        assert (found.delays >= 0).all()
    else:
        assert not found.dropped.any()
    if way is Method.STALE_SYNCHRONOUS:
        apart = [np.count_nonzero(found.ended_s <= at, axis=1) for at in found.ended_s.ravel() - 1e-9]
        assert max(int(steps.max() - steps.min()) for steps in apart) <= cluster.slack + cluster.in_flight + 1
    assert found.ended_s.shape == (workers, cluster.iterations)


def test_no_transfer_waits_for_one_that_the_same_plan_drops(monkeypatch):
    enter_table = Flows.enter_table

    def checked(flows, table, edges):
        older = ~edges[:, :2][edges[:, :2] < 0]
        assert set(older.tolist()).isdisjoint(flows._free), "waits for a transfer that is over: its number is anybody's"
        return enter_table(flows, table, edges)

    monkeypatch.setattr(Flows, "enter_table", checked)
    cluster = cluster_of(6, stragglers="C2", iterations=12, tau_max=8, in_flight=2, model_bytes=30_000_000, seed=631,
                         is_server_in_weather=True)  # fmt: skip
    assert (simulate(cluster, Method.ASYNCHRONOUS).pushed == 12).all()


@pytest.mark.parametrize("way", SERVED)
def test_the_same_cluster_has_the_same_outcome_and_another_seed_has_another(way):
    cluster = cluster_of(5, network="N3", stragglers="C2", aggregators=("w0", "w1"))
    one, again, other = (simulate(replace(cluster, seed=seed), way) for seed in (1, 1, 2))
    assert (one.ended_s == again.ended_s).all()
    assert (one.delays == again.delays).all()
    assert (one.ended_s != other.ended_s).any()


def test_a_lone_worker_pays_for_its_transfers_and_for_its_messages():
    cluster = cluster_of(1, control_s=0.001, latency_s=0.0)
    for method in (Method.ASYNCHRONOUS, Method.SYNCHRONOUS, Method.STALE_SYNCHRONOUS):
        wire_s, messages_s = 2 * 0.008, 2 * 0.001
        assert simulate(cluster, method).mean_iteration_s == pytest.approx(0.02 + wire_s + messages_s, abs=0.0002)


def test_two_in_flight_hide_transfers_behind_computing():
    cluster = cluster_of(1, in_flight=2, control_s=0.0, latency_s=0.0)
    assert simulate(cluster).mean_iteration_s == pytest.approx(0.02, rel=0.01)


def test_without_aggregators_the_servers_link_sets_the_pace():
    cluster = cluster_of(8, control_s=0.0, monitoring=Monitoring.TELLS)
    synchronous = simulate(cluster, Method.SYNCHRONOUS)
    assert synchronous.mean_iteration_s == pytest.approx(formula_s(cluster, Method.SYNCHRONOUS), rel=0.03)
    assert simulate(cluster, Method.ASYNCHRONOUS).updates_per_s == pytest.approx(1 / 0.008, rel=0.1)


def test_aggregators_take_the_load_off_the_server():
    alone = cluster_of(16, method=Method.SYNCHRONOUS)
    assert simulate(helped(alone)).mean_iteration_s < simulate(alone).mean_iteration_s / 3


def test_a_ring_on_an_even_network_is_its_formula():
    cluster = cluster_of(8, latency_s=0.0)
    found = simulate(cluster, Baseline.RING).mean_iteration_s
    assert found == pytest.approx(0.02 + ring_share(8) * 0.008, rel=0.02)
    assert found == pytest.approx(formula_s(cluster, Baseline.RING), rel=0.02)


@pytest.mark.parametrize(("network", "stragglers"), [("N1", "C1"), ("N2", "C2"), ("N3", "C3")])
def test_a_ring_in_bad_weather_is_near_its_formula(network, stragglers):
    cluster = cluster_of(
        30, rate_bps=1e8, network=network, stragglers=stragglers, compute=Compute(mean_s=0.1), iterations=150
    )
    found = simulate(cluster, Baseline.RING).mean_iteration_s
    assert found == pytest.approx(formula_s(cluster, Baseline.RING), rel=0.12)


def test_a_tree_costs_three_wire_times_and_a_way_through_its_levels():
    cluster = cluster_of(15, compute=Compute(mean_s=0.02))
    found = simulate(cluster, Baseline.TREE).mean_iteration_s
    assert 0.02 + 2 * 0.008 < found < 0.02 + 5 * 0.008


def test_a_bound_that_is_kept_costs_updates_and_a_wide_one_none():
    cluster = cluster_of(12, stragglers="C2", compute=Compute(mean_s=0.02, spread=Spread.LOGNORMAL, deviation_s=0.03))
    tight, wide = (simulate(replace(cluster, tau_max=bound)) for bound in (4, 200))
    assert tight.drop_share > 0.1
    assert wide.drop_share == 0
    assert tight.delays.max() <= 4 < wide.delays.max()


def test_a_monitor_that_is_late_makes_plans_worse():
    cluster = cluster_of(
        12, rate_bps=1e8, network="N3", iterations=100, method=Method.SYNCHRONOUS, compute=Compute(mean_s=0.1)
    )
    cluster = replace(helped(cluster), monitoring=Monitoring.TELLS)
    at_once, late = (simulate(replace(cluster, monitor_lag_s=lag_s)) for lag_s in (0.0, 4.0))
    assert late.mean_iteration_s > 1.05 * at_once.mean_iteration_s


def test_workers_that_wait_for_nobody_are_not_slowed_by_one_slow_link():
    cluster = cluster_of(6, tau_max=1000)
    slow = replace(cluster.workers[3], up_bps=2e7)
    cluster = replace(cluster, workers=(*cluster.workers[:3], slow, *cluster.workers[4:]), iterations=60)
    steps = np.diff(simulate(cluster).ended_s, axis=1)[:, 5:20].mean(axis=1)
    assert steps[3] > 4 * np.delete(steps, 3).max()


@pytest.mark.parametrize("method", [Method.SYNCHRONOUS, Method.ASYNCHRONOUS])
def test_eight_workers_go_as_fast_as_the_real_state_machines_in_virtual_time(method):
    config = SimulationConfig(
        seed=1,
        workers=8,
        method=method,
        in_flight=1,
        compute_ns=1_000_000,
        latency_ns=300_000,
        faults=CALM,
        tau_max=None,
    )
    real = Simulation(config).run(6000)
    cluster = cluster_of(
        8, method=method, compute=Compute(mean_s=0.001), control_s=0.0003, latency_s=0.0003, iterations=60
    )
    assert simulate(cluster).updates_per_s == pytest.approx(real.committed / real.virtual_s, rel=0.15)


def test_all_ways_are_compared_with_the_ring():
    cluster = cluster_of(4, iterations=10)
    rows = compare(cluster, lambda way: simulate(cluster, way))
    gains = {row.outcome.name: row.gain for row in rows}
    assert set(gains) == {way.value for way in WAYS}
    assert gains["ring"] == 1.0
    assert all(gain > 0 for gain in gains.values())


def test_progress_is_told_to_its_end():
    told: list[tuple[int, int]] = []
    simulate(cluster_of(2, iterations=5), progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (10, 10)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_spans_of_a_picture_lie_side_by_side():
    found = simulate(cluster_of(3, iterations=5), spans_s=1.0)
    assert {span.what for span in found.spans} == {"compute", "wait", "send", "get"}
    for worker in range(3):
        own = sorted(
            (span for span in found.spans if span.worker == worker and span.what in ("compute", "wait")),
            key=lambda span: span.start_s,
        )
        assert all(one.end_s <= two.start_s + 1e-9 for one, two in itertools.pairwise(own))
