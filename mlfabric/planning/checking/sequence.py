"""The sequence of commits and its groups: each update exactly once, in order, within its bounds."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from mlfabric.planning.checking.view import View, listed
from mlfabric.planning.plan import Commit, Group, Toward
from mlfabric.planning.problem import Consistency, Shape
from mlfabric.protocol import UpdateId

__all__ = ["check_commits", "check_groups", "check_once"]


def check_once(view: View) -> None:
    """Assert that each update of the batch is committed, dropped or deferred, and only one of these; with a reason."""
    plan = view.plan
    deferred = [d.what for d in plan.deferred if isinstance(d.what, UpdateId)]
    found = Counter([c.update for c in plan.commits] + [left.update for left in plan.drops] + deferred)
    for update in view.candidates:
        assert found[update] == 1, f"{update} is committed, dropped or deferred {found[update]} times; once is right"
    strange = [u for u in found if u not in view.candidates]
    assert not strange, f"{listed(strange)}: settled, but not in the batch"
    given = [(f"the commit of {c.update}", c.reason) for c in plan.commits]
    given += [(f"the drop of {left.update}", left.reason) for left in plan.drops]
    given += [(f"the deferral of {d.what}", d.reason) for d in plan.deferred]
    given += [(f"the punt of {p.update}", p.reason) for p in plan.punts]
    given += [(f"the answer to {g.get}", g.reason) for g in plan.gets]
    for what, reason in given:
        assert reason.strip(), f"{what} has no reason"


def check_commits(view: View) -> None:
    """Assert positions from 1, versions and delays by the consistency, deadlines, and commit times."""
    commits = view.plan.commits
    for n, commit in enumerate(commits, start=1):
        assert commit.position == n, f"{commit.update} has position {commit.position}, it is number {n} of the commits"
        _check_version(view, commit)
        _check_deadline(view, commit)
    _check_lists(view)
    if view.config.consistency is not Consistency.ALL_REDUCE:
        _check_times(view)


def _check_version(view: View, commit: Commit) -> None:
    one_version = view.config.consistency in (Consistency.SYNCHRONOUS, Consistency.ALL_REDUCE)
    version = view.state.v_init + (0 if one_version else commit.position - 1)
    assert commit.version == version, f"{commit.update} is applied to version {commit.version}, it should be {version}"
    tau = version - view.candidates[commit.update].computed_from
    assert commit.tau == tau, f"{commit.update} has delay {commit.tau}, it should be {tau}"


def _check_deadline(view: View, commit: Commit) -> None:
    """Assert that a position is not after its deadline, so the delay is within its bound."""
    tau_max, update = view.config.tau_max, commit.update
    if view.config.consistency is not Consistency.ASYNCHRONOUS or tau_max is None:
        assert commit.deadline is None, f"{update} has deadline {commit.deadline}, but no delay bound"
        return
    deadline = view.candidates[update].computed_from + tau_max - view.state.v_init + 1
    assert commit.deadline == deadline, f"{update} has deadline {commit.deadline}, it should be {deadline}"
    assert commit.position <= deadline, f"{update} has position {commit.position}, its deadline is {deadline}"


def _check_lists(view: View) -> None:
    """Assert that stale-synchronous updates of a lower clock come first, because everyone waits for them."""
    if view.config.consistency is Consistency.STALE_SYNCHRONOUS:
        for one, two in pairwise(view.plan.commits):
            clocks = view.candidates[one.update].clock, view.candidates[two.update].clock
            assert clocks[0] <= clocks[1], f"{one.update} of clock {clocks[0]} is before {two.update} of {clocks[1]}"


def _check_times(view: View) -> None:
    """Assert that a commit is not before its arrival or before the previous commit, and is not late without a reason.

    It may wait for a replica step, or for others of such a step, which are then committed at the same instant.
    """
    steps = {step.arrive_ns for step in view.plan.replica_steps}
    causes = steps | {c.arrive_ns for c in view.plan.commits} if steps else steps
    before = view.state.now_ns
    for commit in view.plan.commits:
        at_ns, update = commit.commit_ns, commit.update
        assert at_ns >= before, f"{update} is committed at {at_ns}, before the one in front of it at {before}"
        assert at_ns >= commit.arrive_ns, f"{update} is committed at {at_ns}, it arrives at {commit.arrive_ns}"
        needless = at_ns > max(before, commit.arrive_ns) and at_ns not in causes
        assert not needless, f"{update} is committed at {at_ns}; nothing that it waits for happens then"
        before = at_ns


def check_groups(view: View) -> None:
    """Assert that groups are neighbours in the order of commits, whole, and arrive as one."""
    plan = view.plan
    members = [u for group in plan.groups for u in group.members]
    order = [c.update for c in plan.commits]
    assert members[: len(order)] == order, f"groups one after the other are {listed(members)}; commits {listed(order)}"
    deferred = {d.what for d in plan.deferred if isinstance(d.what, UpdateId)}
    rest = [u for u in members[len(order) :] if u not in deferred]
    assert not rest, f"{listed(rest)}: in a group, but neither committed nor deferred"
    used = set(view.uses)
    for g, group in enumerate(plan.groups):
        _check_group(view, g, group)
        used.update(group.last)
    for commit in plan.commits:
        assert 0 <= commit.group < len(plan.groups), f"{commit.update} is in group {commit.group}, which there is not"
        group = plan.groups[commit.group]
        assert commit.update in group.members, f"{commit.update} is not in its group {commit.group}"
        arrive_ns = view.transfers[group.last[0]].arrive_ns
        arrives = f"{commit.update} arrives at {commit.arrive_ns}, its group at {arrive_ns}"
        assert commit.arrive_ns == arrive_ns, arrives
    for i, transfer in enumerate(view.transfers):
        idle = transfer.toward is Toward.PRIMARY and i not in used
        assert not idle, f"{view.name(i)} is for nothing: no group ends with it, nothing carries it on"


def _check_group(view: View, g: int, group: Group) -> None:
    assert group.members, f"group {g} is empty"
    allowed = view.config.shapes | {Shape.DIRECT}
    assert group.shape in allowed, f"group {g} has shape {group.shape.name}, which was not allowed"
    summed = group.shape is not Shape.DIRECT
    assert summed or len(group.members) == 1, f"group {g} is direct, but has {len(group.members)} members"
    assert len(group.last) == 1, f"group {g} ends with {len(group.last)} transfers; one is right"
    i, server = group.last[0], view.state.server
    assert 0 <= i < len(view.transfers), f"group {g} ends with transfer {i}, which there is not"
    transfer, name = view.transfers[i], view.name(i)
    assert transfer.destination == server, f"{name} ends group {g}, but not at server {server}"
    carried = f"{name} ends group {g} of {listed(group.members)}, but carries {listed(transfer.members)}"
    assert set(transfer.members) == set(group.members), carried
