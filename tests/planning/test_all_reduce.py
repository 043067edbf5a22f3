"""AllReduce: everyone gets the sum of all; rings where hosts are equal, trees around a slow one."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import pytest

from mlfabric.network import LinkId, Network, up_link
from mlfabric.planning.plan import Plan
from mlfabric.planning.problem import Batch, Consistency, FabricState, PlannerConfig, Shape
from mlfabric.planning.rings import find_ring
from mlfabric.protocol import UpdateId
from tests.planning.worlds import Fabric, an_update, leaf_spine, set_host_rates
from tests.planning.worlds import star as star_of

MS = 1_000_000
SIZE = 25_000_000
WIRE_NS = 200 * MS


def star(count: int) -> Network:
    return star_of(hosts(count), MS // 10)


def hosts(count: int) -> list[str]:
    return [f"w{n}" for n in range(count)]


def batch_of(sources: list[str], size_bytes: int = SIZE, ready_ns: dict[str, int] | None = None) -> Batch:
    ready = ready_ns or {}
    return Batch(
        updates=tuple(
            an_update(source, n, size_bytes, ready_ns=ready.get(source, 0)) for n, source in enumerate(sources)
        )
    )


def planned(
    network: Network, batch: Batch, shapes: frozenset[Shape] = frozenset(Shape), late: frozenset[str] = frozenset()
) -> Plan:
    config = PlannerConfig(consistency=Consistency.ALL_REDUCE, shapes=shapes)
    return Fabric(network, batch, FabricState(now_ns=0, late=late), config).plan()


def wire_times(plan: Plan) -> float:
    return max(commit.arrive_ns for commit in plan.commits) / WIRE_NS


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_equal_hosts_are_as_fast_as_a_ring(count: int) -> None:
    assert wire_times(planned(star(count), batch_of(hosts(count)))) <= 2 * (count - 1) / count + 0.04


def test_one_host_alone_sends_nothing() -> None:
    plan = planned(star(1), batch_of(["w0", "w0"], ready_ns={"w0": 5}))
    assert plan.transfers == ()
    assert [commit.arrive_ns for commit in plan.commits] == [5, 5]


@pytest.mark.parametrize(("count", "slow_ones"), [(3, ["w0"]), (4, ["w2"]), (8, ["w0"]), (8, ["w0", "w5"])])
def test_hosts_with_a_quarter_of_the_bandwidth_take_four_wire_times_where_a_ring_takes_more(
    count: int, slow_ones: list[str]
) -> None:
    network = star(count)
    for host in slow_ones:
        set_host_rates(network, host, 250_000_000, 250_000_000)
    plan = planned(network, batch_of(hosts(count)))
    assert plan.shape is Shape.STRIPES
    assert wire_times(plan) <= 4.08
    ring = planned(network, batch_of(hosts(count)), frozenset({Shape.DIRECT, Shape.RING}))
    assert wire_times(ring) >= 5
    passing = {transfer.source for transfer in plan.transfers if transfer.inputs}
    assert not passing & set(slow_ones)


@pytest.mark.parametrize("shapes", [frozenset(Shape), frozenset({Shape.DIRECT, Shape.RING}), frozenset({Shape.DIRECT})])
def test_the_reason_names_the_slow_link_that_holds_the_round_up(shapes: frozenset[Shape]) -> None:
    even = planned(star(4), batch_of(hosts(4)), shapes)
    assert not any("held up" in commit.reason for commit in even.commits)
    for up_bps, down_bps, named in ((10**9, 10**8, "w2's way down"), (10**8, 10**9, "w2's way up")):
        network = star(4)
        set_host_rates(network, "w2", up_bps, down_bps)
        plan = planned(network, batch_of(hosts(4)), shapes)
        assert {commit.reason.partition("held up by ")[2] for commit in plan.commits} == {named}


def test_nothing_is_sent_before_the_last_host_is_ready_unless_it_is_known_to_be_late() -> None:
    plan = planned(star(4), batch_of(hosts(4), ready_ns={"w1": 300 * MS}))
    assert min(transfer.profile.start_ns for transfer in plan.transfers) == 300 * MS


@pytest.mark.parametrize("shapes", [frozenset(Shape), frozenset(Shape) - {Shape.STRIPES}])
def test_what_a_late_host_is_waited_for_goes_in_stripes_or_over_one_host_if_there_are_none(
    shapes: frozenset[Shape],
) -> None:
    plan = planned(star(3), batch_of(hosts(3)), shapes, late=frozenset({"w1"}))
    assert plan.shape is (Shape.STRIPES if Shape.STRIPES in shapes else Shape.TREE)
    assert len(plan.commits) == 3


def test_tiny_updates_take_few_hops() -> None:
    plan = planned(star(16), batch_of(hosts(16), 1000))
    assert plan.shape is Shape.TREE
    assert max(commit.arrive_ns for commit in plan.commits) <= 10 * MS // 10


def test_a_ring_crosses_each_rack_s_uplink_once() -> None:
    network = leaf_spine(hosts(12), leaves=3, latency_ns=MS // 50)
    ring = find_ring(network, hosts(12), SIZE, 0)
    assert ring is not None
    crossed = Counter(link for path in ring.paths for link in path)
    assert set(crossed.values()) == {1}
    assert wire_times(planned(network, batch_of(hosts(12)))) <= 2


def test_ring_edges_on_one_link_share_it() -> None:
    """Two hosts of one rack and one of another in a circle through a slow core: its links carry one edge each way."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for host in hosts(4):
        graph.add_edge(host, "x", capacity_bps=10**9)
        graph.add_edge("y", host, capacity_bps=10**9)
    graph.add_edge("x", "y", capacity_bps=10**9)
    nx.set_node_attributes(graph, dict.fromkeys(hosts(4), True), "host")
    network = Network.from_graph(graph)
    ring = find_ring(network, hosts(4), SIZE, 0)
    assert ring is not None
    assert Counter(link for path in ring.paths for link in path)[LinkId("x", "y")] == 4
    assert {piece.bps for piece in ring.profile.pieces} == {250_000_000}
    planned(network, batch_of(hosts(4)), frozenset({Shape.DIRECT, Shape.RING}))


def test_without_trees_and_rings_everyone_sends_to_a_root_and_gets_the_sum_back() -> None:
    plan = planned(star(4), batch_of(hosts(4)), frozenset({Shape.DIRECT}))
    assert plan.shape is Shape.DIRECT
    assert not any(transfer.cut_through for transfer in plan.transfers)
    assert 6 <= wire_times(plan) <= 6.01


def test_a_host_that_is_cut_off_leaves_all_waiting_with_a_reason() -> None:
    network = star(3)
    network.set_rate(up_link("w1"), 0)
    plan = planned(network, batch_of(hosts(3)))
    assert not plan.commits
    assert not plan.transfers
    assert [deferred.what for deferred in plan.deferred] == [UpdateId(host, 0, n) for n, host in enumerate(hosts(3))]
    assert "no capacity" in plan.deferred[0].reason
