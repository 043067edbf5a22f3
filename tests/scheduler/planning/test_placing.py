"""Compiled against plain Python on large batches; columns."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.errors import UsageError
from mlfabric.network import Network, up_link
from mlfabric.protocol import GetId, UpdateId
from mlfabric.scheduler.planning import Candidate, GetCandidate, reserving
from mlfabric.scheduler.planning.fluid.world import World
from mlfabric.scheduler.planning.gets import order_gets
from mlfabric.scheduler.planning.ordering import order
from mlfabric.scheduler.planning.profiles import Profiles

T = TypeVar("T")

SEEDS = st.integers(0, 2**32)
LARGE = 12


@pytest.fixture(scope="module", autouse=True)
def _only_what_is_tested_here() -> Iterator[None]:
    """Load nothing beforehand: the other stages' kernels take long to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reserving, "_loaded", [True])
        yield


def few_rates(rng: random.Random) -> int:
    return int(rng.choice([1, 2.5, 3.3, 5, 10]) * 10**9)


def any_rate(rng: random.Random) -> int:
    return rng.randint(10**9, 10**10)


def close_rates(rng: random.Random) -> int:
    """So close that many transfers end within the same nanosecond."""
    return 3 * 10**9 + rng.randint(0, 50)


def one_rate(rng: random.Random) -> int:
    return 10**10


RATES = [few_rates, any_rate, close_rates, one_rate]


def a_star(rng: random.Random, hosts: int, rate: Callable[[random.Random], int]) -> Network:
    network = Network.star(10**10)
    network.add_host("s", up_bps=8 * 10**9)
    for n in range(hosts):
        network.add_host(f"h{n}", rate(rng), rate(rng))
    return network


def a_leaf_spine(rng: random.Random, hosts: int, rate: Callable[[random.Random], int]) -> Network:
    graph: nx.DiGraph[str] = nx.DiGraph()
    racks = rng.randint(1, 4)
    cables = [(f"rack{n}", "spine") for n in range(racks)]
    cables += [(host, f"rack{rng.randrange(racks)}") for host in ("s", *(f"h{n}" for n in range(hosts)))]
    for ends in cables:
        for tail, head in (ends, ends[::-1]):
            graph.add_edge(tail, head, capacity_bps=rate(rng), latency_ns=rng.choice([0, 500]))
    nx.set_node_attributes(graph, {ends[0]: True for ends in cables[racks:]}, "host")
    return Network.from_graph(graph)


def disturbed(rng: random.Random, network: Network, hosts: int) -> Network:
    for link in rng.sample(network.links, k=min(len(network.links), rng.randint(0, 4))):
        network.plan_rate_change(link, rng.randint(1, 10**9), rng.choice([0, any_rate(rng)]))
    for n in range(rng.randint(0, 8)):
        path = network.path(f"h{rng.randrange(hosts)}", "s")
        profile = network.transfer(path, rng.randint(1, 10**8), rng.randint(0, 10**8))
        if profile is not None:
            network.reserve(n, path, profile)
    return network


def a_batch(rng: random.Random, network: Network, hosts: int) -> list[Candidate]:
    count = rng.randint(LARGE, 60)
    sizes = rng.choice([[10**8], [10**7, 10**8], [10**8, 10**8 + 1, 5, 0], [rng.randint(1, 10**8) for _ in range(60)]])
    batch = []
    for n in range(count):
        source, size_bytes = rng.choice([f"h{n % hosts}", "s", f"h{rng.randrange(hosts)}"]), rng.choice(sizes)
        update, flying = UpdateId(rng.choice(["w", "v", f"w{n}"]), rng.randrange(2), n), None
        if rng.random() < 0.1:
            flying = network.transfer(network.path(source, "s"), size_bytes, 0)
        if flying is not None:
            network.reserve(update, network.path(source, "s"), flying)
        batch.append(
            Candidate(
                update=update,
                source=source,
                size_bytes=size_bytes,
                ready_ns=rng.choice([0, 0, rng.randint(0, 10**9)]),
                computed_from=rng.choice([rng.randint(0, 2 * count), rng.randint(1, 9), 10**6]),
                in_flight=flying,
            )
        )
    return batch


def both(plan: Callable[[], T]) -> tuple[T, T]:
    with pytest.MonkeyPatch.context() as patch:
        fast = plan()
        patch.setattr(reserving, "_loaded", [])
        return fast, plan()


@pytest.mark.parametrize("topology", [a_star, a_leaf_spine])
@pytest.mark.parametrize("rate", RATES)
@settings(max_examples=25)
@given(seed=SEEDS)
def test_large_batches_are_ordered_alike_compiled_and_not(
    topology: Callable[..., Network], rate: Callable[[random.Random], int], seed: int
) -> None:
    rng = random.Random(seed)
    hosts = rng.randint(1, 20)
    network = disturbed(rng, topology(rng, hosts, rate), hosts)
    batch = a_batch(rng, network, hosts)
    tau_max = rng.choice([0, None])
    fast, slow = both(lambda: order(batch, network, "s", v_init=1, tau_max=tau_max, now_ns=1000))
    assert fast == slow
    network.validate()


