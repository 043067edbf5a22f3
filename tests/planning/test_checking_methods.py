"""The checker where a plan is none of one asynchronous server: rings and trees of AllReduce, lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from mlfabric.network import Network, Piece, Profile
from mlfabric.planning.plan import Commit, Group, Kind, Plan, Toward
from mlfabric.planning.problem import Batch, Consistency, FabricState, PlannerConfig, Shape
from tests.planning.handmade import (
    CHUNK,
    LATENCY_NS,
    MS,
    NOW_NS,
    SIZE,
    V_INIT,
    Bench,
    a_star,
    changed,
    next_commit,
    plan_of,
    uid,
    with_commit,
    with_transfer,
)
from tests.planning.worlds import an_update

NAMES = ("w1", "w2", "w3")


def made(
    bench: Bench,
    names: Sequence[str],
    arrive_ns: Sequence[int],
    consistency: Consistency,
    *,
    shape: Shape = Shape.DIRECT,
    groups: Sequence[Group] = (),
    server: str = "",
    clocks: Sequence[int] = (),
) -> Plan:
    """A plan whose commits are as soon as they can be."""
    one_version = consistency in (Consistency.SYNCHRONOUS, Consistency.ALL_REDUCE)
    commits: list[Commit] = []
    for n, name in enumerate(names):
        place = {"version": V_INIT, "tau": 0} if one_version else {}
        commits.append(next_commit(commits, uid(name), arrive_ns[n], group=n if groups else 0, **place))
    updates = [
        an_update(name, ready_ns=NOW_NS, computed_from=V_INIT, clock=clocks[n] if clocks else 0)
        for n, name in enumerate(names)
    ]
    return plan_of(
        batch=Batch(updates=tuple(updates)),
        state=FabricState(now_ns=NOW_NS, v_init=V_INIT, server=server),
        config=PlannerConfig(consistency=consistency, chunk_bytes=CHUNK),
        shape=shape,
        transfers=bench.transfers,
        groups=groups,
        commits=commits,
    )


def ring_of(names: Sequence[str], following: dict[str, str]) -> tuple[Plan, Network]:
    """Every host sends 2 (N - 1) / N of the size to the one that follows it."""
    network = a_star(*dict.fromkeys([*names, *following]))
    bench = Bench(network)
    count = len(following)
    arrivals = dict.fromkeys(names, NOW_NS)
    for source, destination in following.items():
        size = -(-2 * (count - 1) * SIZE // count)
        i = bench.send(Kind.RING, source, destination, *names, size=size, toward=Toward.WORKERS)
        arrivals[destination] = bench.transfers[i].profile.end_ns + 2 * (count - 1) * LATENCY_NS
        bench.transfers[i] = replace(bench.transfers[i], arrive_ns=arrivals[destination])
    plan = made(bench, names, [arrivals[name] for name in names], Consistency.ALL_REDUCE, shape=Shape.RING)
    return plan, network


def a_ring() -> tuple[Plan, Network]:
    return ring_of(NAMES, {"w1": "w2", "w2": "w3", "w3": "w1"})


def a_tree() -> tuple[Plan, Network]:
    """w2 sends to w1, which adds its own and sends the sum to both while it arrives; w3's is on its way first."""
    network = a_star(*NAMES)
    bench = Bench(network)
    w3 = bench.send(Kind.UPDATE, "w3", "w1", "w3")
    w2 = bench.send(Kind.UPDATE, "w2", "w1", "w2")
    first_ns = bench.transfers[w2].profile.start_ns + LATENCY_NS + MS
    out = [
        bench.send(
            Kind.MODEL,
            "w1",
            to,
            *NAMES,
            toward=Toward.WORKERS,
            inputs=[w3, w2],
            cut_through=True,
            ready_ns=first_ns + wait_ns,
        )
        for to, wait_ns in (("w3", 0), ("w2", 0))
    ]
    arrivals = [bench.arrive_ns(w2), bench.arrive_ns(out[1]), bench.arrive_ns(out[0])]
    return made(bench, NAMES, arrivals, Consistency.ALL_REDUCE, shape=Shape.TREE), network


def test_a_ring_and_a_tree_are_valid() -> None:
    for plan, network in (a_ring(), a_tree()):
        plan.validate(network)
        assert "3 of 3 updates (1 MB) summed for all workers within" in plan.explain(network)


