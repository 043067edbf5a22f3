"""The network as arrays: the same transfers, reservations and paths as the network itself gives."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.errors import UsageError
from mlfabric.network import HORIZON_NS, Network, Piece, Profile
from mlfabric.scheduler.planning.fluid.jit import compiled
from mlfabric.scheduler.planning.fluid.layout import unpacked
from mlfabric.scheduler.planning.fluid.lines import Lines, fork, no_pieces, reach, send, take, walk
from mlfabric.scheduler.planning.fluid.world import World
from mlfabric.scheduler.planning.placing import packed
from tests.scheduler.planning.worlds import leaf_spine, star

HOSTS = [f"h{n}" for n in range(5)]
RATES = [0, 1, 7, 3_000_000, 10**9, 10**9, 10**10, 9_999_999_967, 2**43]
SIZES = [0, 1, 3, 1000, 10**6, 12_345_677, 2**50]
TIMES = [0, 1, 1000, 8_000_000, 8_000_001, 10**9, HORIZON_NS - 1, HORIZON_NS]


@compiled
def planned(lines, routes, route, bits, ready_ns):
    pieces = no_pieces()
    return walk(lines, routes, route, bits, ready_ns, pieces, True), pieces


@compiled
def sent(lines, routes, route, bits, ready_ns):
    pieces = no_pieces()
    end_ns, lines = send(lines, routes, route, bits, ready_ns, pieces)
    return end_ns, lines, pieces


@compiled
def taken(lines, routes, route, bits, ready_ns):
    pieces = no_pieces()
    walk(lines, routes, route, bits, ready_ns, pieces, True)
    return take(lines, routes, route, pieces, 0)


def a_network(rng: random.Random) -> Network:
    latency_ns = rng.choice([0, 1000])
    network = star(HOSTS, latency_ns) if rng.random() < 0.5 else leaf_spine(HOSTS, latency_ns=latency_ns)
    for link in network.links:
        network.set_rate(link, rng.choice(RATES))
        if rng.random() < 0.3:
            network.plan_rate_change(link, rng.choice(TIMES[1:6]), rng.choice(RATES))
    return network


def free(lines: Lines, link: int) -> list[tuple[int, int]]:
    """What is free on a link from when on, neighbours of one rate joined."""
    found: list[tuple[int, int]] = []
    node = int(lines.head[link])
    while node:
        at_ns, bps = int(lines.at_ns[node]), int(lines.bps[node])
        if not found or found[-1][1] != bps:
            found.append((at_ns, bps))
        node = int(lines.following[node])
    return found


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_transfers_one_after_the_other_are_planned_and_reserved_as_by_the_network(seed: int) -> None:
    rng = random.Random(seed)
    network = a_network(rng)
    world = World(network, HOSTS, HOSTS[::-1])
    lines, untouched = fork(world.lines, 0), [free(world.lines, n) for n in range(len(world.lines.head))]
    for n in range(12):
        source, destination = rng.choice(HOSTS), rng.choice(HOSTS)
        size_bytes, ready_ns = rng.choice(SIZES), rng.choice(TIMES)
        route, path = world.route(source, destination), network.path(source, destination)
        assert world.path(route) == path
        assert world.routes.latency_ns[route] == network.latency_ns(path)
        expected = network.transfer(path, size_bytes, ready_ns)
        expected = None if expected is None or expected.end_ns >= HORIZON_NS else expected
        end_ns, found = planned(lines, world.routes, route, 8 * size_bytes, ready_ns)
        assert reach(lines, world.routes, route, 2**43, 8 * size_bytes, ready_ns) == end_ns
        sent_ns, lines, pieces = sent(lines, world.routes, route, 8 * size_bytes, ready_ns)
        assert end_ns == sent_ns == (HORIZON_NS if expected is None else expected.end_ns)
        assert pieces == (found if expected else [])
        if expected is not None:
            start_ns = pieces[0][0] if pieces else ready_ns
            assert Profile(start_ns, sent_ns, tuple(map(Piece._make, pieces))) == expected
            network.reserve(n, path, expected)
    for link, number in world.links.items():
        line = network.free_line(link)
        left = list(zip(line.times, line.values, strict=False))
        kept = free(lines, number)
        # A head moves on past what is used up; an overbooked link has nothing free.
        assert kept == [pair for pair in left if pair[0] >= kept[0][0]]
        assert all(bps <= 0 for at_ns, bps in left if at_ns < kept[0][0])
    assert [free(world.lines, n) for n in range(len(world.lines.head))] == untouched, "a fork is independent"


def test_what_is_taken_is_what_was_sent() -> None:
    network = star(HOSTS)
    world = World(network, HOSTS, HOSTS)
    route = world.route("h0", "h1")
    _, one, _ = sent(fork(world.lines, 0), world.routes, route, 8 * 10**6, 5)
    other = taken(fork(world.lines, 0), world.routes, route, 8 * 10**6, 5)
    assert [free(one, n) for n in range(10)] == [free(other, n) for n in range(10)]
    assert free(other, world.links[network.path("h0", "h1")[0]]) == [(0, 10**9), (5, 0), (8_000_005, 10**9)]


def test_a_packed_network_is_laid_out_as_its_paths_come() -> None:
    network = leaf_spine(HOSTS)
    paths = [network.path("h0", "h1"), (), network.path("h3", "h2")]
    lines, routes = unpacked(packed(network, paths))
    assert routes.hops.tolist() == [len(path) for path in paths]
    numbers = list(dict.fromkeys(link for path in paths for link in path))
    assert [routes.link[n, : len(path)].tolist() for n, path in enumerate(paths)] == [
        [numbers.index(link) for link in path] for path in paths
    ]
    for number, link in enumerate(numbers):
        line = network.free_line(link)
        assert free(lines, number) == list(zip(line.times, line.values, strict=False))


@pytest.mark.parametrize("network", [star(HOSTS), leaf_spine(HOSTS)])
def test_a_host_may_be_named_twice_and_must_be_known(network: Network) -> None:
    world = World(network, ["h0", "h1", "h0"], ["h1", "h2"])
    assert np.array_equal(world.routes.link[0:2], world.routes.link[4:6])
    with pytest.raises(UsageError, match="unknown host 'nobody'"):
        World(network, ["h0"], ["nobody"])
