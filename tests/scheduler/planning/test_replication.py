"""The replica gets as little as the divergence bound allows, and the primary waits no longer than it asks for."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from mlfabric.network import Network, up_link
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning.folding import fold
from mlfabric.scheduler.planning.plan import Toward
from mlfabric.scheduler.planning.problem import (
    DivergenceBound,
    Pending,
)
from tests.scheduler.planning.replicas import FIRST_TRANSFER, MS, SIZE, Scene, even, held_at, instants, scenes, there_ns


@given(scenes())
def test_at_every_instant_with_a_commit_the_bound_holds(scene):
    plan = scene.plan()
    for at_ns, committed in instants(plan, len(scene.pending)):
        assert scene.keeps(held_at(plan, at_ns, committed), committed)


@given(scenes())
def test_a_commit_waits_for_no_more_than_the_first_step_that_makes_the_bound_hold(scene):
    plan = scene.plan()
    before_ns, instant_ns, behind, there = 0, 0, len(scene.pending), there_ns(plan)
    ends = [sum(len(step.members) for step in plan.steps[: s + 1]) for s in range(len(plan.steps))]
    for n, (commit_ns, waits_for) in enumerate(zip(plan.commit_ns.tolist(), plan.waits_for, strict=True)):
        if commit_ns > instant_ns:
            before_ns, instant_ns = instant_ns, commit_ns
            first = n
        alone_ns = max(before_ns, scene.solo_ns[n])
        if waits_for < 0:
            assert commit_ns == max(alone_ns, instant_ns)
        else:
            whole_ns = scene.solo_ns[max(n, ends[waits_for] - behind - 1)]
            assert commit_ns == max(alone_ns, there[waits_for], whole_ns) > alone_ns
            held = ends[waits_for - 1] if waits_for else 0
            assert not scene.keeps(held, behind + first + 1) or scene.is_close(held, behind + first + 1)
    together = [there[w] for w in plan.waits_for if w >= 0]
    latest = max([*together, *scene.solo_ns[-1:]], default=0)
    assert all(t <= latest for t in there)
    assert len(plan.steps) == len(ends)


@given(scenes())
def test_steps_are_a_prefix_of_the_sequence_and_all_else_is_punted(scene):
    plan = scene.plan()
    kept = [update for step in plan.steps for update in step.members]
    assert kept + [punt.update for punt in plan.punts] == scene.sequence
    assert [d.what for d in plan.deferred] == list(scene.lot.updates[len(plan.commit_ns) :])
    assert len(kept) + len(plan.punts) == len(scene.sequence)
    assert all(len(plan.punts[i].reason) > 10 for i in range(len(plan.punts)))
    assert all(len(plan.deferred[i].reason) > 10 for i in range(len(plan.deferred)))
    if plan.steps:
        assert set(plan.steps[0].members) >= {p.update for p in scene.replica.pending}


@given(scenes())
def test_transfers_bring_what_the_steps_say_when_they_say(scene):
    plan = scene.plan()
    numbers = [i for step in plan.steps for i in step.transfers]
    assert numbers == list(range(FIRST_TRANSFER, FIRST_TRANSFER + len(plan.transfers)))
    for step in plan.steps:
        last = [t for t in (plan.transfers[i - FIRST_TRANSFER] for i in step.transfers) if t.destination == "r"]
        assert sorted(u for t in last for u in t.members) == sorted(step.members)
        assert max(t.arrive_ns for t in last) == step.arrive_ns
    for transfer in plan.transfers:
        assert not transfer.inputs
        assert {u.worker for u in transfer.members} == {transfer.source}
        assert transfer.toward is Toward.REPLICA


@given(scenes())
def test_the_same_input_gives_the_same_plan_and_changes_nothing(scene):
    before = [column.copy() for column in scene.primary.lines]
    one, two = scene.plan(), scene.plan()
    assert (one.steps, one.transfers, one.punts, one.deferred) == (two.steps, two.transfers, two.punts, two.deferred)
    assert one.commit_ns.tolist() == two.commit_ns.tolist()
    for column, former in zip(scene.primary.lines, before, strict=True):
        np.testing.assert_array_equal(column, former)


def test_without_a_replica_there_is_nothing_to_do():
    plan = Scene(even(2), ["w0", "w1"], [1.0, 1.0], DivergenceBound(norm=0.0), has_replica=False).plan()
    assert plan.commit_ns.tolist() == [80 * MS, 80 * MS]
    assert (plan.steps, plan.punts, plan.deferred) == ((), (), ())


def test_without_a_bound_everything_is_punted():
    scene = Scene(even(2), ["w0", "w1"], [1.0, 1.0], None, pending=[("w0", 1.0)])
    plan = scene.plan()
    assert plan.steps == ()
    assert [punt.update for punt in plan.punts] == scene.sequence
    assert plan.punts[0].reason == "no bound asks for it"


def test_while_the_lead_is_small_nothing_is_sent():
    plan = Scene(even(3), ["w0", "w1", "w2"], [1.0, 1.0, 1.0], DivergenceBound(norm=6.0)).plan()
    assert (plan.steps, plan.transfers) == ((), ())
    assert plan.punts[2].reason == "the lead stays at 3 of 6"
    more = Scene(even(3), ["w0", "w1", "w2"], [1.0, 1.0, 1.0001], DivergenceBound(norm=6.0)).plan()
    assert more.punts[2].reason.startswith("the replica would have it after 160.0 ms")


def test_what_is_pending_counts_for_the_lead():
    scene = Scene(even(3), ["w0"], [1.0], DivergenceBound(norm=6.0), pending=[("w1", 1.0), ("w2", 1.0)])
    assert scene.plan().punts[0].reason == "the lead stays at 3 of 6"
    scene = Scene(even(3), ["w0"], [1.0], DivergenceBound(norm=6.0), pending=[("w1", 1.0), ("w2", 5.0)])
    assert [step.members for step in scene.plan().steps] == [tuple(scene.sequence[:2])]


def test_steps_that_are_there_by_the_last_commit_are_kept():
    scene = Scene(even(4), ["w0", "w1"], [1.0, 1.0], DivergenceBound(norm=3.0), pending=[("w2", 1.0), ("w3", 1.0)])
    plan = scene.plan()
    assert plan.commit_ns.tolist() == [80 * MS, 80 * MS]
    assert [(step.members, step.arrive_ns) for step in plan.steps] == [(tuple(scene.sequence[:2]), 80 * MS)]
    assert plan.punts[0].reason == (
        "the replica would have it after 160.0 ms, the last commit is after 80.0 ms and needs it no sooner"
    )


def test_a_commit_waits_for_the_step_that_keeps_the_bound():
    scene = Scene(even(1), ["w0", "w0"], [1.0, 1.0], DivergenceBound(norm=1.0))
    plan = scene.plan()
    # The worker's link is busy with both updates until 160 ms.
    assert [step.arrive_ns for step in plan.steps] == [240 * MS]
    assert plan.commit_ns.tolist() == [80 * MS, 240 * MS]
    assert plan.waits_for == [-1, 0]
    assert [punt.update for punt in plan.punts] == [scene.sequence[1]]


@pytest.mark.parametrize("bound", [DivergenceBound(norm=0.0), DivergenceBound(norm=math.inf, updates=0)])
@pytest.mark.parametrize("norm", [1.0, 0.0])
def test_a_bound_of_zero_means_that_the_replica_has_it_first(bound, norm):
    scene = Scene(even(2), ["w0", "w1", "w0"], [norm] * 3, bound, pending=[("w1", norm)], gamma=0.9)
    plan = scene.plan()
    assert all(held_at(plan, *instant) == instant[1] for instant in instants(plan, 1))
    assert len(plan.commit_ns) == 3
    assert plan.punts == ()


def test_a_step_longer_than_the_bound_waits_for_the_replica():
    scene = Scene(even(2), ["w0", "w1"], [0.1, 7.0], DivergenceBound(norm=5.0))
    plan = scene.plan()
    assert plan.commit_ns.tolist() == [80 * MS, 160 * MS]
    assert held_at(plan, 160 * MS, 2) == 2


def test_a_bound_in_updates_is_kept_whatever_their_norms():
    scene = Scene(even(1), ["w0"] * 4, [0.0] * 4, DivergenceBound(norm=math.inf, updates=2), replicate_from=1.0)
    plan = scene.plan()
    assert plan.commit_ns.tolist()[:2] == [80 * MS, 160 * MS]
    assert plan.waits_for == [-1, -1, 0, 1]
    assert [len(step.members) for step in plan.steps] == [1, 1]


def test_momentum_carries_a_lead_further():
    quiet = Scene(even(2), ["w0", "w1"], [1.0, 1.0], DivergenceBound(norm=4.0), history_norm=10.0)
    assert quiet.plan().punts[0].reason == "the lead stays at 2 of 4"
    moving = Scene(even(2), ["w0", "w1"], [1.0, 1.0], DivergenceBound(norm=4.0), history_norm=10.0, gamma=0.9)
    plan = moving.plan()
    # Already the first step may go 0.9 * 10 + 1 far.
    assert plan.waits_for[0] == 0


def test_a_worker_folds_what_it_owes_into_one_item_of_two_tensors():
    pending = [("w0", 1.0), ("w1", 1.0), ("w0", 1.0)]
    sizes = {}
    for gamma in (0.0, 0.9):
        scene = Scene(even(3), ["w2"], [1.0], DivergenceBound(norm=1.0), pending=pending, gamma=gamma)
        plan = scene.plan()
        assert plan.steps[0].members[:3] == tuple(scene.sequence[:3])
        sizes[gamma] = {t.members: t.size_bytes for t in plan.transfers if len(t.members) == 2}
    first, _, third = scene.sequence[:3]
    assert sizes == {0.0: {(first, third): SIZE}, 0.9: {(first, third): 2 * SIZE}}


def test_a_fold_is_as_large_as_its_largest_update_and_leaves_from_where_the_latest_is():
    pending = [
        Pending(update=UpdateId("a", 0, i), source=f"w{i}", size_bytes=size, step_norm=0.0, update_norm=0.0)
        for i, size in enumerate((10, 30, 20))
    ]
    lot = Scene(even(1), ["w0"], [1.0], None).lot
    folded = fold(pending, lot, gamma=0.9, now_ns=5).lot
    assert folded.bits.tolist() == [8 * 60, 8 * SIZE]
    assert (folded.sources, folded.ready_ns.tolist()) == (["w2", "w0"], [5, 0])
    assert fold(pending, lot, gamma=0.0, now_ns=5).lot.bits.tolist() == [8 * 30, 8 * SIZE]


def test_nothing_is_committed_before_now():
    scene = Scene(even(1), ["w0"], [1.0], None, now_ns=90 * MS)
    scene.primary.arrive_ns[0] = 80 * MS
    assert scene.plan().commit_ns.tolist() == [90 * MS]


def test_what_cannot_reach_the_replica_holds_commits_up_that_need_it():
    network = even(3, r=(800, 0))
    network.set_rate(network.path("w0", "r")[-1], 0)
    scene = Scene(network, ["w0", "w1", "w2"], [1.0, 1.0, 1.0], DivergenceBound(norm=2.5))
    plan = scene.plan()
    assert plan.commit_ns.tolist() == [80 * MS, 80 * MS]
    assert [d.what for d in plan.deferred] == [scene.sequence[2]]
    assert plan.deferred[0].reason == (
        "the commit of w2's update 2 would bring the lead to 3 of 2.5, and no transfer to the replica can prevent that"
    )
    assert plan.punts[0].reason == "it, or an update before it, cannot be sent to the replica"
    assert plan.punts[2].reason == "this plan does not commit it"


def test_an_update_that_cannot_be_sent_does_not_keep_those_before_it_from_the_replica():
    edges: nx.DiGraph[str] = nx.DiGraph()
    for host in ("w0", "w1", "s", "r"):
        edges.add_edge(host, "x", capacity_bps=10**8)
        edges.add_edge("x", host, capacity_bps=10**8)
    edges.add_edge("w1", "r", capacity_bps=0)
    nx.set_node_attributes(edges, dict.fromkeys(("w0", "w1", "s", "r"), True), "host")
    scene = Scene(Network.from_graph(edges), ["w0", "w1"], [1.0, 1.0], DivergenceBound(norm=0.0))
    plan = scene.plan()
    assert [step.members for step in plan.steps] == [tuple(scene.sequence[:1])]
    assert [d.what for d in plan.deferred] == [scene.sequence[1]]


def test_a_worker_that_cannot_send_what_it_owes_keeps_everything_from_the_replica():
    pending = [("w1", 1.0), ("w0", 1.0), ("w2", 1.0), ("w0", 1.0)]
    network = even(3)
    network.set_rate(up_link("w0"), 0)
    plan = Scene(network, ["w1"], [1.0], DivergenceBound(norm=4.0), pending).plan()
    assert (plan.steps, plan.transfers, len(plan.punts), len(plan.deferred)) == ((), (), 5, 1)


def test_what_would_come_late_is_punted_also_when_nothing_can_be_committed():
    network = even(2)
    network.set_rate(up_link("w1"), 10**8)
    network.plan_rate_change(up_link("w1"), 80 * MS, 0)
    scene = Scene(network, ["w1"], [1.0], DivergenceBound(norm=0.0), pending=[("w0", 1.0)])
    scene.network.plan_rate_change(up_link("w0"), 0, 10**6)
    plan = scene.plan()
    assert (len(plan.commit_ns), plan.steps) == (0, ())
    assert [punt.reason for punt in plan.punts] == [
        "the replica would have it after 8000.0 ms, and this plan commits nothing",
        "this plan does not commit it",
    ]


def test_with_nothing_to_commit_nothing_is_sent():
    plan = Scene(even(2), [], [], DivergenceBound(norm=1.0), pending=[("w0", 3.0), ("w1", 3.0)]).plan()
    assert (plan.steps, len(plan.commit_ns)) == ((), 0)
    assert [punt.reason for punt in plan.punts] == ["the lead stays at 6 of 1"] * 2


def test_an_infinite_norm_waits_for_the_replica():
    plan = Scene(even(2), ["w0"], [math.inf], DivergenceBound(norm=1e200)).plan()
    assert plan.waits_for == [0]