@pytest.mark.parametrize(
    ("names", "following", "says"),
    [
        ("w1 w2 w3 w4", "w1>w2 w2>w1 w3>w4 w4>w3", "edges are not one circle: w1 to w2, w2 to w1, w3 to w4, w4 to w3"),
        ("w1 w2 w3", "w1>w2 w2>w1", "the worker of w3#0 never has the sum of all 3"),
        ("w1 w2", "w1>x x>w2 w2>w1", "the ring goes through w1, x, w2, the workers are at w1, w2"),
    ],
    ids=["two circles", "a worker that is in none", "through somebody else"],
)
def test_what_is_no_ring_of_all_workers_is_named(names: str, following: str, says: str) -> None:
    pairs = [edge.partition(">") for edge in following.split()]
    plan, network = ring_of(names.split(), {source: destination for source, _, destination in pairs})
    with pytest.raises(AssertionError, match=says):
        plan.validate(network)


def test_a_ring_that_starts_before_the_last_worker_has_its_update_is_named() -> None:
    plan, network = a_ring()
    late = [replace(c, ready_ns=c.ready_ns + n) for n, c in enumerate(plan.batch.updates)]
    with pytest.raises(AssertionError, match="the ring starts at 5000000, the last of its updates is ready at 5000002"):
        replace(plan, batch=Batch(updates=tuple(late))).validate(network)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: with_commit(p, 1, commit_ns=NOW_NS), r"w2#0 is committed at 5000000, it arrives at \d+"),
        (lambda p: replace(p, transfers=p.transfers[:3]), "the worker of w2#0 never has the sum of all 3"),
        (
            lambda p: with_commit(p, 1, arrive_ns=p.commits[1].arrive_ns - 1),
            r"the worker of w2#0 has the sum at .*, its commit says",
        ),
        (
            lambda p: changed(changed(p, "commits", 0, update=uid("w2")), "commits", 1, update=uid("w1")),
            "not in the order of ids: w2#0, w1#0, w3#0",
        ),
    ],
    ids=["too early", "never", "said to be early", "out of order"],
)
def test_a_result_that_is_not_there_or_counts_before_is_named(change: Callable[[Plan], Plan], says: str) -> None:
    plan, network = a_tree()
    with pytest.raises(AssertionError, match=says):
        change(plan).validate(network)


def test_edges_of_a_ring_out_of_step_are_named() -> None:
    plan, network = a_ring()
    (piece,) = plan.transfers[1].profile.pieces
    late = Piece(piece.start_ns + 1, piece.end_ns + 1, piece.bps)
    broken = with_transfer(
        plan, 1, profile=Profile(late.start_ns, late.end_ns, (late,)), arrive_ns=plan.transfers[1].arrive_ns + 1
    )
    broken = with_commit(with_commit(broken, 2, arrive_ns=plan.commits[2].arrive_ns + 1), 2, commit_ns=10**9)
    with pytest.raises(AssertionError, match="the ring's edges from w1 and w2 are not in step"):
        broken.validate(network)


def test_a_ring_that_carries_too_little_is_named() -> None:
    plan, network = a_ring()
    bigger = [replace(c, size_bytes=2 * SIZE) for c in plan.batch.updates]
    with pytest.raises(AssertionError, match="each edge of the ring carries 1333334 bytes, a sum of all takes 2666667"):
        replace(plan, batch=Batch(updates=tuple(bigger))).validate(network)


def in_a_list(consistency: Consistency, clocks: Sequence[int] = ()) -> tuple[Plan, Network]:
    network = a_star(*NAMES, "s")
    bench = Bench(network)
    sent = [bench.send(Kind.UPDATE, name, "s", name) for name in NAMES]
    groups = [Group(members=(uid(name),), shape=Shape.DIRECT, last=(i,)) for name, i in zip(NAMES, sent, strict=True)]
    arrivals = [bench.arrive_ns(i) for i in sent]
    return made(bench, NAMES, arrivals, consistency, groups=groups, server="s", clocks=clocks), network


def test_an_iteration_makes_one_version() -> None:
    plan, network = in_a_list(Consistency.SYNCHRONOUS)
    plan.validate(network)
    with pytest.raises(AssertionError, match="w2#0 is applied to version 11, it should be 10"):
        with_commit(plan, 1, version=11).validate(network)


def test_a_lower_clock_comes_first() -> None:
    in_a_list(Consistency.STALE_SYNCHRONOUS, (1, 1, 2))[0].validate(in_a_list(Consistency.SYNCHRONOUS)[1])
    plan, network = in_a_list(Consistency.STALE_SYNCHRONOUS, (1, 2, 1))
    with pytest.raises(AssertionError, match="w2#0 of clock 2 is before w3#0 of 1"):
        plan.validate(network)
