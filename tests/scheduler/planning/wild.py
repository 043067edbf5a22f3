"""Random networks with odd rates, changes known in advance and reservations, for tests of single stages."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import networkx as nx
from hypothesis import strategies as st

from mlfabric.network import Network

__all__ = ["SIZES", "TIMES", "random_network", "seeds"]

# Few values, so that ties are common; odd ones, so that nothing divides. Wild ones are at the limits: at 3 Mbit/s one
# transfer of 2**50 bytes ends before the horizon, and a second one does not.
TAME_RATES = [*[10**9] * 6, 5 * 10**8, 10**8, 3 * 10**9, 333_333_331]
RATES = [0, 1, 7, 3_000_000, *[10**9] * 4, 10**8, 3 * 10**9, 10**10, 9_999_999_967, 2**43]
SIZES = [0, 1, 3, 1000, 10**6, 10**6, 10**6, 2 * 10**6, 12_345_677, 2**50]
TIMES = [0, 0, 1, 1000, 400_000, 800_000, 8_000_000, 8_000_001, 10**9]
LATENCIES = [0, 0, 1, 1_000_000]

seeds = st.integers(0, 2**32)  # a failing one is printed, and makes the same case again


def random_network(rng: Random, hosts: Sequence[str], *, tame: bool) -> Network:
    """Make a star, or a graph of two switches with some more cables; reserve something there."""
    latency_ns = rng.choice(LATENCIES)
    network = _graph(rng, hosts, latency_ns) if rng.random() < 0.5 else Network.star(10**9, latency_ns)
    for host in hosts:
        network.add_host(host)
    rates = TAME_RATES if tame else RATES
    for link in network.links:
        network.set_rate(link, rng.choice(rates))
        for at_ns in sorted(set(filter(None, rng.sample(TIMES, rng.choice([0, 0, 1]))))):
            network.plan_rate_change(link, at_ns, rng.choice(rates))
    for n in range(rng.randint(0, 2)):
        path = network.path(rng.choice(hosts), rng.choice(hosts))
        profile = network.transfer(path, rng.choice(SIZES[:-1] if tame else SIZES), rng.choice(TIMES))
        if profile is not None:
            network.reserve(("before", n), path, profile)
    return network


def _graph(rng: Random, hosts: Sequence[str], latency_ns: int) -> Network:
    edges: nx.DiGraph[str] = nx.DiGraph()
    cables = {("x", "y")} | {(host, rng.choice("xy")) for host in hosts}
    cables |= {(rng.choice(hosts), rng.choice([*hosts, "x", "y"])) for _ in range(rng.randint(0, 3))}
    for tail, head in sorted(cables):
        if tail != head:
            for pair in ((tail, head), (head, tail)):
                edges.add_edge(*pair, capacity_bps=10**9, latency_ns=latency_ns)
    nx.set_node_attributes(edges, dict.fromkeys(hosts, True), "host")
    return Network.from_graph(edges)
