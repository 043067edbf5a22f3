"""mlfabric's AllReduce in the twin: what it costs to know of links only what rounds have shown, what messages cost."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from mlfabric.model.specs import Method
from mlfabric.network import down_link, up_link
from mlfabric.scheduler.rounds.probe_plans import Probing
from mlfabric.scheduler.rounds.rhythm import Rhythm
from mlfabric.twin import fabric_rounds
from mlfabric.twin.cluster import Compute, Host, Monitoring
from mlfabric.twin.fabric_rounds import FabricRounds
from mlfabric.twin.run import simulate
from mlfabric.twin.run_world import RunWorld
from mlfabric.twin.settings import COMPUTE, NETWORK
from tests.twin.clusters import cluster_of

pytestmark = [pytest.mark.usefixtures("compiled_planner"), pytest.mark.timeout(900)]


@pytest.fixture
def even(monkeypatch):
    """Let streams have equal shares of links, or unequal ones again."""

    def set_even(deviation: float = 0.0) -> None:
        monkeypatch.setattr(fabric_rounds, "SHARE_DEVIATION", deviation)

    set_even()
    return set_even


def rounds_of(workers: int, stragglers: str = "C0", **changed):
    """Return a cluster of hosts with 100 Mbit/s, over which a tensor takes 80 ms."""
    compute = Compute(mean_s=0.1, stragglers=COMPUTE[stragglers])
    usual = {"rate_bps": 1e8, "iterations": 30, "compute": compute, "method": Method.ALL_REDUCE}
    return cluster_of(workers, **{**usual, **changed})


@pytest.mark.usefixtures("even")
def test_rounds_in_stripes_show_a_slow_link_and_no_other():
    cluster = rounds_of(12, stragglers="C2")
    slow = replace(cluster.workers[5], up_bps=2e7)
    world = RunWorld(replace(cluster, workers=(*cluster.workers[:5], slow, *cluster.workers[6:])))
    network = world.planner.network
    network.set_rate(up_link("w5"), 10**8)  # nobody has told
    FabricRounds(world).run(None)
    ups = [network.rate_bps(up_link(host.name), 0) for host in cluster.workers]
    assert ups[5] == pytest.approx(2e7, rel=0.05)
    assert min(bps for worker, bps in enumerate(ups) if worker != 5) > 4e7


@pytest.mark.usefixtures("even")
def test_probes_show_what_has_changed_before_the_next_round(monkeypatch):
    weather = replace(NETWORK["N2"], period_s=1.0)
    cluster = rounds_of(16, weather=weather, iterations=60)
    probed_s = np.mean([simulate(replace(cluster, seed=seed)).mean_iteration_s for seed in (1, 2, 3)])
    monkeypatch.setattr(Probing, "begin", lambda self, *args: None)
    unprobed_s = np.mean([simulate(replace(cluster, seed=seed)).mean_iteration_s for seed in (1, 2, 3)])
    assert probed_s < 0.95 * unprobed_s


def test_workers_that_never_pause_do_not_probe(monkeypatch):
    came = []
    monkeypatch.setattr(Probing, "probed", lambda self, event: came.append(event))
    simulate(rounds_of(12, compute=Compute(mean_s=0.001)))
    assert came == []
    simulate(rounds_of(12, iterations=12))
    assert came
    assert len(came) % (2 * 12) == 0


def test_nothing_is_learnt_by_who_is_told_all_rates():
    cluster = rounds_of(12, monitoring=Monitoring.TELLS, weather=NETWORK["N2"])
    world = RunWorld(cluster)
    FabricRounds(world).run(None)
    links = [way(host.name) for way in (up_link, down_link) for host in cluster.hosts]
    known = [world.planner.network.rate_bps(link, 0) for link in links]
    assert set(known) <= {10**8, 5 * 10**7, 33 * 10**6, 25 * 10**6}


def test_unequal_shares_of_links_make_rounds_longer(even):
    cluster = rounds_of(16, weather=NETWORK["N2"], monitoring=Monitoring.TELLS)
    even_s = simulate(cluster).mean_iteration_s
    even(1.0)
    assert simulate(cluster).mean_iteration_s > 1.05 * even_s


def test_a_narrow_link_of_the_scheduler_makes_rounds_longer():
    cluster = rounds_of(16, monitoring=Monitoring.TELLS)
    narrow = replace(cluster, server=Host(name="server", up_bps=1e6, down_bps=1e6))
    least_s = 16 * 8 * (3 * fabric_rounds.MESSAGE_BYTES + 4 * fabric_rounds.PEER_BYTES) / 1e6 / 2
    assert simulate(narrow).mean_iteration_s > simulate(cluster).mean_iteration_s + least_s


@pytest.mark.usefixtures("even")
def test_a_round_that_begins_without_the_late_is_over_sooner(monkeypatch):
    cluster = rounds_of(30, stragglers="C3", monitoring=Monitoring.TELLS, seed=3)
    early_s = simulate(cluster).mean_iteration_s
    monkeypatch.setattr(Rhythm, "early_ns", lambda self, workers: None)
    assert early_s < 0.97 * simulate(cluster).mean_iteration_s


def test_a_run_loads_the_planner_itself() -> None:
    """A planner that is not loaded plans neither stripes nor sums, and the twin would say that AllReduce is slow."""
    cluster = cluster_of(workers=8, method=Method.ALL_REDUCE, iterations=3, seed=1)
    program = (
        "from mlfabric.model.specs import Method; from mlfabric.twin.run import simulate; "
        "from tests.twin.clusters import cluster_of; "
        "print(simulate(cluster_of(workers=8, method=Method.ALL_REDUCE, iterations=3, seed=1)).mean_iteration_s)"
    )
    alone = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert float(alone.stdout) == simulate(cluster).mean_iteration_s
