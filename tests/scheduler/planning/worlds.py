"""Random networks with batches of updates, as the real network and as its twin."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
from hypothesis import strategies as st

from mlfabric.network import LinkId, Network
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning import Candidate, DropRule, Ordering, order
from tests.scheduler.planning.twin import TwinNetwork, TwinPlanner

SERVER = "s"
# Few values, so that ties are common; odd ones, so that nothing divides; 0 and the limits. At 3 Mbit/s one transfer of
# 2**50 bytes ends before the horizon, and a second one does not.
RATES = st.sampled_from([0, 1, 7, 3_000_000, 10**9, 10**9, 3 * 10**9, 10**10, 10**10, 9_999_999_967, 2**43])
SIZES = st.sampled_from([0, 1, 3, 1000, 10**6, 10**6, 10**6, 2 * 10**6, 12_345_677, 2**50])
TIMES = st.sampled_from([0, 0, 1, 1000, 400_000, 800_000, 8_000_000, 8_000_001, 10**9])


@dataclass
class World:
    """A network, its twin, and one batch."""

    network: Network
    twin: TwinPlanner
    candidates: list[Candidate]

    def plan(self, rule: DropRule = DropRule.FEASIBLE) -> Ordering:
        twin = self.twin
        return order(
            self.candidates,
            self.network,
            SERVER,
            v_init=twin.v_init,
            tau_max=twin.tau_max,
            now_ns=twin.now_ns,
            rule=rule,
        )


def star(hosts: list[str]) -> Network:
    network = Network.star(10**9)
    for host in hosts:
        network.add_host(host)
    return network


@st.composite
def graph(draw: st.DrawFn, hosts: list[str]) -> Network:
    """Hosts and two switches: a cable from each host to a switch, one between the switches, some more."""
    edges: nx.DiGraph[str] = nx.DiGraph()
    switches = ["x", "y"]
    cables = {("x", "y")} | {(host, draw(st.sampled_from(switches))) for host in hosts}
    cables |= draw(st.sets(st.tuples(st.sampled_from(hosts), st.sampled_from([*hosts, *switches])), max_size=3))
    for tail, head in sorted(cables):
        if tail != head:
            edges.add_edge(tail, head, capacity_bps=10**9)
            edges.add_edge(head, tail, capacity_bps=10**9)
    nx.set_node_attributes(edges, dict.fromkeys(hosts, True), "host")
    return Network.from_graph(edges)


@st.composite
def worlds(draw: st.DrawFn, most: int = 7, graphs: bool = False) -> World:
    hosts = [SERVER, *(f"h{n}" for n in range(draw(st.integers(1, 4))))]
    network = draw(graph(hosts)) if graphs else star(hosts)
    twin = TwinNetwork()
    for link in network.links:
        draw_rates(draw, network, twin, link)
    paths = {host: network.path(host, SERVER) for host in hosts}
    now_ns = draw(TIMES)
    v_init = draw(st.integers(0, 20))
    planner = TwinPlanner(twin, paths, v_init, draw(st.integers(0, 8)), now_ns)
    reserve_some(draw, network, planner, hosts)
    count = draw(st.integers(0, most))
    candidates = [draw_candidate(draw, network, planner, hosts, n) for n in range(count)]
    return World(network, planner, candidates)


def draw_rates(draw: st.DrawFn, network: Network, twin: TwinNetwork, link: LinkId) -> None:
    bps = draw(RATES)
    network.set_rate(link, bps)
    twin.changes[link] = [(0, bps)]
    for at_ns in sorted(draw(st.sets(TIMES.filter(bool), max_size=2))):
        bps = draw(RATES)
        network.plan_rate_change(link, at_ns, bps)
        twin.changes[link].append((at_ns, bps))


def reserve_some(draw: st.DrawFn, network: Network, planner: TwinPlanner, hosts: list[str]) -> None:
    for n in range(draw(st.integers(0, 2))):
        path = planner.paths[draw(st.sampled_from(hosts))]
        profile = network.transfer(path, draw(SIZES), draw(TIMES))
        if profile is not None:
            network.reserve(("before", n), path, profile)
            planner.network.reserve(path, profile)


def draw_candidate(draw: st.DrawFn, network: Network, planner: TwinPlanner, hosts: list[str], n: int) -> Candidate:
    source, size_bytes, ready_ns = draw(st.sampled_from(hosts)), draw(SIZES), draw(TIMES)
    update = UpdateId(draw(st.sampled_from("abc")), 0, n)
    in_flight = None
    if draw(st.integers(0, 4)) == 0:
        in_flight = network.transfer(planner.paths[source], size_bytes, ready_ns)
    if in_flight is not None:
        network.reserve(update, planner.paths[source], in_flight)
        planner.network.reserve(planner.paths[source], in_flight)
    return Candidate(
        update=update,
        source=source,
        size_bytes=size_bytes,
        ready_ns=ready_ns,
        computed_from=draw(st.integers(planner.v_init - 10, planner.v_init)),
        in_flight=in_flight,
    )
