"""How far plans are from the best that stores and forwards: the planner and the paper's own rule against exact plans.

Random batches of 1 to 8 updates on a star with 0 to 3 aggregators (paper, section 10.1): sizes, rates and ready times
mixed, deadlines with some of them tight, both objectives; one in four has momentum at the server, one in four a server
whose rate changes while the batch is sent. Sizes and rates are such that transfers take whole slots, so that slots
hardly distort.

An exact plan is the best in slots of those whose aggregators store a sum before they forward it, as the paper's do. Our
sums leave while their inputs still come, so a gap, (the objective - the best) / the best, may be negative; it is taken
of a plan's own commit times, which need no slots. What the paper's rule decides is replayed in the same slots, and the
more of that and of its own plan counts, so its gap is never negative. The solver begins with the better of the paper's
plan and a direct one; where it runs out of time, the best plan that is known counts as the best, and ``bound_mean_gap``
tells how large the mean gap could be at most.

``mlfabric bench optimality --json FILE``.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.exact.slotted import (
    Decisions,
    Replayed,
    Slotted,
    decisions_of,
    replay,
    slotted,
)
from benchmarks.exact.solving import ExactPlan, solve
from mlfabric.network import Network, down_link
from mlfabric.planning.paper_plan import plan_by_paper
from mlfabric.planning.plan import Plan
from mlfabric.planning.plan_values import Candidate
from mlfabric.planning.planner import plan
from mlfabric.planning.problem import (
    Aggregator,
    Batch,
    FabricState,
    Objective,
    PlannerConfig,
    Shape,
    objective_of,
)
from mlfabric.protocol import UpdateId

__all__ = ["Instance", "instance", "run"]

MS = 1_000_000
SLOT_NS = 40 * MS
MBIT = 1_000_000
MBYTE = 1_000_000
VERSION = 10
FINE_UPDATES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One problem."""

    batch: Batch
    network: Network
    state: FabricState
    config: PlannerConfig


class Planned(NamedTuple):
    """A plan in slots; ``cost`` is its objective in slots, there or as it was planned, whichever is more."""

    replayed: Replayed
    decisions: Decisions
    cost: float


class Ours(NamedTuple):
    """A plan of ours: how many updates it commits, and its objective in slots."""

    commits: int
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One problem's plans."""

    best: ExactPlan
    ours: Ours
    papers: Planned

    @property
    def most(self) -> int:
        """How many updates the best plan commits."""
        return sum(commit >= 0 for commit in self.best.commits)