@pytest.mark.parametrize("topology", [a_star, a_leaf_spine])
@settings(max_examples=25)
@given(seed=SEEDS)
def test_a_world_that_is_there_already_gives_the_same_order_and_stays_as_it_is(
    topology: Callable[..., Network], seed: int
) -> None:
    rng = random.Random(seed)
    hosts = rng.randint(1, 20)
    network = disturbed(rng, topology(rng, hosts, few_rates), hosts)
    batch = a_batch(rng, network, hosts)
    names = rng.sample(sorted(network.hosts), len(network.hosts))
    world, untouched = World(network, names, names), World(network, names, names)
    tau_max = rng.choice([0, None])
    plan = partial(order, batch, network, "s", v_init=1, tau_max=tau_max, now_ns=1000)
    assert plan(world=world) == plan()
    assert all(np.array_equal(*pair) for pair in zip(world.lines, untouched.lines, strict=True))


def test_there_is_room_for_however_many_pieces() -> None:
    network = Network.star(4 * 10**9)
    for host in "as":
        network.add_host(host)
    for n in range(1000):
        network.plan_rate_change(up_link("a"), n * 10**6, 10**9 * (1 + n % 2))
    batch = [
        Candidate(update=UpdateId("a", 0, n), source="a", size_bytes=10**7, ready_ns=0, computed_from=3 * n % 10)
        for n in range(10)
    ]
    fast, slow = both(lambda: order(batch, network, "s", v_init=0, tau_max=9, now_ns=0))
    assert fast == slow
    assert sum(len(slot.profile.pieces) for slot in fast.slots) > 400


@settings(max_examples=25)
@given(seed=SEEDS)
def test_gets_are_ordered_alike_compiled_and_not(seed: int) -> None:
    rng = random.Random(seed)
    network = disturbed(rng, rng.choice([a_star, a_leaf_spine])(rng, 10, rng.choice(RATES)), 10)
    requests = [
        GetCandidate(
            get=GetId(f"w{n}", 0, 0),
            destination=rng.choice([f"h{rng.randrange(10)}", "s"]),
            size_bytes=rng.choice([0, 10**7, 10**8]),
            ready_ns=rng.choice([0, rng.randint(0, 10**8)]),
        )
        for n in range(rng.randint(1, 40))
    ]
    fast, slow = both(lambda: order_gets(requests, network, "s", now_ns=0))
    assert fast == slow


def test_a_large_batch_comes_with_its_order_as_columns() -> None:
    rng = random.Random(5)
    network = a_star(rng, 9, few_rates)
    batch = a_batch(rng, network, 9)
    ordering = order(batch, network, "s", v_init=0, tau_max=30, now_ns=7)
    assert ordering.placed is not None
    updates, sources, bits, ready_ns, planned, profiles = ordering.placed
    by_update = {c.update: c for c in batch}
    placed = [by_update[slot.update] for slot in ordering.slots]
    assert updates == [c.update for c in placed]
    assert sources == [c.source for c in placed]
    assert bits.tolist() == [8 * c.size_bytes for c in placed]
    assert planned == [c.in_flight is None for c in placed]
    assert ready_ns.tolist() == [c.ready_ns if c.in_flight else max(7, c.ready_ns) for c in placed]
    expected = Profiles.of([slot.profile for slot in ordering.slots])
    assert all(np.array_equal(*pair) for pair in zip(profiles, expected, strict=True))


def test_unknown_hosts_and_sizes_out_of_range_are_refused() -> None:
    network = a_star(random.Random(1), 3, few_rates)

    def batch(source: str, size_bytes: int) -> list[Candidate]:
        given_sizes = [1] * LARGE + [size_bytes]
        return [
            Candidate(update=UpdateId("w", 0, n), source=source, size_bytes=size, ready_ns=0, computed_from=0)
            for n, size in enumerate(given_sizes)
        ]

    with pytest.raises(UsageError, match="unknown host 'h9'"):
        order(batch("h9", 1), network, "s", v_init=0, tau_max=99, now_ns=0)
    for size_bytes in (-1, 2**50 + 1, 2**99):
        with pytest.raises(UsageError, match=f"size_bytes={size_bytes};"):
            order(batch("h0", size_bytes), network, "s", v_init=0, tau_max=99, now_ns=0)


def test_a_batch_that_is_all_too_late_or_unreachable_ends() -> None:
    network = a_star(random.Random(1), 3, few_rates)
    network.set_rate(up_link("h0"), 0)
    batch = [
        Candidate(update=UpdateId("w", 0, n), source="h0", size_bytes=1, ready_ns=0, computed_from=n) for n in range(20)
    ]
    fast, slow = both(partial(order, batch, network, "s", v_init=0, tau_max=-9, now_ns=0))
    assert fast == slow
    assert not fast.slots
    late = order(batch, network, "s", v_init=99, tau_max=0, now_ns=0)
    assert (len(late.slots), len(late.left)) == (0, 20)
