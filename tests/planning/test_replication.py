"""The replica gets as little as the divergence bound allows, and the primary waits no longer than it asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import networkx as nx
import pytest

from mlfabric.network import Network, up_link
from mlfabric.planning.plan import Plan, Toward
from mlfabric.planning.plan_values import Candidate
from mlfabric.planning.problem import (
    Batch,
    DivergenceBound,
    FabricState,
    Pending,
    PlannerConfig,
    Replica,
)
from mlfabric.protocol import UpdateId
from tests.planning.worlds import Fabric, an_update, set_host_rates, star

pytestmark = pytest.mark.usefixtures("compiled_planner")

MS = 10**6
SIZE = 1_000_000


def even(workers: int) -> Network:
    """Workers of 100 Mbit/s, a primary and a replica of 800: an update is 80 ms on a worker's link, 10 on these."""
    network = star([*(f"w{n}" for n in range(workers)), "s", "r"], bps=10**8)
    for host in "sr":
        set_host_rates(network, host, 8 * 10**8, 8 * 10**8)
    return network


def old(worker: str, n: int) -> UpdateId:
    return UpdateId(worker, 0, 100 + n)


def replicated(
    network: Network,
    updates: Sequence[Candidate],
    div_max: DivergenceBound | None,
    pending: Sequence[tuple[str, float]] = (),
    history_norm: float = 0.0,
    **config: object,
) -> Plan:
    """Plan updates to a primary at ``s`` with a replica at ``r``, and let the plan check itself."""
    owed = [
        Pending(update=old(worker, n), source=worker, size_bytes=SIZE, step_norm=norm)
        for n, (worker, norm) in enumerate(pending)
    ]
    state = FabricState(now_ns=0, server="s", replica=Replica(host="r", pending=tuple(owed), history_norm=history_norm))
    return Fabric(network, Batch(updates=tuple(updates)), state, PlannerConfig(div_max=div_max)).plan(**config)


def several(sources: str, *norms: float) -> list[Candidate]:
    """Updates of workers by number, with a norm each."""
    return [an_update(f"w{source}", n, norm=norm) for n, (source, norm) in enumerate(zip(sources, norms, strict=True))]


def commits_ms(found: Plan) -> list[float]:
    return [commit.commit_ns / MS for commit in found.commits]


def waiting(found: Plan) -> list[int]:
    """Which commits wait for the replica."""
    return [n for n, commit in enumerate(found.commits) if "waits for the replica" in commit.reason]


def test_without_a_bound_everything_is_punted():
    found = replicated(even(2), several("01", 1.0, 1.0), None, [("w0", 1.0)])
    assert [punt.update for punt in found.punts] == [old("w0", 0), *(commit.update for commit in found.commits)]
    assert found.punts[0].reason == "no bound asks for it"


@pytest.mark.parametrize(
    ("norms", "pending", "reason"),
    [
        ([1.0, 1.0, 1.0], [], "the lead stays at 3 of 6"),
        ([1.0, 1.0, 1.0001], [], "the replica would have it after 160.0 ms"),
        ([1.0], [("w1", 1.0), ("w2", 1.0)], "the lead stays at 3 of 6"),
        ([], [("w1", 5.0), ("w2", 5.0)], "the lead stays at 10 of 6"),
    ],
    ids=["small", "more", "with what is pending", "nothing to commit"],
)
def test_while_the_lead_is_small_nothing_is_sent(norms: list[float], pending: list[tuple[str, float]], reason: str):
    found = replicated(even(3), several("012"[: len(norms)], *norms), DivergenceBound(norm=6.0), pending)
    assert not found.replica_steps
    assert found.punts[-1].reason.startswith(reason)


def test_a_lead_that_is_pending_is_sent_when_the_plan_brings_it_near_the_bound():
    found = replicated(even(3), several("0", 1.0), DivergenceBound(norm=6.0), [("w1", 1.0), ("w2", 5.0)])
    assert [step.members for step in found.replica_steps] == [(old("w1", 0), old("w2", 1))]


def test_steps_that_are_there_by_the_last_commit_are_kept():
    found = replicated(even(4), several("01", 1.0, 1.0), DivergenceBound(norm=3.0), [("w2", 1.0), ("w3", 1.0)])
    assert commits_ms(found) == [80, 80]
    (step,) = found.replica_steps
    assert (step.members, step.arrive_ns) == ((old("w2", 0), old("w3", 1)), 80 * MS)
    assert found.punts[0].reason == (
        "the replica would have it after 160.0 ms, the last commit is after 80.0 ms and needs it no sooner"
    )


def test_a_commit_waits_for_the_step_that_keeps_the_bound():
    found = replicated(even(1), several("00", 1.0, 1.0), DivergenceBound(norm=1.0))
    # The worker's link is busy with both updates until 160 ms.
    assert [step.arrive_ns for step in found.replica_steps] == [240 * MS]
    assert (commits_ms(found), waiting(found)) == ([80, 240], [1])
    assert [punt.update for punt in found.punts] == [found.commits[1].update]


@pytest.mark.parametrize("bound", [DivergenceBound(norm=0.0), DivergenceBound(norm=math.inf, updates=0)])
@pytest.mark.parametrize("norm", [1.0, 0.0])
def test_a_bound_of_zero_means_that_the_replica_has_it_first(bound: DivergenceBound, norm: float):
    found = replicated(even(2), several("010", norm, norm, norm), bound, [("w1", norm)], gamma=0.9)
    assert len(found.commits) == 3
    assert not found.punts
    there_ns = [step.arrive_ns for step in found.replica_steps[1:]]
    assert all(commit.commit_ns >= at_ns for commit, at_ns in zip(found.commits, there_ns, strict=True))