def run(instances: int = 200, seed: int = 0, limit_s: float = 10.0, fine: int = 10) -> dict[str, float]:
    """Compare plans with exact ones; several minutes.

    Args:
        instances: how many problems.
        seed: of all of them.
        limit_s: for each exact plan; only if it is reached do the figures depend on the machine.
        fine: how many of the small ones are compared in slots of half the length too.

    Returns:
        ``mean_gap``, ``p95_gap``, ``max_gap``, ``least_gap`` of our plans, and ``bound_mean_gap``: it cannot be more
        than that; ``fewer``: how many updates less than the best plans ours commit. ``paper_mean_gap``,
        ``paper_p95_gap`` of the paper's own rule, where it commits as many updates; ``paper_fewer``: how many less it
        commits, of ``updates``, in ``paper_fewer_in`` of the ``instances``. ``proved``: how many exact plans are proved
        to be the best. ``fine_mean_gap``, ``coarse_mean_gap``: of the same few instances in slots of half the length,
        and of the usual length. ``seed``.
    """
    problems = [instance(seed, number) for number in range(instances)]
    with _progress() as progress:
        compared = [
            compare(problem, SLOT_NS, limit_s) for problem in progress.track(problems, description="exact plans")
        ]
        small = [n for n, problem in enumerate(problems) if len(problem.batch.updates) <= FINE_UPDATES][:fine]
        finer = [
            compare(problems[n], SLOT_NS // 2, limit_s) for n in progress.track(small, description="in finer slots")
        ]
    gaps = [gap(c.ours.cost, c.best.cost) for c in compared]
    fewer = [c.most - len(c.papers.replayed.order) for c in compared]
    papers = [gap(c.papers.cost, c.best.cost) for c, less in zip(compared, fewer, strict=True) if not less]
    assert min(papers, default=0.0) >= 0, "a stored plan beats the best; they are not in the same clock"
    return {
        "mean_gap": statistics.fmean(gaps),
        "p95_gap": _p95(gaps),
        "max_gap": max(gaps),
        "least_gap": min(gaps),
        "bound_mean_gap": statistics.fmean(gap(c.ours.cost, c.best.bound) for c in compared),
        "fewer": sum(c.most - c.ours.commits for c in compared),
        "paper_mean_gap": _mean(papers),
        "paper_p95_gap": _p95(papers),
        "paper_fewer": sum(fewer),
        "paper_fewer_in": sum(less > 0 for less in fewer),
        "updates": sum(c.most for c in compared),
        "instances": instances,
        "proved": sum(c.best.is_proved for c in compared),
        "fine_mean_gap": _mean([gap(c.ours.cost, c.best.cost) for c in finer]),
        "coarse_mean_gap": _mean([gaps[n] for n in small]),
        "seed": seed,
    }


def gap(cost: float, best: int) -> float:
    """Return how much more a plan costs than the best, as a share of it."""
    return cost / best - 1 if best else 0.0


def compare(problem: Instance, slot_ns: int, limit_s: float) -> Compared:
    """Plan a problem by both rules, and exactly."""
    given = (problem.batch, problem.network, problem.state)
    ours = plan(*given, problem.config)
    papers = _in_slots(plan_by_paper(*given, problem.config), problem, slot_ns)
    directly = _in_slots(plan(*given, replace(problem.config, shapes=frozenset({Shape.DIRECT}))), problem, slot_ns)
    start = min(papers, directly, key=lambda planned: (-len(planned.replayed.order), planned.replayed.cost))
    last = max([*start.replayed.commits, *papers.replayed.commits], default=0)
    if objective_of(problem.config) is Objective.MEAN_COMMIT:
        last = last * 5 // 4 + 1
    best = solve(_slotted(problem, slot_ns, max(last, 1)), start.decisions, limit_s=limit_s)
    return Compared(best=best, ours=Ours(len(ours.commits), _cost(ours, problem, slot_ns)), papers=papers)


def _cost(found: Plan, problem: Instance, slot_ns: int) -> float:
    """Return a plan's objective in slots."""
    spans_ns = [commit.commit_ns - problem.state.now_ns for commit in found.commits]
    is_mean = objective_of(problem.config) is Objective.MEAN_COMMIT
    return (sum(spans_ns) if is_mean else max(spans_ns, default=0)) / slot_ns


def _in_slots(found: Plan, problem: Instance, slot_ns: int) -> Planned:
    """Bring a plan that sends directly, or stores and forwards, into slots."""
    slots, cost = 16, _cost(found, problem, slot_ns)
    while True:
        shown = _slotted(problem, slot_ns, slots)
        known = [(replay(shown, decisions), decisions) for decisions in decisions_of(found, shown)]
        fitting = [
            Planned(replayed, decisions, max(cost, replayed.cost))
            for replayed, decisions in known
            if replayed is not None
        ]
        if fitting:
            return min(fitting, key=lambda planned: planned.cost)
        slots *= 2


def _slotted(problem: Instance, slot_ns: int, slots: int) -> Slotted:
    return slotted(problem.batch, problem.network, problem.state, problem.config, slot_ns=slot_ns, slots=slots)


# Problems


def instance(seed: int, number: int) -> Instance:
    """Make a problem; the same numbers make the same one."""
    rng = np.random.default_rng([seed, number])
    count = int(rng.integers(1, 9))
    network = Network.star(200 * MBIT)
    hosts = [f"h{n}" for n in range(max(1, count - int(rng.integers(0, 3))))]
    for host in hosts:
        network.add_host(host, _rate(rng, 100, 200, 200, 200, 400), _rate(rng, 100, 200, 200, 400))
    network.add_host("server", 400 * MBIT, _rate(rng, 100, 200, 400))
    if rng.random() < 0.25:
        at_ns = int(rng.integers(1, 2 * count + 1)) * SLOT_NS
        network.plan_rate_change(down_link("server"), at_ns, _rate(rng, 100, 200, 400))
    return Instance(
        batch=Batch(updates=_updates(rng, count, hosts)),
        network=network,
        state=FabricState(now_ns=0, v_init=VERSION, server="server", aggregators=_aggregators(rng, network, hosts)),
        config=PlannerConfig(
            tau_max=int(rng.integers(0, 2 * count + 1)) if rng.random() < 0.5 else None,
            objective=Objective.MEAN_COMMIT if rng.random() < 0.5 else Objective.LAST_COMMIT,
            gamma=0.9 if rng.random() < 0.25 else 0.0,
        ),
    )


def _rate(rng: np.random.Generator, *of_mbit: int) -> int:
    return int(rng.choice(of_mbit)) * MBIT


def _updates(rng: np.random.Generator, count: int, hosts: Sequence[str]) -> tuple[Candidate, ...]:
    spread = int(rng.choice([0, 0, 4, 12]))
    sizes = [2] if rng.random() < 0.4 else [1, 2, 3, 4]
    return tuple(
        Candidate(
            update=UpdateId(f"worker-{n}", 0, n),
            source=str(rng.choice(hosts)),
            size_bytes=int(rng.choice(sizes)) * MBYTE,
            ready_ns=int(rng.integers(0, spread + 1)) * SLOT_NS,
            computed_from=VERSION - int(rng.integers(0, count + 1)),
        )
        for n in range(count)
    )


def _aggregators(rng: np.random.Generator, network: Network, hosts: Sequence[str]) -> tuple[Aggregator, ...]:
    """Up to three hosts, of workers or of their own; some take few updates."""
    spare, chosen = list(hosts), []
    for number in range(int(rng.integers(0, 4))):
        if spare and rng.random() < 0.6:
            chosen.append(spare.pop(int(rng.integers(len(spare)))))
        else:
            chosen.append(f"aggregator-{number}")
            network.add_host(chosen[-1], _rate(rng, 200, 400), _rate(rng, 200, 400))
    return tuple(Aggregator(host=host, most_updates=int(rng.choice([0, 0, 0, 2, 3]))) for host in chosen)


# Figures


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _p95(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.95)) if values else 0.0


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))
