"""Random problems for the planner, in the shapes and with the settings of the live scheduler.

A problem follows from its seed alone: a model, a cluster, transfers that are under way, and a batch as the scheduler
makes it: updates of an asynchronous, a stale-synchronous or a synchronous job, gets, or a round of AllReduce. Settings
come from the scheduler's own policies, so this file names none that only the planner knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import networkx as nx

from mlfabric.methods import policy_of
from mlfabric.methods.all_reduce import planner_config
from mlfabric.model.chunking import chunk_bytes
from mlfabric.model.specs import Layout, Method, ModelSpec, TensorSpec
from mlfabric.network import Network, Profile
from mlfabric.planning import (
    Aggregator,
    Batch,
    Candidate,
    DivergenceBound,
    FabricState,
    GetCandidate,
    Pending,
    PlannerConfig,
    Replica,
)
from mlfabric.protocol import GetId, UpdateId
from mlfabric.scheduler.updates.patience import group_cost_ns

__all__ = ["Problem", "problem"]

GBPS = 10**9
FAST_BPS = 10 * GBPS
NOW_NS = 1_000_000_000
VERSION = 1000
SERVER, REPLICA = "server", "replica"
ALL_REDUCE, GETS = "all-reduce", "gets"
KINDS = {
    Method.ASYNCHRONOUS.value: 8,
    Method.STALE_SYNCHRONOUS.value: 2,
    Method.SYNCHRONOUS.value: 4,
    GETS: 3,
    ALL_REDUCE: 3,
}
"""What is drawn how often."""
WORKERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100)
MODEL_BYTES = (100_000, 1_000_000, 4_000_000, 25_000_000, 100_000_000, 400_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is planned.

    Args:
        kind: one of ``KINDS``.
        shape: the problem in a few words.
    """

    kind: str
    shape: str
    batch: Batch
    network: Network
    state: FabricState
    config: PlannerConfig


def problem(seed: int) -> Problem:
    """Draw a problem; the same seed draws the same one."""
    rng = Random(seed)
    (kind,) = rng.choices(tuple(KINDS), tuple(KINDS.values()))
    cluster = _Cluster(rng)
    if kind == GETS:
        return _gets(rng, cluster)
    return _all_reduce(rng, cluster) if kind == ALL_REDUCE else _updates(rng, cluster, Method(kind))


# Clusters