@pytest.mark.parametrize(
    ("sources", "norms", "bound", "commits", "waits"),
    [
        ("01", [0.1, 7.0], DivergenceBound(norm=5.0), [80, 160], [1]),
        ("0000", [0.0] * 4, DivergenceBound(norm=math.inf, updates=2), [80, 160, 400, 480], [2, 3]),
    ],
    ids=["a step longer than the bound", "a bound in updates"],
)
def test_what_goes_beyond_the_bound_alone_waits_for_the_replica(
    sources: str, norms: list[float], bound: DivergenceBound, commits: list[float], waits: list[int]
):
    found = replicated(even(2), several(sources, *norms), bound, replicate_from=1.0)
    assert (commits_ms(found), waiting(found)) == (commits, waits)


@pytest.mark.parametrize(("gamma", "waits"), [(0.0, []), (0.9, [0])])
def test_momentum_carries_a_lead_further(gamma: float, waits: list[int]):
    """With it, already the first step may go 0.9 * 10 + 1 far."""
    found = replicated(even(2), several("01", 1.0, 1.0), DivergenceBound(norm=4.0), history_norm=10.0, gamma=gamma)
    assert waiting(found) == waits


@pytest.mark.parametrize(("gamma", "tensors"), [(0.0, 1), (0.9, 2)])
def test_a_worker_folds_what_it_owes_into_one_item_of_two_tensors_with_momentum(gamma: float, tensors: int):
    pending = [("w0", 1.0), ("w1", 1.0), ("w0", 1.0)]
    found = replicated(even(3), several("2", 1.0), DivergenceBound(norm=1.0), pending, gamma=gamma)
    assert found.replica_steps[0].members[:3] == (old("w0", 0), old("w1", 1), old("w0", 2))
    folded = {t.members: t.size_bytes for t in found.transfers if len(t.members) == 2}
    assert folded == {(old("w0", 0), old("w0", 2)): tensors * SIZE}


def test_what_is_on_its_way_takes_its_part_of_a_link_once_and_the_replica_gets_the_rest():
    network = even(1)
    network.set_rate(up_link("w0"), 5 * 10**7)
    profile = network.transfer(network.path("w0", "s"), SIZE, 0)
    assert profile is not None
    update = an_update("w0", in_flight=profile)
    network.reserve(update.update, network.path("w0", "s"), profile)
    network.set_rate(up_link("w0"), 10**8)
    found = replicated(network, [update], DivergenceBound(norm=0.0))
    assert [t.profile.end_ns for t in found.transfers if t.toward is Toward.REPLICA] == [160 * MS]


def test_what_cannot_reach_the_replica_holds_commits_up_that_need_it():
    network = even(3)
    network.set_rate(network.path("w0", "r")[-1], 0)
    found = replicated(network, several("012", 1.0, 1.0, 1.0), DivergenceBound(norm=2.5))
    assert commits_ms(found) == [80, 80]
    (deferred,) = found.deferred
    assert deferred.reason == (
        "the commit of w2's update 2 would bring the lead to 3 of 2.5, and no transfer to the replica can prevent that"
    )
    assert [punt.reason for punt in found.punts[::2]] == [
        "it, or an update before it, cannot be sent to the replica",
        "this plan does not commit it",
    ]


def test_an_update_that_cannot_be_sent_does_not_keep_those_before_it_from_the_replica():
    edges: nx.DiGraph[str] = nx.DiGraph()
    for host in ("w0", "w1", "s", "r"):
        edges.add_edge(host, "x", capacity_bps=10**8)
        edges.add_edge("x", host, capacity_bps=10**8)
    edges.add_edge("w1", "r", capacity_bps=0)
    nx.set_node_attributes(edges, dict.fromkeys(("w0", "w1", "s", "r"), True), "host")
    found = replicated(Network.from_graph(edges), several("01", 1.0, 1.0), DivergenceBound(norm=0.0))
    assert [[update.worker for update in step.members] for step in found.replica_steps] == [["w0"]]
    assert [str(d.what) for d in found.deferred] == ["w1#1"]


def test_a_worker_that_cannot_send_what_it_owes_keeps_everything_from_the_replica():
    pending = [("w1", 1.0), ("w0", 1.0), ("w2", 1.0), ("w0", 1.0)]
    network = even(3)
    network.set_rate(up_link("w0"), 0)
    found = replicated(network, several("1", 1.0), DivergenceBound(norm=4.0), pending)
    assert (len(found.replica_steps), len(found.punts), len(found.deferred)) == (0, 5, 1)


def test_what_would_come_late_is_punted_also_when_nothing_can_be_committed():
    network = even(2)
    network.plan_rate_change(up_link("w1"), 80 * MS, 0)
    network.set_rate(up_link("w0"), 10**6)
    found = replicated(network, several("1", 1.0), DivergenceBound(norm=0.0), [("w0", 1.0)])
    assert (len(found.commits), len(found.replica_steps)) == (0, 0)
    assert [punt.reason for punt in found.punts] == [
        "the replica would have it after 8000.0 ms, and this plan commits nothing",
        "this plan does not commit it",
    ]
