"""Stripes: the work is spread over those that have bandwidth to spare, slow hosts carry everything once each way."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.model.chunking import chunk_bytes
from mlfabric.network import Network, up_link
from mlfabric.planning.plan import Kind, Plan
from mlfabric.planning.problem import (
    Batch,
    Consistency,
    FabricState,
    PlannerConfig,
    Shape,
)
from mlfabric.planning.stripe_fans import Work
from mlfabric.planning.stripes import ABSENT, Hosts, Striped, find_stripes
from tests.planning.worlds import Fabric, an_update

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


def planned(network: Network, names: list[str], late: Sequence[str] = ()) -> Plan:
    updates = tuple(an_update(name, 0, SIZE) for name in names)
    shapes = frozenset({Shape.DIRECT, Shape.TREE, Shape.STRIPES})
    config = PlannerConfig(consistency=Consistency.ALL_REDUCE, shapes=shapes, chunk_bytes=CHUNK)
    state = FabricState(now_ns=0, late=frozenset(late))
    found = Fabric(network, Batch(updates=updates), state, config).plan()
    assert found.shape in (Shape.TREE, Shape.STRIPES)
    return found


def load(found: Plan, host: str, way: str) -> float:
    """How often a host carries the whole tensor as the source or as the destination."""
    return sum(transfer.size_bytes for transfer in found.transfers if getattr(transfer, way) == host) / SIZE


def most_load(found: Plan, names: list[str]) -> float:
    """How often the whole tensor goes over the link that carries most."""
    return max(load(found, name, way) for name in names for way in ("source", "destination"))


def roots(found: Plan) -> dict[str, int]:
    """The hosts at which a stripe is summed, and its number."""
    sums = {i for i, transfer in enumerate(found.transfers) if transfer.kind is not Kind.MODEL}
    return {t.source: t.stripe for i, t in enumerate(found.transfers) if i not in sums and sums & set(t.inputs)}


def passing(found: Plan, *, back: bool) -> set[str]:
    """Which hosts sum, or hand on the result, without being a root."""
    return {t.source for t in found.transfers if t.inputs and (t.kind is Kind.MODEL) == back} - set(roots(found))


def wire_times(found: Plan) -> float:
    return max(commit.arrive_ns for commit in found.commits) / WIRE_NS


def test_hosts_at_half_their_rate_cost_one_wire_time_at_that_rate_and_not_two_as_in_a_ring() -> None:
    network, names = cluster([(0.5, 1.0)] * 3 + [(1.0, 0.5)] * 3 + [(1.0, 1.0)] * 24)
    found = planned(network, names)
    assert wire_times(found) <= 2.6
    for n in range(3):
        assert load(found, names[n], "source") == load(found, names[n + 3], "destination") == 1.0
    assert most_load(found, names) <= 2.5


@pytest.mark.parametrize("seed", range(8))
def test_a_host_that_is_fast_one_way_passes_on_that_way_so_that_nobody_does_for_many(seed: int) -> None:
    """Half of all links have a tenth: the slowest link alone decides."""
    rng = Random(seed)
    rates = [(rng.choice((0.1, 1.0)), rng.choice((0.1, 1.0))) for _ in range(30)]
    network, names = cluster(rates)
    found = planned(network, names)
    fast_up, fast_down = ({name for name, rate in zip(names, rates, strict=True) if rate[way] == 1.0} for way in (0, 1))
    assert passing(found, back=False) <= fast_down
    assert passing(found, back=True) <= fast_up
    assert most_load(found, names) <= 1 + 1.4 * 28 / min(len(fast_up), len(fast_down))
    assert wire_times(found) <= 11.5


def test_who_comes_late_sends_to_the_roots_themselves_as_far_as_there_is_room() -> None:
    network, names = cluster([(1.0, 1.0)] * 12)
    late = [names[3], names[7]]
    found = planned(network, names, late)
    for transfer in found.transfers:
        if transfer.source in late:
            assert roots(found)[transfer.destination] == transfer.stripe


@pytest.mark.parametrize("late", [0, 3])
@pytest.mark.parametrize("seed", range(6))
def test_who_comes_late_passes_nothing_on(seed: int, late: int) -> None:
    rng = Random(seed)
    rates = [(rng.choice((0.25, 1.0, 1.0)), rng.choice((0.25, 1.0, 1.0))) for _ in range(rng.randint(12, 20))]
    network, names = cluster(rates, rng.choice((0, 100_000)))
    found = planned(network, names, names[:late])
    assert not {transfer.source for transfer in found.transfers if transfer.inputs} & set(names[:late])


def test_what_a_link_will_carry_later_is_counted_on_too() -> None:
    network, names = cluster([(1.0, 1.0)] * 4)
    network.plan_rate_change(up_link(names[1]), WIRE_NS // 2, FULL_BPS // 4)
    found = planned(network, names, names[:1])  # where somebody is late, nothing but stripes comes into question
    assert load(found, names[1], "source") == 1.0


@settings(max_examples=150, deadline=None)
@given(
    rates=st.lists(st.tuples(*[st.sampled_from((0.1, 0.25, 0.5, 0.7, 1.0))] * 2), min_size=2, max_size=40),
    data=st.data(),
)
def test_the_busiest_link_takes_hardly_longer_than_it_must(
    rates: list[tuple[float, float]], data: st.DataObject
) -> None:
    """At most 1.4 times as long: few hosts with little room each cannot be given just their share of the work."""
    network, names = cluster(rates)
    receivers = data.draw(st.sets(st.integers(1, len(names) - 1), max_size=len(names) // 3))
    hosts = Hosts(names=names, receivers=sorted(receivers))
    found = find_stripes(network, hosts, SIZE, 0, chunk_bytes)
    assert found is not None
    gives = [host not in receivers for host in range(len(names))]
    ups, downs = ([rate[way] for rate in rates] for way in (0, 1))
    able = [host for host, does in enumerate(gives) if does]
    own = max(1 / min(downs), *(1 / ups[host] for host in able))
    inward = Work(downs, [1] * len(names), able, len(able) - 1)
    outward = Work(ups, list(map(int, gives)), range(len(names)), len(names) - 1)
    assert found.span_ns <= 1.4 * max(own, inward.least_time(), outward.least_time()) * WIRE_NS
    assert_every_byte_is_summed_once_and_goes_to_all(found, gives)


def assert_every_byte_is_summed_once_and_goes_to_all(found: Striped, gives: Sequence[bool]) -> None:
    """Each giver's way leads to the root, so does each result's; nobody sums who gives nothing."""
    assert sum(found.size_bytes) == SIZE
    for tree in found.trees:
        assert tree.parents[tree.root] == tree.givers[tree.root] == -1
        for host, does in enumerate(gives):
            assert does == (tree.parents[host] != ABSENT)
            for above in (tree.parents, tree.givers):
                way = [host]
                while above[way[-1]] >= 0:
                    way.append(above[way[-1]])
                    assert len(way) <= len(gives), f"a circle: {way}"
                assert way[-1] == tree.root or above[host] == ABSENT
            assert tree.parents[host] < 0 or gives[tree.parents[host]]
