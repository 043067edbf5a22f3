"""Who waits for whom before a commit, in virtual time: by the rules of ``scheduler/updates/patience``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mlfabric.model.specs import Method
from mlfabric.network import Profile
from mlfabric.protocol import ModelVersion, UpdateId
from mlfabric.scheduler.members.compute_times import WorkerSteps
from mlfabric.scheduler.records import Lateness
from mlfabric.scheduler.updates.ingress_queue import Coming, Succession, look_again_ns
from mlfabric.scheduler.updates.pace import Pace
from mlfabric.scheduler.updates.patience import (
    INGRESS_LEAD_NS,
    Late,
    Way,
    committed_meanwhile,
    keep_open_until_ns,
    patience_ns,
    room_ns,
    ways,
)
from mlfabric.twin.groups import Gathering, Group, Leg, Update
from mlfabric.twin.run_world import RunWorld

__all__ = ["Expected", "Sequencing", "Split"]

_EPOCH = 1
LINGER_PART = 32
"""With many workers a batch stays open for this part of the time in which as many updates are committed as there are
workers."""


class Split(NamedTuple):
    """What is under way, as a new plan sees it: what keeps its place before everything new, what is given its place by
    the plan, what is put behind it, and what is given up since all would wait for it."""

    frozen: list[Group]
    movable: list[Group]
    behind: list[Group]
    too_late: list[Group]


class Expected:
    """When workers that compute will push, as the scheduler expects it from their last steps.

    Args:
        names: of the workers.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._steps = [WorkerSteps(_EPOCH, has_model_ns=0) for _ in names]
        self._next_ns = np.zeros(len(names), np.int64)
        self._open = np.zeros(len(names), np.int64)

    def pushed(self, update: Update, now_ns: int) -> None:
        """Note that an update was asked for the first time."""
        worker, step, computed_from = update
        name = self._names[worker]
        self._steps[worker].push(UpdateId(name, 1, step), ModelVersion(_EPOCH, computed_from), now_ns)
        self._open[worker] += 1

    def settled(self, update: Update, version: int | None) -> None:
        """Note that an update made a version, or None."""
        self._open[update.worker] -= 1
        if version is not None:
            steps = self._steps[update.worker]
            steps.committed = UpdateId(self._names[update.worker], 1, update.step)
            steps.version = ModelVersion(_EPOCH, version)

    def served(self, worker: int, now_ns: int) -> None:
        """Note that a worker has the model."""
        steps = self._steps[worker]
        steps.get(now_ns)
        self._next_ns[worker] = steps.expected_ns or 0

    def within(self, now_ns: int, span_ns: int) -> list[int]:
        """Return when workers will push that have nothing under way, in a span from now on."""
        next_ns = self._next_ns[(self._open == 0) & (self._next_ns > now_ns) & (self._next_ns < now_ns + span_ns)]
        found: list[int] = next_ns.tolist()
        return found


