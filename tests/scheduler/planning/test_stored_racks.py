"""Which links lead into the racks of aggregators, and how much of a lot passes them."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np

from mlfabric.network import Network
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning import stored
from mlfabric.scheduler.planning.fluid import stored_racks
from mlfabric.scheduler.planning.fluid.lines import Ints
from mlfabric.scheduler.planning.fluid.stored_load import Load
from mlfabric.scheduler.planning.fluid.world import World
from mlfabric.scheduler.planning.forwarding import Lot
from mlfabric.scheduler.planning.problem import Aggregator


def three_racks() -> Network:
    """The server and a0, a1, ... are in rack a; b0, ... and c0, ... in the others; one spine."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    hosts = {"server": "a", **{f"{rack}{n}": rack for rack in "abc" for n in range(3)}}
    for tail, head in [*hosts.items(), *((rack, "spine") for rack in "abc")]:
        graph.add_edge(tail, head, capacity_bps=10**9, latency_ns=0)
        graph.add_edge(head, tail, capacity_bps=10**9, latency_ns=0)
    nx.set_node_attributes(graph, dict.fromkeys(hosts, True), "host")
    return Network.from_graph(graph)


def laid_out(network: Network, sources: Sequence[str], aggregators: Sequence[str]) -> tuple[World, Load]:
    """One byte from each source, to the server."""
    count = len(sources)
    updates, ones = [UpdateId("w", 0, n) for n in range(count)], np.full(count, 8, np.int64)
    lot = Lot(updates, sources, ones, np.zeros(count, np.int64), 0, None, [True] * count)
    world = World(network, sorted({*sources, *aggregators}), ["server", *aggregators])
    return world, stored._load(lot, world, "server", [Aggregator(host=host) for host in aggregators], 0, 1)


def into_racks(
    network: Network, sources: Sequence[str], aggregators: Sequence[str], planned: Sequence[int] | None = None
) -> tuple[set[str], Ints, Ints]:
    """The racks' links by name; the bits of each update that enter in groups, and directly."""
    world, load = laid_out(network, sources, aggregators)
    links = stored_racks.rack_links(world.lines, world.routes, load)
    flags = np.array([1] * len(sources) if planned is None else planned, np.int64)
    grouped, directly = stored_racks.bits_into(world.routes, load, flags, links)
    names = {f"{link.tail}-{link.head}" for link, number in world.links.items() if links[number]}
    return names, np.diff(grouped), np.diff(directly)


def test_racks_are_entered_by_the_last_link_but_one() -> None:
    names, grouped, directly = into_racks(three_racks(), ["a1", "b0", "c0"], ["a0"])
    assert names == {"spine-a"}
    assert grouped.tolist() == [0, 8, 8]
    assert directly.tolist() == [0, 8, 8]


def test_only_what_enters_whichever_aggregator_takes_it_counts() -> None:
    names, grouped, directly = into_racks(three_racks(), ["a1", "b1", "c1"], ["a0", "b0"])
    assert names == {"spine-a", "spine-b"}
    assert grouped.tolist() == [0, 0, 8]
    assert directly.tolist() == [0, 8, 8]


def test_what_goes_directly_may_enter_no_rack_of_an_aggregator() -> None:
    _, grouped, directly = into_racks(three_racks(), ["a1", "b1", "c1"], ["b0"])
    assert grouped.tolist() == [8, 0, 8]
    assert directly.tolist() == [0, 0, 0]


def test_what_is_on_its_way_brings_nothing_more() -> None:
    _, grouped, directly = into_racks(three_racks(), ["b0", "b0", "c0"], ["a0"], planned=[0, 1, 0])
    assert grouped.tolist() == [8, 8, 8]
    assert directly.tolist() == [0, 8, 0]


def test_a_star_has_no_racks() -> None:
    network = Network.star(10**9)
    for host in ("server", "a0", "b0"):
        network.add_host(host)
    names, grouped, directly = into_racks(network, ["a0", "b0"], ["a0"])
    assert names == set()
    assert (len(grouped), len(directly)) == (0, 0)
