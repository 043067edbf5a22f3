"""Scenes with a replica: some updates on their way to a primary, what the replica is behind, and a bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pytest
from hypothesis import strategies as st

from mlfabric.network import Network, up_link
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning.direct import forward_directly
from mlfabric.scheduler.planning.fluid.world import World
from mlfabric.scheduler.planning.forwarding import Forwarding, Lot
from mlfabric.scheduler.planning.plan import Toward
from mlfabric.scheduler.planning.problem import (
    DivergenceBound,
    Pending,
    PlannerConfig,
    Replica,
)
from mlfabric.scheduler.planning.replication import Replication, replicate

MS = 10**6
SIZE = 1_000_000
FIRST_TRANSFER = 100


@dataclass
class Scene:
    """A lot that goes directly to its primary at ``s``, with a replica at ``r``; one worker on each host."""

    network: Network
    sources: list[str]
    norms: list[float]
    div_max: DivergenceBound | None
    pending: list[tuple[str, float]] = field(default_factory=list)
    gamma: float = 0.0
    history_norm: float = 0.0
    replicate_from: float = 0.5
    sizes: list[int] = field(default_factory=list)
    ready_ns: list[int] = field(default_factory=list)
    now_ns: int = 0
    has_replica: bool = True

    def __post_init__(self):
        count = len(self.sources)
        self.lot = Lot(
            updates=[UpdateId(source, 1, i) for i, source in enumerate(self.sources)],
            sources=self.sources,
            bits=8 * np.array(self.sizes or [SIZE] * count, np.int64),
            ready_ns=np.array(self.ready_ns or [self.now_ns] * count, np.int64),
            fixed=0,
            direct=None,
            planned=[True] * count,
        )
        self.replica = Replica(
            host="r",
            pending=tuple(
                Pending(update=UpdateId(w, 0, i), source=w, size_bytes=SIZE, step_norm=norm, update_norm=norm)
                for i, (w, norm) in enumerate(self.pending)
            ),
            history_norm=self.history_norm,
        )
        self.sequence = [p.update for p in self.replica.pending] + list(self.lot.updates)

    @cached_property
    def world(self) -> World:
        hosts = sorted(self.network.hosts)
        return World(self.network, hosts, hosts)

    @cached_property
    def primary(self) -> Forwarding:
        """Each goes directly; the kernels may have to be compiled for this, so not while a case is drawn."""
        found = forward_directly(self.lot, self.world, self.world.lines, "s", now_ns=self.now_ns, toward=Toward.PRIMARY)
        assert len(found.arrive_ns) == len(self.sources)
        return found

    @property
    def solo_ns(self) -> list[int]:
        """When each would be committed without a replica."""
        found: list[int] = np.maximum.accumulate(np.maximum(self.primary.arrive_ns, self.now_ns)).tolist()
        return found

    def plan(self) -> Replication:
        return replicate(
            self.lot,
            self.norms,
            self.primary.arrive_ns,
            self.replica if self.has_replica else None,
            PlannerConfig(gamma=self.gamma, div_max=self.div_max, replicate_from=self.replicate_from),
            self.world,
            self.primary.lines,
            now_ns=self.now_ns,
            first_transfer=FIRST_TRANSFER,
        )

    def steps(self) -> list[float]:
        """How far each commit of the sequence may move the model."""
        moved, h = [norm for _, norm in self.pending], self.history_norm
        for norm in self.norms:
            h = self.gamma * h + norm
            moved.append(h)
        return moved

    def keeps(self, held: int, committed: int) -> bool:
        """Whether the bound holds, computed anew; a hair too much is not held against it."""
        bound = self.div_max
        assert bound is not None
        length = max(0, committed - held)
        if length and bound.norm == 0:
            return False
        short = bound.updates is None or length <= bound.updates
        return short and math.fsum(self.steps()[held:committed]) <= bound.norm * (1 + 1e-9)

    def is_close(self, held: int, committed: int) -> bool:
        """Whether a lead is within the bound or not by a rounding."""
        assert self.div_max is not None
        return math.fsum(self.steps()[held:committed]) == pytest.approx(self.div_max.norm, rel=1e-9)


def star(hosts: dict[str, tuple[int, int]], latency_ns: int = 0) -> Network:
    """Up and down rates in Mbit/s."""
    network = Network.star(10**9, latency_ns)
    for host, (up, down) in hosts.items():
        network.add_host(host, up * 10**6, down * 10**6)
    return network


def even(workers: int, **rates: tuple[int, int]) -> Network:
    """Workers of 100 Mbit/s, a primary and a replica of 800: an update is 80 ms on a worker's link, 10 on these."""
    hosts = {f"w{i}": (100, 100) for i in range(workers)} | {"s": (800, 800), "r": (800, 800)}
    return star(hosts | rates)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    workers = [f"w{i}" for i in range(draw(st.integers(1, 5)))]
    rate = st.sampled_from([1, 100, 100, 800])
    hosts = {host: (draw(rate), draw(rate)) for host in [*workers, "s", "r"]}
    network = star(hosts | {"z": (1, 1)}, draw(st.sampled_from([0, MS])))
    network.set_rate(up_link("z"), 0)
    if draw(st.integers(0, 9)) == 0:
        network.plan_rate_change(up_link(draw(st.sampled_from(workers))), draw(st.sampled_from([0, 50 * MS])), 10**5)
    count = draw(st.integers(0, 7))
    norms = st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.5, 100.0])
    some = st.sampled_from(workers)
    owing = st.sampled_from([*workers, "z"]) if draw(st.integers(0, 5)) == 0 else some
    bounds = st.builds(
        DivergenceBound,
        norm=st.sampled_from([0.0, 1.0, 3.0, 5.0, 20.0, math.inf]),
        updates=st.sampled_from([None, None, 0, 1, 3]),
    )
    return Scene(
        network,
        draw(st.lists(some, min_size=count, max_size=count)),
        draw(st.lists(norms, min_size=count, max_size=count)),
        draw(bounds),
        pending=draw(st.lists(st.tuples(owing, norms), max_size=5)),
        gamma=draw(st.sampled_from([0.0, 0.0, 0.5, 0.9])),
        history_norm=draw(norms),
        replicate_from=draw(st.sampled_from([0.0, 0.5, 1.0])),
        sizes=draw(st.lists(st.sampled_from([1000, SIZE, 2 * SIZE]), min_size=count, max_size=count)),
        ready_ns=draw(st.lists(st.sampled_from([7, 7, 40 * MS]), min_size=count, max_size=count)),
        now_ns=7,
    )


def there_ns(plan: Replication) -> list[int]:
    return [max(step.arrive_ns for step in plan.steps[: s + 1]) for s in range(len(plan.steps))]


def held_at(plan: Replication, at_ns: int, committed: int) -> int:
    """How many of the sequence the replica can recover: whole steps that have arrived and are in the log."""
    held = 0
    for step, t in zip(plan.steps, there_ns(plan), strict=True):
        if t <= at_ns and held + len(step.members) <= committed:
            held += len(step.members)
    return held


def instants(plan: Replication, behind: int) -> list[tuple[int, int]]:
    """(when, how many are committed then) for each instant with commits."""
    last = {commit_ns: n for n, commit_ns in enumerate(plan.commit_ns.tolist(), behind + 1)}
    return list(last.items())
