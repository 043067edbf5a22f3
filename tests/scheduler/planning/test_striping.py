"""Stripes: the work is spread over those that have bandwidth to spare, slow hosts carry everything once each way."""

from __future__ import annotations

from random import Random

import pytest

from mlfabric.network import Network, up_link
from mlfabric.scheduler.planning.plan import Plan
from mlfabric.scheduler.planning.problem import (
    Batch,
    Consistency,
    FabricState,
    PlannerConfig,
    Shape,
)
from mlfabric.scheduler.planning.striping import Striped, find_stripes
from tests.scheduler.planning.worlds import Fabric, an_update

SIZE = 1_000_000
FULL_BPS = 100_000_000
WIRE_NS = 80_000_000
CHUNK = 10_000


def cluster(rates: list[tuple[float, float]], latency_ns: int = 0) -> tuple[Network, list[str]]:
    """Hosts with shares of the full rate, up and down."""
    network = Network.star(FULL_BPS, latency_ns)
    names = [f"h{n:02}" for n in range(len(rates))]
    for name, (up, down) in zip(names, rates, strict=True):
        network.add_host(name, round(up * FULL_BPS), round(down * FULL_BPS))
    return network, names


def striped(rates: list[tuple[float, float]], order: list[int] | None = None, latency_ns: int = 0) -> Striped:
    network, names = cluster(rates, latency_ns)
    found = find_stripes(network, names, SIZE, 0, CHUNK, order if order is not None else range(len(rates)))
    assert found is not None
    return found


def planned(network: Network, names: list[str], late: list[str]) -> Plan:
    updates = tuple(an_update(name, 0, SIZE) for name in names)
    shapes = frozenset({Shape.DIRECT, Shape.TREE, Shape.STRIPES})
    config = PlannerConfig(consistency=Consistency.ALL_REDUCE, shapes=shapes, chunk_bytes=CHUNK)
    state = FabricState(now_ns=0, late=frozenset(late))
    return Fabric(network, Batch(updates=updates), state, config).plan()


def load(found: Striped, host: int, *, up: bool) -> float:
    """How often a host carries the whole tensor in one direction."""
    edges = [edge for edge in found.edges if (edge.source if up else edge.destination) == host]
    return sum(found.size_bytes[edge.stripe] for edge in edges) / SIZE


def passing(found: Striped, *, back: bool) -> dict[int, set[int]]:
    """In which stripes each host sums, or hands on the result; roots do both."""
    out: dict[int, set[int]] = {}
    for edge in found.edges:
        if edge.inputs and edge.back == back:
            out.setdefault(edge.source, set()).add(edge.stripe)
    for stripe, root in enumerate(found.roots):
        out.setdefault(root, set()).add(stripe)
    return out


def most_load(found: Striped, hosts: int) -> float:
    """How often the whole tensor goes over the link that carries most."""
    return max(load(found, host, up=up) for host in range(hosts) for up in (True, False))


def test_hosts_at_half_their_rate_cost_one_wire_time_at_that_rate_and_not_two_as_in_a_ring() -> None:
    rates = [(0.5, 1.0)] * 3 + [(1.0, 0.5)] * 3 + [(1.0, 1.0)] * 24
    found = striped(rates)
    assert max(found.done_ns) <= 2.6 * WIRE_NS
    for host in range(3):
        assert load(found, host, up=True) == load(found, host + 3, up=False) == 1.0
    assert most_load(found, 30) <= 2.5


def test_where_half_of_all_links_have_a_tenth_the_slowest_link_alone_decides() -> None:
    rng = Random(1)
    rates = [(rng.choice((0.1, 1.0)), rng.choice((0.1, 1.0))) for _ in range(30)]
    assert max(striped(rates).done_ns) <= 11.5 * WIRE_NS


@pytest.mark.parametrize("seed", range(8))
def test_a_host_that_is_fast_one_way_passes_on_that_way_so_that_nobody_does_for_many(seed: int) -> None:
    rng = Random(seed)
    rates = [(rng.choice((0.1, 1.0)), rng.choice((0.1, 1.0))) for _ in range(30)]
    found = striped(rates)
    assert set(passing(found, back=False)) - set(found.roots) <= {host for host in range(30) if rates[host][1] == 1.0}
    assert set(passing(found, back=True)) - set(found.roots) <= {host for host in range(30) if rates[host][0] == 1.0}
    fast = min(sum(rate[way] == 1.0 for rate in rates) for way in (0, 1))
    assert most_load(found, 30) <= 1 + 1.4 * 28 / fast


def test_who_comes_late_sends_to_the_roots_themselves_as_far_as_there_is_room() -> None:
    found = striped([(1.0, 1.0)] * 12, [host for host in range(12) if host not in (3, 7)])
    for edge in found.edges:
        if edge.source in (3, 7):
            assert edge.destination == found.roots[edge.stripe]


@pytest.mark.parametrize("late", [0, 3])
@pytest.mark.parametrize("seed", range(6))
def test_plans_keep_their_promises(seed: int, late: int) -> None:
    rng = Random(seed)
    rates = [(rng.choice((0.25, 1.0, 1.0)), rng.choice((0.25, 1.0, 1.0))) for _ in range(rng.randint(12, 20))]
    network, names = cluster(rates, rng.choice((0, 100_000)))
    plan = planned(network, names, names[:late])
    assert plan.shape is Shape.STRIPES
    if late:
        assert not {transfer.source for transfer in plan.transfers if transfer.inputs} & set(names[:late])


def test_what_a_link_will_carry_later_is_counted_on_too() -> None:
    network, names = cluster([(1.0, 1.0)] * 4)
    network.plan_rate_change(up_link(names[1]), WIRE_NS // 2, FULL_BPS // 4)
    found = find_stripes(network, names, SIZE, 0, CHUNK, range(4))
    assert found is not None
    assert load(found, 1, up=True) == 1.0
    planned(network, names, [])
