"""The best plan of a small batch: joint ordering and forwarding as an integer program (paper, section 10.1).

The program is in slots (``slotted.py``, ``formulation.py``). First as many updates as possible are committed, which is
a matter of deadlines alone, since every update can go directly; then the sum of commit times, or the last commit, is
made least, by HiGHS. The horizon is that of the slots given: a plan whose last commit is later is not looked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlfabric.errors import UsageError
from mlfabric.scheduler.planning.formulation import Formulation
from mlfabric.scheduler.planning.slotted import DIRECT, Decisions, Slotted, arrival, replay

__all__ = ["ExactPlan", "least_cost", "solve"]

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
