"""The trees of an AllReduce: whatever is planned, every worker's bytes reach the root once and come back once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfabric.methods.all_reduce import (
    CHAINS_OF_MANY,
    MOST_CHAINS,
    RING_FROM_NS,
    TREES_FROM_NS,
    Shaped,
    shape_round,
)
from mlfabric.methods.byte_trees import Trees
from mlfabric.model.specs import ALIGNMENT_BYTES
from mlfabric.network import Network, up_link
from mlfabric.planning import Shape
from mlfabric.protocol import RoundId

MEGABIT = 1_000_000
TREES_FROM_BYTES, RING_FROM_BYTES = (200 * MEGABIT * ns // (8 * 10**9) for ns in (TREES_FROM_NS, RING_FROM_NS))
"""Over the fast links here."""
sizes = st.sampled_from((0, 2, 17, TREES_FROM_BYTES, RING_FROM_BYTES, RING_FROM_BYTES + 6, 1_000_006))
rates = st.lists(st.sampled_from((50 * MEGABIT, 200 * MEGABIT)), min_size=1, max_size=12)
without_stripes = frozenset(Shape) - {Shape.RING}


def star(rates_bps: list[int]) -> Network:
    network = Network.star(1000 * MEGABIT)
    for i, bps in enumerate(rates_bps):
        network.add_host(f"h{i}", bps, bps)
    return network


def shaped(
    rates_bps: list[int],
    size_bytes: int,
    counter: int = 1,
    each: int = 1,
    without: frozenset[Shape] = frozenset(),
    late: int = 0,
) -> tuple[Shaped, list[str]]:
    members = {f"w{i}.{k}": f"h{i}" for i in range(len(rates_bps)) for k in range(each)}
    missing, number = sorted(members)[:late], RoundId(1, counter)
    found = shape_round(star(rates_bps), members, size_bytes, number, 0, missing, without)
    assert isinstance(found, Shaped), found
    return found, sorted(members)


def way(above: dict[str, str], worker: str) -> list[str]:
    """The way up from a worker."""
    out = [worker]
    while out[-1] in above:
        out.append(above[out[-1]])
        assert len(set(out)) == len(out), f"a circle: {out}"
    return out


@given(rates, sizes, st.integers(1, 50), st.integers(1, 3), st.sampled_from((frozenset(), without_stripes)), st.data())
@settings(max_examples=100, deadline=None)
def test_every_byte_of_every_worker_goes_up_one_tree_to_its_root_and_comes_back_down_one(
    rates_bps, size_bytes, counter, each, without, data
) -> None:
    late = data.draw(st.integers(0, len(rates_bps) - 1))
    found, workers = shaped(rates_bps, size_bytes, counter, each, without, late)
    at = 0
    for tree in found.trees:
        assert at == tree.start < tree.end
        assert tree.start % ALIGNMENT_BYTES == 0
        at = tree.end
        for above in (tree.parents, tree.sources):
            assert sorted(above) == [worker for worker in workers if worker != tree.root]
            assert all(way(dict(above), worker)[-1] == tree.root for worker in workers)
    assert at == size_bytes


@given(rates, sizes, st.integers(1, 50), st.data())
@settings(max_examples=60, deadline=None)
def test_who_only_receives_sums_nothing_and_gets_every_byte(rates_bps, size_bytes, counter, data) -> None:
    everyone = {f"w{i}.{k}": f"h{i}" for i in range(len(rates_bps)) for k in range(2)}
    others = sorted(everyone)[1:]
    receivers = data.draw(st.sets(st.sampled_from(others)))
    found = shape_round(
        star(rates_bps),
        {worker: host for worker, host in everyone.items() if worker not in receivers},
        size_bytes,
        RoundId(1, counter),
        now_ns=0,
        receivers={worker: everyone[worker] for worker in receivers},
    )
    assert isinstance(found, Shaped), found
    assert sum(tree.end - tree.start for tree in found.trees) == size_bytes
    for tree in found.trees:
        assert not receivers & {tree.root, *tree.parents.values()}
        assert set(tree.parents) == everyone.keys() - receivers - {tree.root}
        assert set(tree.sources) == everyone.keys() - {tree.root}
        for above in (tree.parents, tree.sources):
            assert all(way(dict(above), worker)[-1] == tree.root for worker in above)


@given(rates, sizes, st.integers(1, 50))
@settings(max_examples=30, deadline=None)
def test_the_same_round_gives_the_same_trees(rates_bps, size_bytes, counter) -> None:
    assert shaped(rates_bps, size_bytes, counter) == shaped(rates_bps, size_bytes, counter)


def carried(tree: Trees, worker: str) -> tuple[int, int]:
    """How often a worker sends and receives the bytes of a range."""
    edges = (tree.parents, tree.sources)
    sends = (worker in tree.parents) + sum(above == worker for above in tree.sources.values())
    return sends, (worker in tree.sources) + sum(above == worker for above in edges[0].values())


def loads(found: Shaped, worker: str) -> list[float]:
    """How often a worker sends and receives the whole tensor."""
    of_trees = [[n * (tree.end - tree.start) for n in carried(tree, worker)] for tree in found.trees]
    return [sum(column) / found.trees[-1].end for column in zip(*of_trees, strict=True)]


@pytest.mark.parametrize("without", [frozenset(), without_stripes])
def test_on_equal_links_each_worker_sends_and_receives_as_much_as_in_a_ring(without) -> None:
    found, workers = shaped([200 * MEGABIT] * 4, 25_000_000, without=without)
    assert found.shape is (Shape.RING if without else Shape.STRIPES)
    assert found.without_stripes is bool(without)
    assert sorted(tree.root for tree in found.trees) == workers
    for worker in workers:
        assert loads(found, worker) == pytest.approx([1.5, 1.5], rel=1e-3)


def test_a_ring_of_many_has_few_chains() -> None:
    few, _ = shaped([200 * MEGABIT] * MOST_CHAINS, 25_000_000, without=without_stripes)
    many, workers = shaped([200 * MEGABIT] * (MOST_CHAINS + 1), 25_000_000, without=without_stripes)
    assert (len(few.trees), len(many.trees)) == (MOST_CHAINS, CHAINS_OF_MANY)
    assert max(max(loads(many, worker)) for worker in workers) <= 2.01


def test_a_host_with_a_slow_link_carries_the_tensor_once_each_way_and_is_no_root() -> None:
    for counter in range(1, 20):
        found, _ = shaped([200 * MEGABIT] * 3 + [50 * MEGABIT], 25_000_000, counter)
        assert loads(found, "w3.0") == pytest.approx([1, 1])
        assert "w3.0" not in {tree.root for tree in found.trees}


@pytest.mark.parametrize("shape", [Shape.TREE, Shape.STRIPES])
def test_streams_in_trees_are_told_somewhat_more_than_what_each_needs_to_end_in_time(shape: Shape) -> None:
    """So that none has more than that on its way (``Connection.hold_back``); what is short needs no limit."""
    without = frozenset({Shape.RING, Shape.TREE, Shape.STRIPES} - {shape})
    found, _ = shaped([10 * MEGABIT] * 2 + [1 * MEGABIT] * 3, 1_000_000, without=without)
    assert found.shape is shape
    took_s = max(reservation.profile.end_ns for reservation in found.transfers) / 1e9
    for tree in found.trees:
        assert 1.0 <= tree.rate_bps * took_s / (8 * (tree.end - tree.start)) <= 2.0
    short, _ = shaped([MEGABIT] * 5, 1024, without=frozenset({Shape.RING, Shape.STRIPES}))
    assert [tree.rate_bps for tree in short.trees] == [0]


def test_the_root_is_drawn_among_all_hosts_that_are_alike() -> None:
    for size_bytes in (16, TREES_FROM_BYTES):
        roots = {shaped([200 * MEGABIT] * 4, size_bytes, counter)[0].trees[0].root for counter in range(1, 60)}
        assert roots == {"w0.0", "w1.0", "w2.0", "w3.0"}


@pytest.mark.parametrize("fast_bps", [2 * MEGABIT, 200 * MEGABIT, 20_000 * MEGABIT])
def test_how_long_a_tensor_takes_over_a_fast_link_decides_how_many_hops_it_is_worth(fast_bps) -> None:
    def shape(ns: int) -> Shape:
        return shaped([fast_bps] * 5, fast_bps * ns // (8 * 10**9) // ALIGNMENT_BYTES * ALIGNMENT_BYTES)[0].shape

    assert shape(TREES_FROM_NS * 9 // 10) is Shape.DIRECT
    assert shape(RING_FROM_NS * 9 // 10) is Shape.TREE
    assert shape(RING_FROM_NS * 100) in (Shape.TREE, Shape.STRIPES)


def test_what_is_free_of_links_is_used_where_that_is_enough() -> None:
    network, members = star([100 * MEGABIT] * 3), {f"w{i}": f"h{i}" for i in range(3)}
    path = network.path("h1", "h2")
    network.set_rate(path[0], 25 * MEGABIT)
    little = network.transfer(path, 10**11, 0)
    network.set_rate(path[0], 100 * MEGABIT)
    assert little is not None
    network.reserve("another job's", path, little)
    found = shape_round(network, members, 10_000_000, RoundId(1, 1), 0)
    assert isinstance(found, Shaped)
    assert found.transfers
    assert not found.shares
    for number, one in enumerate(found.transfers):
        network.reserve(number, one.path, one.profile)


def test_links_that_others_have_reserved_are_shared_with_them() -> None:
    network, members, size_bytes = star([100 * MEGABIT] * 3), {f"w{i}": f"h{i}" for i in range(3)}, 10_000_000
    alone = shape_round(network, members, size_bytes, RoundId(1, 1), 0)
    path = network.path("h1", "h2")
    for_long = network.transfer(path, 10**11, 0)
    assert for_long is not None
    network.reserve("another job's", path, for_long)
    found = shape_round(network, members, size_bytes, RoundId(1, 1), 0)
    assert isinstance(alone, Shaped)
    assert isinstance(found, Shaped)
    alone_ns = max(one.profile.end_ns for one in alone.transfers)
    assert alone_ns < found.planned_ns < 2.1 * alone_ns
    assert not found.transfers
    assert found.shares
    assert "over links that others use as well" in found.reason


def test_a_host_that_cannot_be_reached_is_said() -> None:
    network = star([200 * MEGABIT] * 3)
    network.set_rate(up_link("h1"), 0)
    found = shape_round(network, {f"w{i}": f"h{i}" for i in range(3)}, 25_000_000, RoundId(1, 1), now_ns=0)
    assert isinstance(found, str)
    assert "no capacity" in found
