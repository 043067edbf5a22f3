"""Plans put together by hand, transfer by transfer: valid ones, for the checker to be shown and tests to break."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mlfabric.network import Network, Profile
from mlfabric.planning.plan import (
    Commit,
    Deferred,
    GetServed,
    Group,
    Kind,
    Plan,
    Punt,
    ReplicaStep,
    Toward,
    Transfer,
)
from mlfabric.planning.plan_values import Left
from mlfabric.planning.problem import (
    Aggregator,
    Batch,
    DivergenceBound,
    FabricState,
    Pending,
    PlannerConfig,
    Replica,
    Shape,
)
from mlfabric.protocol import DropReason, GetId, UpdateId
from tests.planning.worlds import a_get, an_update, helpers, star

MS = 10**6
SIZE = 1_000_000  # 8 ms at 1 Gbit/s
CHUNK = 125_000  # 1 ms
LATENCY_NS = 100_000
NOW_NS = 5 * MS
V_INIT = 10
TAU_MAX = 6

NORMS = {"w1": 1.0, "w2": 1.0, "w3": 3.0, "w4": 0.1, "w5": 0.1, "w6": 1.0, "w7": 1.0}


def uid(worker: str) -> UpdateId:
    return UpdateId(worker, 0, 0)


class Bench:
    """Sends one transfer after the other over what is free; keeps them in a list."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.draft = network.draft()
        self.transfers: list[Transfer] = []

    def send(
        self,
        kind: Kind,
        source: str,
        destination: str,
        *members: str,
        size: int = SIZE,
        ready_ns: int = NOW_NS,
        toward: Toward = Toward.PRIMARY,
        inputs: Sequence[int] = (),
        cut_through: bool = False,
        get: GetId | None = None,
    ) -> int:
        path = self.network.path(source, destination)
        ready_ns = max([ready_ns, *(0 if cut_through else self.transfers[k].arrive_ns for k in inputs)])
        profile = self.draft.transfer(path, size, ready_ns)
        assert profile is not None
        self.draft.reserve(path, profile)
        transfer = Transfer(
            kind=kind,
            toward=toward,
            source=source,
            destination=destination,
            path=path,
            size_bytes=size,
            ready_ns=ready_ns,
            profile=profile,
            arrive_ns=profile.end_ns + self.network.latency_ns(path),
            members=tuple(uid(m) for m in members),
            get=get,
            inputs=tuple(inputs),
            cut_through=cut_through,
        )
        self.transfers.append(transfer)
        return len(self.transfers) - 1

    def arrive_ns(self, index: int) -> int:
        return self.transfers[index].arrive_ns


def a_star(*hosts: str, bps: int = 10**9) -> Network:
    return star(hosts, LATENCY_NS, bps)


def commits_of(bench: Bench, groups: Sequence[Group], gates: dict[str, int] | None = None) -> list[Commit]:
    """Commit the groups' members in order; ``gates`` says until when some wait for the replica."""
    places = [(member, group, g) for g, group in enumerate(groups) for member in group.members]
    commits: list[Commit] = []
    for member, group, g in places:
        arrive_ns = max(bench.arrive_ns(i) for i in group.last)
        earliest_ns = max(arrive_ns, (gates or {}).get(member.worker, 0))
        commits.append(next_commit(commits, member, arrive_ns, earliest_ns, group=g, deadline=TAU_MAX + 1))
    return commits


def next_commit(before: Sequence[Commit], update: UpdateId, arrive_ns: int, at_ns: int = 0, **more: Any) -> Commit:
    """The commit after some others, as soon as it can be, applied to a version of its own."""
    n = len(before)
    usual = {"version": V_INIT + n, "tau": n, "deadline": None, "group": n, "reason": "shortest transfer first"}
    at_ns = max(before[-1].commit_ns if before else NOW_NS, arrive_ns, at_ns)
    return Commit(update=update, position=n + 1, arrive_ns=arrive_ns, commit_ns=at_ns, **{**usual, **more})


