"""The integer program of one batch in slots (paper, section 10.1).

By update i, target d (0 is the server, d > 0 a sum at an aggregator), boundary t; where a sum of several is larger than
one update, an aggregator is two targets, one for a sum of one and one for several, and at most one of them is used:

- ``x[i, d]`` (binary): i goes to d. ``sent[i, d, t]``: which share of i has been sent there.
- ``closed[d, t]`` (binary): all members of d's sum have arrived, so it may be sent. ``had[d, t]``: how much of it the
  server has. ``whole[d, t]`` (binary): it has all of it.
- ``done[i, d, t]``: i has gone to d and is committed; binary for d = 0, the least of ``x`` and ``whole`` else.
- ``over[t]`` (binary, if the last commit counts): all are committed.
- ``before[i, k]`` (binary, if a deadline binds): i comes before k in the order of commits. It counts positions, keeps
  the members of a group together, and holds back whoever comes later.

The cost counts boundaries at which an update is not committed, so it is a whole number of slots. A share committed
through an aggregator is at most the share of input there a sum's least time earlier: for whole updates that is implied,
but the solver, which begins with parts of them, has much better bounds by it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

from benchmarks.exact.program import Program
from benchmarks.exact.slotted import DIRECT, LEFT, Decisions, Leg, Replayed, Slotted, arrival
from mlfabric.planning.problem import Objective

__all__ = ["Formulation"]

Terms = list[tuple[int, float]]
NEARLY = 0.999


class _Sum(NamedTuple):
    """What an aggregator may send: how many tensors it is, and how many members it has at most; hubs count from 1."""

    hub: int
    factor: int
    most: int


class Formulation:
    """The program, and its variables by (update, target, boundary); one that is not there is 0.

    Args:
        offset: what the objective is when the program's cost is 0.
    """

    def __init__(self, problem: Slotted) -> None:
        self.problem, self.program = problem, Program()
        self.sums = _sums(problem)
        self.updates, self.targets = range(len(problem.updates)), range(1 + len(self.sums))
        self.is_mean = problem.objective is Objective.MEAN_COMMIT
        self.unit = max([*problem.bits, 1])
        self.offset = problem.slots * (problem.commits if self.is_mean else 1)
        self.x = {(i, d): self.program.variable(whole=True) for i in self.updates for d in self._targets(i)}
        self.sent: dict[tuple[int, int, int], int] = {}
        self.closed: dict[tuple[int, int], int] = {}
        self.had: dict[tuple[int, int], Terms] = {}
        self.whole: dict[tuple[int, int], int] = {}
        self.used: dict[int, int] = {}
        self.done: dict[tuple[int, int, int], int] = {}
        self.over: dict[int, int] = {}
        self.before: dict[tuple[int, int], int] = {}
        self._used: dict[tuple[int, int], Terms] = defaultdict(list)
        self._choose()
        self._send()
        for d in self.targets[1:]:
            self._sum(d)
        self._commit()
        if not self.is_mean:
            self._end()
        if any(deadline < len(self.updates) for deadline in problem.deadlines):
            self._order()
        for (link, slot), terms in self._used.items():
            self.program.row(terms, most=problem.free[link, slot] / self.unit)

    def _targets(self, i: int) -> range:
        return self.targets if self.problem.arrived[i] is None else range(1)

    def _choose(self) -> None:
        """Each update goes to one target or is left; as many as can be are committed."""
        for i in self.updates:
            self.program.row(self._y(i), most=1)
        self.program.row([term for i in self.updates for term in self._y(i)], least=self.problem.commits)
        for d in self.targets[1:]:
            used, members = self.program.variable(whole=True), self._members(d)
            self.used[d] = used
            self.program.row([*((self.x[i, d], 1) for i in members), (used, -self.sums[d - 1].most)], most=0)
            for i in members:
                self.program.row([(self.x[i, d], 1), (used, -1)], most=0)
        for hub in range(1, 1 + len(self.problem.sums)):
            self.program.row([(used, 1) for d, used in self.used.items() if self.sums[d - 1].hub == hub], most=1)

    def _y(self, i: int) -> Terms:
        """Whether an update is committed at all."""
        return [(self.x[i, d], 1) for d in self._targets(i)]

    def _flow(self, leg: Leg, first: int, bits: int, most: float = 1.0) -> dict[int, int]:
        """Make variables for what has been sent by each boundary after ``first``, in ``bits``; use the links."""
        flow: dict[int, int] = {}
        for t in range(first + 1, self.problem.slots + 1):
            flow[t] = self.program.variable(most=most)
            step = _step(flow, t)
            if t - 1 in flow:
                self.program.row(step, least=0)
            for link in leg.links:
                self._used[link, t - 1] += [(variable, sign * bits / self.unit) for variable, sign in step]
        return flow

    def _send(self) -> None:
        for i, d in self.x:
            if not self._is_at_once(i, d):
                flow = self._flow(self._leg(i, d), self.problem.ready[i], self.problem.bits[i])
                self.sent.update({(i, d, t): variable for t, variable in flow.items()})
                if flow:
                    self.program.row([(flow[self.problem.slots], 1), (self.x[i, d], -1)], most=0)

    def _is_at_once(self, i: int, d: int) -> bool:
        """Whether an update takes no time to a target, or was on its way there before."""
        problem = self.problem
        return problem.arrived[i] is not None or not self._leg(i, d).links or not problem.bits[i]

    def _leg(self, i: int, d: int) -> Leg:
        return self.problem.legs[i][self.sums[d - 1].hub if d else DIRECT]

    def _there(self, i: int, d: int, t: int) -> Terms:
        """Which share of an update has arrived at a target by a boundary."""
        if self._is_at_once(i, d):
            at = self.problem.arrived[i]
            return [(self.x[i, d], 1)] if t >= (self.problem.ready[i] if at is None else at) else []
        variable = self.sent.get((i, d, t - self._leg(i, d).lag))
        return [] if variable is None else [(variable, 1)]

    def _members(self, d: int) -> list[int]:
        return [i for i in self.updates if (i, d) in self.x]

    def _sum(self, d: int) -> None:
        """When a sum may be sent, and when the server has it."""
        problem, program, members, (hub, factor, _) = self.problem, self.program, self._members(d), self.sums[d - 1]
        leg = problem.sums[hub - 1]
        flow = self._flow(leg, 0, self.unit, most=float(factor))
        for t in range(problem.slots + 1):
            self.closed[d, t] = program.variable(whole=True)
            self.whole[d, t] = program.variable(whole=self.is_mean)
            for i in members:
                program.row([*self._there(i, d, t), (self.x[i, d], -1), (self.closed[d, t], -1)], least=-1)
            self.had[d, t] = [(flow[t - leg.lag], 1.0)] if t > leg.lag else []
            for i in members:
                size = factor * problem.bits[i] / self.unit
                terms = [(self.whole[d, t], -size), (self.x[i, d], -size)]
                program.row([*self.had[d, t], *terms], least=-size)
        for t in flow:
            program.row([(self.closed[d, t], 1), (self.closed[d, t - 1], -1)], least=0)
            program.row([(self.whole[d, t], 1), (self.whole[d, t - 1], -1)], least=0)
            room = min(problem.free[link, t - 1] for link in leg.links) / self.unit
            program.row([*_step(flow, t), (self.closed[d, t - 1], -room)], most=0)

    def _commit(self) -> None:
        """What is committed has arrived, alone or in a sum; in the end all that is not left is committed."""
        program, problem = self.program, self.problem
        for i, d in self.x:
            latest = self._latest_starts(i, d)
            for t in range(problem.slots + 1):
                begun = latest[t]
                there = self._there(i, d, begun) if begun >= 0 else []
                if not there:
                    continue
                cost = -1.0 if self.is_mean and t < problem.slots else 0.0
                done = self.done[i, d, t] = program.variable(cost, whole=self.is_mean and d == 0)
                program.row([(done, 1), *((variable, -share) for variable, share in there)], most=0)
                if d:
                    size = self.sums[d - 1].factor * problem.bits[i] / self.unit
                    program.row([(done, 1), (self.x[i, d], -1)], most=0)
                    program.row([(done, 1), (self.whole[d, t], -1)], most=0)
                    program.row([(done, 1), (self.closed[d, begun], -1)], most=0)
                    program.row([*self.had[d, t], (done, -size)], least=0)
        for i in self.updates:
            program.row([*self._done(i, problem.slots), *((x, -1) for x, _ in self._y(i))], least=0)

    def _latest_starts(self, i: int, d: int) -> list[int]:
        """By boundary t, when a sum as small as this update must be begun to be there by then; -1 for never."""
        problem = self.problem
        if d == DIRECT:
            return list(range(problem.slots + 1))
        starts, (hub, factor, _) = [-1] * (problem.slots + 1), self.sums[d - 1]
        for begun in range(problem.slots + 1):
            there = arrival(problem.free, problem.sums[hub - 1], factor * problem.bits[i], begun)
            if there is not None and there <= problem.slots:
                starts[there:] = [begun] * (problem.slots + 1 - there)
        return starts

    def _done(self, i: int, t: int) -> Terms:
        return [(self.done[i, d, t], 1) for d in self.targets if (i, d, t) in self.done]

    def _end(self) -> None:
        """Count boundaries until all are committed."""
        for t in range(self.problem.slots):
            over = self.over[t] = self.program.variable(-1.0, whole=True)
            for i in self.updates:
                left = [(x, -1.0) for x, _ in self._y(i)]
                self.program.row([*self._done(i, t), *left, (over, -1)], least=-1)

    def _order(self) -> None:
        """Positions within deadlines; who comes later is committed no sooner; groups together."""
        program, last = self.program, len(self.updates) - 1
        for pair in permutations(self.updates, 2):
            self.before[pair] = program.variable(whole=True)
        for (i, k), before in self.before.items():
            if i < k:
                program.row([(before, 1), (self.before[k, i], 1)], most=1)
                both = [(x, -1.0) for x, _ in self._y(i) + self._y(k)]
                program.row([(before, 1), (self.before[k, i], 1), *both], least=-1)
            if self.is_mean:
                self._hold_back(i, k)
        for i in self.updates:
            ahead = [(self.before[k, i], 1.0) for k in self.updates if k != i]
            program.row([*ahead, *((x, last) for x, _ in self._y(i))], most=last + self.problem.deadlines[i] - 1)
        for i, k, other in permutations(self.updates, 3):
            program.row([(self.before[i, k], 1), (self.before[k, other], 1), (self.before[other, i], 1)], most=2)
            for d in self.targets[1:]:
                self._keep_together(i, k, other, d)

    def _hold_back(self, i: int, k: int) -> None:
        """If i comes before k, k is committed only when i is."""
        for t in range(self.problem.slots):
            if later := self._done(k, t):
                sooner = [(done, -1.0) for done, _ in self._done(i, t)]
                self.program.row([*later, *sooner, (self.before[i, k], 1)], most=1)

    def _keep_together(self, i: int, k: int, other: int, d: int) -> None:
        """If i and k are in one sum and the other is not, it does not come between them."""
        if (i, d) in self.x and (k, d) in self.x:
            terms = [(self.before[i, other], 1.0), (self.before[other, k], 1.0), (self.x[i, d], 1), (self.x[k, d], 1)]
            if (other, d) in self.x:
                terms.append((self.x[other, d], -1))
            self.program.row(terms, most=3)

    def values_of(self, decisions: Decisions, replayed: Replayed) -> dict[int, float]:
        """Return the whole variables' values in a plan that is known."""
        count = [decisions.where.count(hub) for hub in range(1 + len(self.problem.sums))]
        target = {LEFT: LEFT, DIRECT: DIRECT}
        for d, (hub, _, most) in enumerate(self.sums, start=1):
            if count[hub] <= most or hub not in target:
                target[hub] = d
        where = [target[hub] for hub in decisions.where]
        values = {x: float(where[i] == d) for (i, d), x in self.x.items()}
        values |= {v: float(d in where) for d, v in self.used.items()}
        values |= {v: float(t >= replayed.closed[self.sums[d - 1].hub - 1]) for (d, t), v in self.closed.items()}
        values |= {v: float(t >= replayed.summed[self.sums[d - 1].hub - 1]) for (d, t), v in self.whole.items()}
        last = max(replayed.commits, default=0)
        values |= {v: float(t >= last) for t, v in self.over.items()}
        for (i, d, t), v in self.done.items():
            if d == 0:
                values[v] = float(decisions.where[i] == 0 and t >= replayed.commits[i])
        rank = {i: n for n, i in enumerate(replayed.order)}
        values |= {v: float(i in rank and k in rank and rank[i] < rank[k]) for (i, k), v in self.before.items()}
        return values

    def read(self, values: Sequence[float]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return by update where it goes, and the boundary at which it is committed; -1 for left."""
        where, commits = [LEFT] * len(self.updates), [-1] * len(self.updates)
        for (i, d), x in self.x.items():
            if values[x] > 0.5:
                where[i] = self.sums[d - 1].hub if d else DIRECT
                times = range(self.problem.slots + 1)
                commits[i] = next(t for t in times if sum(values[v] for v, _ in self._done(i, t)) > NEARLY)
        return tuple(where), tuple(commits)


def _step(flow: dict[int, int], t: int) -> Terms:
    """What is sent in the slot that ends at a boundary."""
    return [(flow[t], 1.0), *([(flow[t - 1], -1.0)] if t - 1 in flow else [])]


def _sums(problem: Slotted) -> list[_Sum]:
    several = [_Sum(hub, problem.carried, most) for hub, most in enumerate(problem.most, start=1)]
    return several if problem.carried == 1 else several + [_Sum(hub, 1, 1) for hub, _, _ in several]
