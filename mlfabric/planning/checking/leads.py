"""What the replica holds, and how far the primary may be from it at every commit (paper, section 5.3, mended).

The primary applies ``h <- gamma h + u; w <- w + h``, so each step moves the model by at most ``b = gamma b + |u|``,
where b is the bound of the step before, at first the history's norm. A lead's bound is the sum of these; of steps
that were made before the plan, the exact norms are known. A replica step of several updates is one sum: it counts when
it and all before it have arrived and its last member is committed.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate

from mlfabric.planning.checking.view import View, listed
from mlfabric.planning.plan import Commit, ReplicaStep, Toward
from mlfabric.planning.problem import DivergenceBound, Replica

__all__ = ["check_divergence", "check_replica"]

_ROUNDING = 1e-9


def check_replica(view: View) -> None:
    """Assert that steps follow the order of commits, each update at most once, and every commit is kept or punted."""
    plan, replica = view.plan, view.state.replica
    if replica is None:
        nothing = not plan.replica_steps and not plan.punts
        assert nothing, "there is no replica, but something is replicated or punted"
        return
    order = [p.update for p in replica.pending] + [u for group in plan.groups for u in group.members]
    kept = [u for step in plan.replica_steps for u in step.members]
    assert kept == order[: len(kept)], f"replica steps have {listed(kept)}; the order of commits is {listed(order)}"
    settled = Counter(kept + [p.update for p in plan.punts])
    twice = [u for u, count in settled.items() if count > 1]
    assert not twice, f"{listed(twice)}: replicated or punted more than once"
    committed = [c.update for c in plan.commits]
    missing = [u for u in committed if not settled[u]]
    assert not missing, f"{listed(missing)}: neither replicated nor punted"
    strange = [u for u in settled if u not in view.sources]
    assert not strange, f"{listed(strange)}: replicated or punted, but neither in the batch nor pending"
    for step in plan.replica_steps:
        _check_step(view, step, replica.host)
    used = set(view.uses) | {i for step in plan.replica_steps for i in step.transfers}
    for i, transfer in enumerate(view.transfers):
        idle = transfer.toward is Toward.REPLICA and i not in used
        assert not idle, f"{view.name(i)} is for nothing: no replica step needs it"


def _check_step(view: View, step: ReplicaStep, host: str) -> None:
    """Assert that a step's transfers bring exactly its members, at its time."""
    what = f"the replica step of {listed(step.members)}"
    ends = [view.transfers[i] for i in step.transfers if i not in view.uses]
    brought = Counter(u for transfer in ends for u in transfer.members)
    assert brought == Counter(step.members), f"{what} is brought {listed(brought.elements())}"
    for transfer in ends:
        assert transfer.destination == host, f"{what} has a transfer that ends at {transfer.destination}, not at {host}"
        assert transfer.toward is Toward.REPLICA, f"{what} has a transfer toward the {transfer.toward.value}"
    arrive_ns = max((transfer.arrive_ns for transfer in ends), default=step.arrive_ns)
    assert step.arrive_ns == arrive_ns, f"{what} arrives at {step.arrive_ns}, its transfers at {arrive_ns}"


def check_divergence(view: View) -> None:
    """Assert that after all commits of an instant the lead is within the bound, and that no commit waits needlessly."""
    bound, replica = view.config.div_max, view.state.replica
    if bound is None or replica is None:
        return
    lead = _Lead(view, replica)
    commits = view.plan.commits
    before, waiting = view.state.now_ns, []
    for n, commit in enumerate(commits):
        if commit.commit_ns > max(before, commit.arrive_ns):
            waiting.append((n, max(before, commit.arrive_ns)))
        before = commit.commit_ns
        if n + 1 == len(commits) or commits[n + 1].commit_ns > before:
            _check_bound(bound, commit, *lead.at(before, n))
    for n, possible_ns in waiting:
        _check_wait(view, lead, bound, n, possible_ns)


def _check_bound(bound: DivergenceBound, commit: Commit, norm: float, length: int) -> None:
    what = f"at the commit of {commit.update} ({commit.commit_ns}) the primary"
    within = norm <= bound.norm * (1 + _ROUNDING)
    assert within, f"{what} may be {norm:.9g} from the replica, the bound is {bound.norm:.9g}"
    allowed = _most(bound)
    assert length <= allowed, f"{what} is {length} updates ahead of the replica, the bound is {allowed:g}"


def _check_wait(view: View, lead: _Lead, bound: DivergenceBound, n: int, possible_ns: int) -> None:
    """Assert that a commit could not have been made earlier, neither alone nor with the rest of its replica step."""
    commits = view.plan.commits
    commit = commits[n]
    together = [(max(possible_ns, at_ns, *(c.arrive_ns for c in commits[n : m + 1])), m) for at_ns, m in lead.steps()]
    alone = [(max(possible_ns, at_ns), n) for at_ns, _ in lead.steps()]
    for at_ns, last in sorted({(possible_ns, n), *alone, *(row for row in together if row[1] > n)}):
        if at_ns < commit.commit_ns:
            norm, length = lead.at(at_ns, last)
            fits = norm <= bound.norm * (1 - _ROUNDING) and length <= _most(bound)
            assert not fits, f"{commit.update} is committed at {commit.commit_ns}, the bound lets it at {at_ns} already"


def _most(bound: DivergenceBound) -> float:
    """How many updates a lead may have; a bound of 0 allows none, not even of norm 0."""
    return 0 if bound.norm == 0 else math.inf if bound.updates is None else bound.updates


class _Lead:
    """The bound of the lead after a commit, step by step; if the lead only grew, the former value is continued."""

    def __init__(self, view: View, replica: Replica) -> None:
        self._gamma = view.config.gamma
        self._pending = [p.step_norm for p in replica.pending]
        self._updates = [view.candidates[c.update].norm for c in view.plan.commits]
        self._histories = [replica.history_norm]
        for norm in self._updates:
            self._histories.append(self._gamma * self._histories[-1] + norm)
        arrivals = [step.arrive_ns for step in view.plan.replica_steps]
        lengths = [len(step.members) for step in view.plan.replica_steps]
        self._steps = list(zip(accumulate(arrivals, max), accumulate(lengths), strict=True))
        self._first, self._end, self._sum, self._step = -1, -1, 0.0, 0.0

    def steps(self) -> list[tuple[int, int]]:
        """Return when each step and all before it have arrived, and its last commit; below 0 for an old one."""
        last = len(self._updates) - 1
        return [(at_ns, min(last, end - len(self._pending) - 1)) for at_ns, end in self._steps]

    def at(self, at_ns: int, commit: int) -> tuple[float, int]:
        """Return norm bound and length of the lead after a commit at an instant; only whole steps count."""
        end = len(self._pending) + commit + 1
        held = max((upto for there_ns, upto in self._steps if there_ns <= at_ns and upto <= end), default=0)
        if held != self._first or end < self._end:
            begin = max(0, held - len(self._pending))
            self._first, self._end, self._sum = held, held, 0.0
            self._step = self._histories[min(begin, len(self._updates))]
        for place in range(self._end, end):
            self._add(place)
        self._end = max(self._end, end)
        return self._sum, end - held

    def _add(self, place: int) -> None:
        if place < len(self._pending):
            self._sum += self._pending[place]
        else:
            self._step = self._gamma * self._step + self._updates[place - len(self._pending)]
            self._sum += self._step