def a_full_plan() -> tuple[Plan, Network]:
    """One direct update, a stored sum, a cut-through one; a drop, a deferral, a replica with a gate, gets."""
    names = ["w1", "w2", "w3", "w4", "w5", "w6", "w7"]
    network = a_star(*names, "a", "b", "s", "r", "d")
    bench = Bench(network)
    two = 2 * SIZE
    w1 = bench.send(Kind.UPDATE, "w1", "s", "w1")
    to_a = [bench.send(Kind.UPDATE, w, "a", w) for w in ("w2", "w3")]
    stored = bench.send(Kind.SUM, "a", "s", "w2", "w3", size=two, inputs=to_a)
    w4 = bench.send(Kind.UPDATE, "w4", "w5", "w4", ready_ns=34 * MS)
    chunk_there_ns = bench.transfers[w4].profile.start_ns + LATENCY_NS + MS
    chain = bench.send(
        Kind.SUM, "w5", "s", "w4", "w5", size=two, ready_ns=chunk_there_ns, inputs=[w4], cut_through=True
    )
    groups = [
        Group(members=(uid("w1"),), shape=Shape.DIRECT, last=(w1,)),
        Group(members=(uid("w2"), uid("w3")), shape=Shape.STORED, last=(stored,)),
        Group(members=(uid("w4"), uid("w5")), shape=Shape.TREE, last=(chain,)),
    ]
    old = bench.send(Kind.UPDATE, "w1", "r", "old", toward=Toward.REPLICA)
    to_b = [bench.send(Kind.UPDATE, w, "b", w, toward=Toward.REPLICA) for w in ("w1", "w2")]
    to_r = bench.send(Kind.SUM, "b", "r", "w1", "w2", size=two, toward=Toward.REPLICA, inputs=to_b)
    steps = [
        ReplicaStep(members=(uid("old"),), arrive_ns=bench.arrive_ns(old), transfers=(old,)),
        ReplicaStep(members=(uid("w1"), uid("w2")), arrive_ns=bench.arrive_ns(to_r), transfers=(to_r,)),
    ]
    gets = {w: GetId(w, 0, 0) for w in ("w1", "w2", "w3")}
    g1 = bench.send(Kind.MODEL, "s", "w1", toward=Toward.WORKERS, get=gets["w1"])
    to_d = bench.send(Kind.MODEL, "s", "d", toward=Toward.WORKERS)
    g2 = bench.send(Kind.MODEL, "d", "w2", toward=Toward.WORKERS, get=gets["w2"], inputs=[to_d])
    commits = commits_of(bench, groups, {"w3": bench.arrive_ns(to_r)})
    plan = Plan(
        batch=Batch(
            updates=tuple(
                an_update(
                    w,
                    ready_ns=34 * MS if w == "w4" else 0,
                    computed_from=0 if w == "w6" else V_INIT,
                    norm=NORMS[w],
                )
                for w in names
            ),
            gets=tuple(a_get(w) for w in gets),
        ),
        state=FabricState(
            now_ns=NOW_NS,
            v_init=V_INIT,
            server="s",
            aggregators=(Aggregator(host="a", most_updates=2), *helpers(["w5", "b"])),
            distributors=helpers("d"),
            replica=Replica(
                host="r",
                pending=(Pending(update=uid("old"), source="w1", size_bytes=SIZE, step_norm=2.0),),
                history_norm=1.0,
            ),
        ),
        config=PlannerConfig(
            tau_max=TAU_MAX,
            shapes=frozenset(Shape),
            gamma=0.5,
            chunk_bytes=CHUNK,
            div_max=DivergenceBound(norm=7.1, updates=3),
        ),
        shape=Shape.TREE,
        transfers=bench.transfers,
        groups=groups,
        commits=commits,
        drops=[Left(update=uid("w6"), cause=DropReason.DEADLINE_PAST, reason="its delay would be 10, the bound is 6")],
        replica_steps=steps,
        punts=[Punt(update=uid(w), reason="it would arrive after the last commit") for w in ("w3", "w4", "w5")],
        gets=[
            GetServed(get=gets["w1"], transfer=g1, arrive_ns=bench.arrive_ns(g1), reason="shortest transfer first"),
            GetServed(get=gets["w2"], transfer=g2, arrive_ns=bench.arrive_ns(g2), reason="through d"),
        ],
        deferred=[
            Deferred(what=uid("w7"), reason="its clock is ahead"),
            Deferred(what=gets["w3"], reason="a link on its path has no capacity"),
        ],
    )
    return plan, network


def plan_of(**given: Any) -> Plan:
    """A plan of what is given, with nothing else in it."""
    empty = ("transfers", "groups", "commits", "drops", "replica_steps", "punts", "gets", "deferred")
    return Plan(
        **{"batch": Batch(), "shape": Shape.DIRECT, "config": PlannerConfig(), **dict.fromkeys(empty, ()), **given}
    )


def changed(plan: Plan, what: str, index: int, **changes: Any) -> Plan:
    """The same plan with one of its transfers, commits, groups ... changed."""
    items = list(getattr(plan, what))
    items[index] = replace(items[index], **changes)
    return replace(plan, **{what: items})  # type: ignore[arg-type]


def with_transfer(plan: Plan, index: int, **changes: object) -> Plan:
    return changed(plan, "transfers", index, **changes)


def with_commit(plan: Plan, index: int, **changes: object) -> Plan:
    return changed(plan, "commits", index, **changes)


def moved(profile: Profile, by_ns: int) -> Profile:
    """The same profile earlier or later."""
    pieces = tuple(
        piece._replace(start_ns=piece.start_ns + by_ns, end_ns=piece.end_ns + by_ns) for piece in profile.pieces
    )
    return Profile(profile.start_ns + by_ns, profile.end_ns + by_ns, pieces)