class Sequencing:
    """The order of one model's updates.

    Args:
        tau_max: the delay bound in force.
    """

    def __init__(self, world: RunWorld, tau_max: int) -> None:
        self._world, self._planner, self._tau_max = world, world.planner, tau_max
        self.can_sum = bool(world.planner.helpers)
        self._lingering = len(world.cluster.workers) if world.planner.has_many else 0
        self.pace, self.succession, self._lateness = Pace(), Succession(), Lateness()
        self.expected = Expected([host.name for host in world.cluster.workers])
        self._server_down = self._planner.links[self._planner.down[world.cluster.server.name]]

    def least_ns(self) -> int:
        """Return how long an update takes to come in if the server's link has nothing else to do."""
        return self._takes_ns(self._planner.rate_bps(self._server_down))

    def _takes_ns(self, rate_bps: int) -> int:
        return self._world.cluster.model_bytes * 8 * 10**9 // max(1, rate_bps)

    def closes_ns(self, since_ns: float, count: int, groups: Sequence[Group], version: int) -> float:
        """Return when to close a batch of ``count`` updates, with all that is under way at a version."""
        now_ns, least_ns = int(self._world.now_ns), self.least_ns()
        needs_ns = self._room_ns(groups, version, count)
        booked_ns = self._planner.network.busy_until(self._server_down, now_ns, needs_ns=needs_ns)
        dry_ns = max(booked_ns, self.succession.dry_ns(self._coming(groups), now_ns))
        if not self.can_sum:
            window_ns = int(since_ns + 1e9 * self._world.cluster.batch_window_s)
            return look_again_ns(min(dry_ns - INGRESS_LEAD_NS, window_ns), now_ns)
        lead_ns = INGRESS_LEAD_NS + self.succession.lead_ns + count * self._first_chunk_ns(least_ns)
        due_ns = max(int(since_ns) + self._linger_ns(), dry_ns - lead_ns)
        if due_ns <= now_ns:
            expected = self.expected.within(now_ns, least_ns)
            due_ns = keep_open_until_ns(expected, count, least_ns, now_ns) or due_ns
        return look_again_ns(due_ns, now_ns)

    def _room_ns(self, groups: Sequence[Group], version: int, coming: int) -> int:
        """Return for how long the server's link must have room before ``coming`` updates are planned."""
        now_ns = self._world.now_ns
        behind = set(self._behind(groups, version, coming)[0]) if self.can_sum else set()
        stay_ns = (int(g.expected_ns(now_ns)) for g in groups if not g.received and g not in behind)
        return room_ns(stay_ns, self.least_ns(), int(now_ns))

    def _linger_ns(self) -> int:
        per_second = self.pace.commits_in(10**9)
        return int(1e9 * self._lingering / (LINGER_PART * per_second)) if self._lingering and per_second > 0 else 0

    def _first_chunk_ns(self, least_ns: int) -> int:
        cluster = self._world.cluster
        return least_ns * cluster.chunk // cluster.model_bytes

    def _coming(self, groups: Sequence[Group]) -> list[Coming]:
        needs_ns = self.least_ns()
        return [group.coming(needs_ns) for group in groups if not group.received]

    def expected_ns(self, groups: Sequence[Group]) -> dict[Group, int]:
        """Return when what is under way is to be committed; 0 for what is there and waits for nobody."""
        ends_ns = iter(self.succession.ends_ns(self._coming(groups), int(self._world.now_ns)))
        found, there_ns = dict[Group, int](), 0
        for group in groups:
            there_ns = there_ns if group.received else max(there_ns, next(ends_ns))
            found[group] = there_ns
        return found

    def patience_ns(self, gathering: Gathering) -> float:
        """Return how much later than planned a group becomes overdue."""
        return gathering.hops * self._lateness.patience_ns(Profile(gathering.begin_ns, gathering.arrive_ns, ()))

    def arrived(self, leg: Leg) -> None:
        """Note how late a transfer has arrived."""
        self._lateness.note(int(self._world.now_ns) - leg.end_ns)

    def received(self, group: Group) -> None:
        """Note that a group has arrived at the server."""
        self.succession.over(group.coming(self.least_ns()), int(self._world.now_ns))

    def split(self, groups: Sequence[Group], version: int, coming: int) -> Split:
        """Split what is under way by who keeps a place before ``coming`` new updates."""
        now_ns = self._world.now_ns
        if not self.can_sum:
            head = next((place for place, group in enumerate(groups) if not group.received), len(groups))
            return Split(list(groups[:head]), list(groups[head:]), [], [])
        behind, too_late = self._behind(groups, version, coming) if coming else ([], [])
        put_off = {id(group) for group in (*behind, *too_late)}
        kept = [group for group in groups if id(group) not in put_off]
        movable = [group for group in kept if group.is_overdue(now_ns)]
        frozen = [group for group in kept if not group.is_overdue(now_ns)] if movable else kept
        return Split(frozen, movable, behind, too_late)

    def _behind(self, groups: Sequence[Group], version: int, coming: int) -> tuple[list[Group], list[Group]]:
        now_ns, least_ns = self._world.now_ns, self.least_ns()
        late = [g for g in groups if not g.received and (g.is_overdue(now_ns) or g.due_ns > now_ns + least_ns)]
        place = version + sum(len(g.members) for g in groups) + coming - sum(len(g.members) for g in late)
        found = list(zip(late, ways([self._late(g, least_ns) for g in late], place, self._tau_max), strict=True))
        return [g for g, way in found if way is Way.BEHIND], [g for g, way in found if way is Way.TOO_LATE]

    def _late(self, group: Group, least_ns: int) -> Late:
        now_ns = self._world.now_ns
        latest_ns = int(now_ns) + least_ns + patience_ns(self.pace, self._names(group.members), least_ns)
        return Late([update.computed_from for update in group.members], int(group.expected_ns(now_ns)), latest_ns)

    def _names(self, updates: Iterable[Update]) -> Iterable[str]:
        return (self._world.cluster.workers[update.worker].name for update in updates)

    def is_hopeless(self, update: Update, version: int) -> bool:
        """Tell whether an update cannot be there in time, unless all others were held up for it."""
        name = self._world.cluster.workers[update.worker].name
        if not self.can_sum or self.pace.is_waited_for(name):
            return False
        rate_bps = min(self._planner.rates_bps[self._planner.up[name]], self._planner.rate_bps(self._server_down))
        others = committed_meanwhile(self.pace, self._takes_ns(rate_bps), self.least_ns())
        return others > self._tau_max - (version - update.computed_from)

    def settled(self, update: Update, version: int | None) -> None:
        """Note that an update made a version, or None if it was turned away."""
        name = self._world.cluster.workers[update.worker].name
        if version is None:
            self.pace.missed(name)
        else:
            self.pace.made_it(name)
        if self._world.cluster.method is not Method.SYNCHRONOUS:
            self.expected.settled(update, version)
