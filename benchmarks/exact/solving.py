"""The best plan of a small batch: joint ordering and forwarding as an integer program (paper, section 10.1).

The program is in slots (``slotted.py``, ``formulation.py``). First as many updates as possible are committed, which is
a matter of deadlines alone, since every update can go directly; then the sum of commit times, or the last commit, is
made least, by HiGHS. The horizon is that of the slots given: a plan whose last commit is later is not looked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from benchmarks.exact.formulation import Formulation
from benchmarks.exact.slotted import DIRECT, Decisions, Slotted, arrival, decisions_of, replay, slotted
from mlfabric.errors import UsageError
from mlfabric.network import Network
from mlfabric.planning.paper_plan import plan_by_paper
from mlfabric.planning.plan import Plan
from mlfabric.planning.problem import Objective

__all__ = ["ExactPlan", "compare", "least_cost", "solve"]

WHOLE_TOLERANCE = 1e-4
WHOLE = 1 - 2 * WHOLE_TOLERANCE  # costs are whole numbers of slots


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactPlan:
    """The best plan found, in slots.

    Args:
        problem: the batch in slots.
        where: by update of the problem, where it goes (LEFT, DIRECT, or aggregator 1, 2, ...).
        commits: by update, the boundary at which it is committed; -1 if left.
        cost: the objective in slots: the sum of commit times, or the last.
        bound: no plan within the slots costs less.
    """

    problem: Slotted
    where: tuple[int, ...]
    commits: tuple[int, ...]
    cost: int
    bound: int

    @property
    def is_proved(self) -> bool:
        """Whether nothing better exists."""
        return self.bound >= self.cost


def solve(problem: Slotted, start: Decisions | None = None, *, limit_s: float = 60.0) -> ExactPlan:
    """Find the best plan of a batch in slots.

    Args:
        start: a plan to begin with, which fits into the slots.
        limit_s: HiGHS stops then, and only then does the result depend on the machine; the plan to begin with is the
            result if there was no time for another.

    Raises:
        UsageError: HiGHS is not installed, or nothing fits into the slots.
    """
    if not problem.updates:
        return ExactPlan(problem=problem, where=(), commits=(), cost=0, bound=0)
    model = Formulation(problem)
    known = None if start is None else replay(problem, start)
    begin = {} if start is None or known is None else model.values_of(start, known)
    solved = model.program.solve(begin, limit_s=limit_s, gap=WHOLE)
    if solved.values is not None:
        where, commits = model.read(solved.values)
    elif start is not None and known is not None:
        where, commits = start.where, known.commits
    else:
        raise UsageError(f"no plan was found within {problem.slots} slots of {problem.slot_ns} ns and {limit_s} s")
    cost = problem.cost([commit for commit in commits if commit >= 0])
    bound = math.ceil(max(solved.bound + model.offset - WHOLE_TOLERANCE, least_cost(problem)))
    return ExactPlan(problem=problem, where=where, commits=commits, cost=cost, bound=min(cost, bound))


def compare(plan: Plan, network: Network, *, slots: int = 32, limit_s: float = 20.0) -> str:
    """Say how a plan compares with the best one that sends and sums as the paper's do.

    Args:
        network: as it was when the plan was made.
        slots: how many the paper's plan is long, with which the search begins.

    Raises:
        UsageError: as ``solve``, and for a problem that the paper's planner does not plan.
    """
    begin = plan_by_paper(plan.batch, network, plan.state, plan.config)
    now_ns = plan.state.now_ns
    slot_ns = max(1, -(-max((commit.commit_ns - now_ns for commit in begin.commits), default=0) // slots))
    problem = slotted(plan.batch, network, plan.state, plan.config, slot_ns=slot_ns, slots=2 * slots)
    known = [(done.cost, start) for start in decisions_of(begin, problem) if (done := replay(problem, start))]
    cost, start = min(known, default=(0, None))
    best = solve(problem, start, limit_s=limit_s)
    is_mean = problem.objective is Objective.MEAN_COMMIT
    ours_ms = [(commit.commit_ns - now_ns) / 1e6 for commit in plan.commits]
    said_ms = fmean(ours_ms or [0.0]) if is_mean else max(ours_ms, default=0.0)

    def at(found: int) -> str:
        return f"{found * slot_ns / 1e6 / (max(1, problem.commits) if is_mean else 1):.1f} ms"

    unproved = "" if best.is_proved else f" (no plan is below {at(best.bound)})"
    return (
        f"In slots of {slot_ns / 1e6:.2f} ms the {'mean' if is_mean else 'last'} commit of the best plan is at "
        f"{at(best.cost)}{unproved}, that of the paper's at {at(cost)}; "
        f"without slots this plan's is at {said_ms:.1f} ms."
    )


def least_cost(problem: Slotted) -> int:
    """Return a cost that no plan is below: each update is committed as soon as if it were alone."""
    soonest = sorted(_soonest(problem, i) for i in range(len(problem.updates)))
    return problem.cost(soonest[: problem.commits])


def _soonest(problem: Slotted, i: int) -> int:
    flown, ways = problem.arrived[i], []
    if flown is not None:
        return flown
    for target, leg in enumerate(problem.legs[i]):
        at = arrival(problem.free, leg, problem.bits[i], problem.ready[i])
        if at is not None and target != DIRECT:
            at = arrival(problem.free, problem.sums[target - 1], problem.bits[i], at)
        ways.append(problem.slots if at is None else at)
    return min(ways)