class _Cluster:
    """Hosts of workers, of a server, of a replica and of aggregators, with their links; and the size of a model."""

    def __init__(self, rng: Random) -> None:
        self.workers = rng.choice(WORKERS)
        self.hosts = [f"host-{n}" for n in range(max(2, self.workers // rng.choice((1, 1, 1, 2))))]
        self.adders = [f"adder-{n}" for n in range(rng.choice((0, 0, 1, 2, 4, 8)))]
        self.size_bytes = rng.choice(MODEL_BYTES)
        self.links, rates = _rates(rng, self.hosts)
        rates |= dict.fromkeys((SERVER, REPLICA, *self.adders), FAST_BPS)
        is_split = rng.random() < 0.2
        self.network = _two_sites(rates) if is_split else _star(rates)
        self.links += ", two sites" * is_split

    def host(self, worker: int) -> str:
        """Return the host of a worker."""
        return self.hosts[worker % len(self.hosts)]

    def helpers(self, rng: Random, near: Sequence[str]) -> tuple[Aggregator, ...]:
        """Draw who sums or hands on: the aggregators, in some problems those on all hosts of the batch too."""
        beside = dict.fromkeys(near) if rng.random() < 0.4 else ()
        most = rng.choice((0, 0, 0, 4))
        return tuple(Aggregator(host=host, most_updates=most) for host in (*beside, *self.adders))

    def on_its_way(self, worker: int, ago_ns: int) -> Profile:
        """Reserve what a worker began to send a while ago; say when it ends, as the scheduler does."""
        path = self.network.path(self.host(worker), SERVER)
        profile = self.network.transfer(path, self.size_bytes, NOW_NS - ago_ns)
        assert profile is not None, "every link carries something"
        self.network.reserve(("before", worker), path, profile)
        end_ns = max(profile.end_ns, NOW_NS)
        return Profile(end_ns, end_ns, ())


def _rates(rng: Random, hosts: Sequence[str]) -> tuple[str, dict[str, int]]:
    """Draw how fast hosts' links are: all the same, every other one slow, or all different."""
    match rng.randrange(3):
        case 0:
            return "even links", dict.fromkeys(hosts, FAST_BPS)
        case 1:
            return "half slow links", {host: FAST_BPS // (1 + 9 * (n % 2)) for n, host in enumerate(hosts)}
        case _:
            return "uneven links", {host: round(FAST_BPS * 10 ** rng.uniform(-1.5, 0)) for host in hosts}


def _star(rates: Mapping[str, int]) -> Network:
    network = Network.star(FAST_BPS)
    for host, bps in rates.items():
        network.add_host(host, bps, bps)
    return network


def _two_sites(rates: Mapping[str, int]) -> Network:
    """Put hosts at two sites in turn; one link each way, which all of them share, joins the sites."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    cables = [(host, f"site-{n % 2}", bps) for n, (host, bps) in enumerate(rates.items())]
    for one, other, bps in (*cables, ("site-0", "site-1", 2 * FAST_BPS)):
        graph.add_edge(one, other, capacity_bps=bps)
        graph.add_edge(other, one, capacity_bps=bps)
    nx.set_node_attributes(graph, dict.fromkeys(rates, True), "host")
    return Network.from_graph(graph)


# Batches


def _config(rng: Random, cluster: _Cluster, method: Method) -> PlannerConfig:
    """Return with what settings the scheduler plans updates and gets of a model."""
    layout = Layout((TensorSpec(name="w", shape=(cluster.size_bytes // 4,), dtype="float32"),))
    bounds = (None, None, None, max(2, cluster.workers // 4), cluster.workers)
    tau_max = rng.choice(bounds) if method is Method.ASYNCHRONOUS else None
    slack = rng.choice((0, 1, 3)) if method is Method.STALE_SYNCHRONOUS else 0
    spec = ModelSpec(name="net", layout=layout, method=method, tau_max=tau_max, slack=slack)
    config = policy_of(spec).planner_config(cluster.workers)
    has_momentum = method is not Method.SYNCHRONOUS and rng.random() < 0.2
    return replace(config, chunk_bytes=chunk_bytes(cluster.size_bytes), gamma=0.9 if has_momentum else 0.0)


def _updates(rng: Random, cluster: _Cluster, method: Method) -> Problem:
    """Draw a batch of updates; a synchronous one has all workers' updates, of one version, and nothing under way."""
    config, workers, is_whole = _config(rng, cluster, method), cluster.workers, method is Method.SYNCHRONOUS
    count = workers if is_whole else rng.randint(1, workers)
    moving = rng.randint(0, min(3, workers - count))
    oldest = 0 if is_whole else min(workers, (config.tau_max or 0) + 1)
    order = rng.sample(range(workers), count + moving)
    updates = [_candidate(rng, cluster, worker, rng.randint(0, oldest)) for worker in order]
    for n in range(count, count + moving):
        updates[n] = replace(updates[n], in_flight=cluster.on_its_way(order[n], rng.randint(0, 5_000_000)))
    helpers = cluster.helpers(rng, [candidate.source for candidate in updates])
    replica = _replica(rng, cluster) if rng.random() < 0.15 else None
    if helpers:
        least_ns = cluster.size_bytes * 8 * 10**9 // FAST_BPS
        config = replace(config, group_ns=group_cost_ns(least_ns, workers - count))
    if replica is not None:
        bound = DivergenceBound(norm=rng.choice((math.inf, 4.0)), updates=rng.choice((1, 8, 20)))
        config = replace(config, div_max=bound)
    words = f"{count} of {workers} updates, {moving} under way, {len(helpers)} aggregators, {cluster.links}"
    return Problem(
        kind=method.value,
        shape=words + ", replica" * (replica is not None),
        batch=Batch(updates=tuple(updates)),
        network=cluster.network,
        state=FabricState(now_ns=NOW_NS, v_init=VERSION, server=SERVER, aggregators=helpers, replica=replica),
        config=config,
    )


def _candidate(rng: Random, cluster: _Cluster, worker: int, age: int) -> Candidate:
    return Candidate(
        update=UpdateId(f"worker-{worker}", 1, 0),
        source=cluster.host(worker),
        size_bytes=cluster.size_bytes,
        ready_ns=NOW_NS,
        computed_from=VERSION - age,
        norm=rng.expovariate(1.0),
        clock=rng.randint(0, 2),
    )


def _replica(rng: Random, cluster: _Cluster) -> Replica:
    pending = [
        Pending(
            update=UpdateId(f"worker-{worker}", 0, worker),
            source=cluster.host(worker),
            size_bytes=cluster.size_bytes,
            step_norm=rng.expovariate(1.0),
        )
        for worker in range(rng.randint(0, min(4, cluster.workers)))
    ]
    return Replica(host=REPLICA, pending=tuple(pending))


def _gets(rng: Random, cluster: _Cluster) -> Problem:
    """Draw gets of the whole model, in an asynchronous or a synchronous job."""
    config = _config(rng, cluster, rng.choice((Method.ASYNCHRONOUS, Method.SYNCHRONOUS)))
    order = rng.sample(range(cluster.workers), rng.randint(1, cluster.workers))
    gets = [
        GetCandidate(
            get=GetId(f"worker-{worker}", 1, 0),
            destination=cluster.host(worker),
            size_bytes=cluster.size_bytes,
            ready_ns=NOW_NS,
        )
        for worker in order
    ]
    helpers = cluster.helpers(rng, [get.destination for get in gets]) if len(gets) > 1 else ()
    return Problem(
        kind=GETS,
        shape=f"{len(gets)} gets, {len(helpers)} distributors, {cluster.links}",
        batch=Batch(gets=tuple(gets)),
        network=cluster.network,
        state=FabricState(now_ns=NOW_NS, server=SERVER, distributors=helpers),
        config=config,
    )


def _all_reduce(rng: Random, cluster: _Cluster) -> Problem:
    """Draw a round between one worker of each host, some of whom are late."""
    late = [host for host in cluster.hosts[2:] if rng.random() < 0.2] if rng.random() < 0.3 else []
    updates = tuple(
        replace(_candidate(rng, cluster, worker, age=0), ready_ns=NOW_NS + worker)
        for worker in range(len(cluster.hosts))
    )
    wire_ns = cluster.size_bytes * 8 * 10**9 // FAST_BPS
    return Problem(
        kind=ALL_REDUCE,
        shape=f"{len(updates)} hosts, {len(late)} late, {cluster.links}",
        batch=Batch(updates=updates),
        network=cluster.network,
        state=FabricState(now_ns=NOW_NS, v_init=VERSION, late=frozenset(late)),
        config=planner_config(cluster.size_bytes, wire_ns),
    )
