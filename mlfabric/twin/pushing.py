"""Updates on their way in virtual time: gathered, planned, sent, committed, sent again; as ``updates/pushes`` does.

Differences to the live scheduler: where nobody sums, everything on its way may be overtaken; and a member of a sum that
goes beyond its delay bound at the server is dropped by itself. Synchronous updates are planned when nothing else is
under way, so their plan depends on the known rates alone: it is made once for each set of these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from mlfabric.model.specs import Method
from mlfabric.planning import Plan, Transfer
from mlfabric.scheduler.updates.patience import group_cost_ns
from mlfabric.scheduler.updates.push_table import FORGIVEN
from mlfabric.twin.flow_kernel import Column
from mlfabric.twin.groups import Gathering, Group, Leg, Name, Prepared, Update, drifted, prepare
from mlfabric.twin.run_world import RunWorld
from mlfabric.twin.sequencing import Sequencing

__all__ = ["Hearers", "Pushing"]

MOST_PLANS = 64


_NOTHING: Mapping[Update, Group] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Hearers:
    """Who is told.

    Args:
        settled: told of an update that has an outcome.
        planned: told of one whose get may be planned.
        alarm, again: have ``overdue`` of a group, and ``ask`` of an update, called at an instant.
    """

    settled: Callable[[Update], None]
    planned: Callable[[Update], None]
    alarm: Callable[[float, Group], None]
    again: Callable[[float, Update], None]


class Pushing:
    """All updates that have no outcome.

    ``open`` are those; ``commit_ns`` says of those that were planned together when they are to be committed.
    """

    def __init__(self, world: RunWorld, hearers: Hearers) -> None:
        self.version = 0
        self.waiting: dict[Update, float] = {}
        self.commit_ns: dict[Update, float] = {}
        self.open: set[Update] = set()
        self._groups: list[Group] = []
        self._world, self._planner, self._hearers = world, world.planner, hearers
        self._method = world.cluster.method
        self._together = self._method is Method.SYNCHRONOUS
        self._sequencing = Sequencing(world, world.planner.tau_max)
        self._apart: set[Update] = set()
        self._late = Counter[Update]()
        self._order = world.order()
        self._group_of: dict[int, Group] = {}
        self._holder: dict[Update, Group] = {}
        self._keys = 0
        self._known_plan = lru_cache(MOST_PLANS)(self._plan_together)
        self._workers = {host.name: number for number, host in enumerate(world.cluster.workers)}
        self._due_ns = math.inf
        self._stale = True

    # When

    def due_ns(self) -> float:
        """Return when the next plan is to be made, infinity if nothing calls for one."""
        if self._stale:
            self._due_ns, self._stale = self._find_due_ns(), False
        return self._due_ns

    def _find_due_ns(self) -> float:
        now_ns = self._world.now_ns
        if not self.waiting or (self._together and not self._groups and len(self.waiting) < len(self._workers)):
            return math.inf
        if self._together:
            return now_ns
        since_ns = next(iter(self.waiting.values()))
        if self._apart and not self._apart.isdisjoint(self.waiting):
            return since_ns
        return self._sequencing.closes_ns(since_ns, len(self.waiting), self._groups, self.version)

    def expected_ns(self, updates: Iterable[Update]) -> list[float]:
        """Return when updates are to be committed: 0 if that is over, infinity while no plan holds one."""
        if self._together:
            commit_ns = self.commit_ns
            return [commit_ns.get(update, 0.0) for update in updates]
        there_ns, holder, lacking = self._sequencing.expected_ns(self._groups), self._holder, self.open
        return [
            there_ns.get(group, 0.0) if (group := holder.get(update)) is not None
            else math.inf if update in lacking
            else 0.0
            for update in updates
        ]  # fmt: skip

    def ask(self, update: Update) -> None:
        """Take a request."""
        self._stale = True
        self.waiting[update] = self._world.now_ns

    def ask_first(self, update: Update, at_ns: float) -> None:
        """Take the first request for an update, which came at an instant."""
        self._stale = True
        self.open.add(update)
        self.waiting[update] = at_ns
        if not self._together:
            self._sequencing.expected.pushed(update, int(at_ns))

    def served(self, worker: int, at_ns: float) -> None:
        """Note that a worker has had the model since an instant, so that its next update may be expected."""
        if not self._together:
            self._sequencing.expected.served(worker, int(at_ns))
            self._stale = True

    # Plans

    def plan(self) -> None:
        """Plan everything that waits, and what is under way and may be overtaken; not if others are worth waiting for.

        What was in a sum that was given up goes by itself.
        """
        self._stale = True
        apart = [update for update in self.waiting if update in self._apart] if self._apart else []
        if self._together:
            updates = {(update.worker, 0): update for update in self.waiting}
            rates = self._planner.known_rates.tobytes()
            self._enter(self._known_plan(rates, tuple(sorted(updates)), not apart), updates, self._world.now_ns)
        elif self.due_ns() <= self._world.now_ns:
            self._stale = True
            self._planner.network.prune(int(self._world.now_ns))
            self._sequencing.pace.look(self.version, int(self._world.now_ns))
            batch = apart or list(self.waiting)
            hopeless = [update for update in batch if self._sequencing.is_hopeless(update, self.version)]
            for update in hopeless:
                self._leave(update)
            self._plan_batch([update for update in batch if update in self.waiting], not apart)

    def _plan_batch(self, batch: Sequence[Update], helps: bool) -> None:
        frozen, movable, behind, too_late = self._sequencing.split(self._groups, self.version, len(batch))
        self._groups = [*frozen, *movable, *behind]
        for group in too_late:
            self._tear(group)
        updates = {(update.worker, update.step): update for update in batch}
        updates |= {(group.members[0].worker, group.members[0].step): group.members[0] for group in movable}
        if updates:
            found = self._planned(batch, movable, sum(len(g.members) for g in frozen), helps)
            self._groups = frozen
            for left in found.drops:  # before the others are prepared, so that none is to wait for these
                self._leave(updates[self._workers[left.update.worker], left.update.counter], movable)
            self._enter(self._prepare(found), updates, 0.0, {group.members[0]: group for group in movable})
            for group in (*movable, *behind):
                self._put_off_overdue(group)
            self._groups += behind
        self._commit()

    def _put_off_overdue(self, group: Group) -> None:
        if group.is_overdue(self._world.now_ns):
            group.put_off(self._world.now_ns)
            self._hearers.alarm(group.due_ns + group.patience_ns, group)

    def _prepare(self, found: Plan) -> Prepared:
        return prepare(found, self._order, self._workers)

    def _plan_together(self, rates: bytes, names: tuple[Name, ...], helps: bool) -> Prepared:
        """Plan synchronous updates with nothing else under way; ``rates`` are those that are known."""
        self._order = self._world.order()
        candidates = [self._planner.candidate(worker, 0, 0, 0) for worker, _ in names]
        return self._prepare(self._planner.plan_updates(candidates, 0, helps=helps))

    def _planned(self, batch: Sequence[Update], movable: Sequence[Group], ahead: int, helps: bool) -> Plan:
        now_ns = int(self._world.now_ns)
        candidates = [self._planner.candidate(u.worker, u.step, now_ns, u.computed_from) for u in batch]
        for group in movable:
            worker, step, computed_from = group.members[0]
            end_ns = max(now_ns, int(group.expected_ns(self._world.now_ns)))
            candidates.append(self._planner.candidate(worker, step, now_ns, computed_from, end_ns=end_ns))
        group_ns = group_cost_ns(self._sequencing.least_ns(), len(self._workers) - len(batch))
        return self._planner.plan_updates(candidates, now_ns, self.version + ahead, helps=helps, group_ns=group_ns)

    def _enter(
        self,
        prepared: Prepared,
        updates: Mapping[Name, Update],
        base_ns: float,
        movable: Mapping[Update, Group] = _NOTHING,
    ) -> None:
        """Set on their way what was planned, and put what is on its way where the plan has it."""
        world = self._world
        table = prepared.legs.table.copy()
        table[:, Column.READY] = world.now_ns + world.plans(len(updates)) + world.control_ns + 2 * world.latency_ns
        there_ns = base_ns + max((gathering.arrive_ns for gathering in prepared.groups), default=0)
        numbers = world.flows.enter_table(table, prepared.legs.edges)
        if not self._together:
            self._order.entered(numbers)
        for gathering in prepared.groups:
            members = tuple(updates[name] for name in gathering.members)
            if gathering.places:
                due_ns = there_ns if self._together else base_ns + gathering.arrive_ns
                self._begin(gathering, members, prepared.transfers, numbers, due_ns)
            else:
                self._groups.append(movable[members[0]])

    def _begin(
        self,
        gathering: Gathering,
        members: tuple[Update, ...],
        transfers: Sequence[Transfer],
        numbers: Sequence[int],
        due_ns: float,
    ) -> None:
        root = transfers[gathering.places[0]].profile
        group = Group(
            members=members,
            root=numbers[gathering.places[0]],
            flows={numbers[place]: self._reserve(transfers[place]) for place in gathering.places},
            due_ns=due_ns,
            patience_ns=self._sequencing.patience_ns(gathering),
            start_ns=root.start_ns,
            end_ns=root.end_ns,
            begin_ns=gathering.begin_ns,
            known=self._planner.known_rates,
        )
        self._groups.append(group)
        self._group_of.update(dict.fromkeys(group.flows, group))
        for update in members:
            del self.waiting[update]
            self._holder[update] = group
            if self._together:
                self.commit_ns[update] = due_ns
            self._hearers.planned(update)
        self._hearers.alarm(due_ns + group.patience_ns, group)

    def _reserve(self, transfer: Transfer) -> Leg:
        self._keys += 1
        way = None if self._together else self._planner.reserve(("push", self._keys), transfer)
        profile = transfer.profile
        return Leg(self._keys, self._workers[transfer.source], profile.start_ns, profile.end_ns, way)

    # Ends

    def arrived(self, number: int, began_ns: float, ended_ns: float) -> bool:
        """Note that a transfer has arrived; return whether it was one of these."""
        group = self._group_of.pop(number, None)
        if group is None:
            return False
        leg = group.flows.pop(number)
        self._let_go(number, leg)
        if not self._together:
            self._sequencing.arrived(leg)
        if self._world.record.wants_spans(began_ns):
            self._world.record.span(leg.sender, "send", began_ns, ended_ns)
        if number == group.root:
            self._received(group)
        return True

    def _received(self, group: Group) -> None:
        if not self._together:
            self._sequencing.received(group)
            for behind in self._groups[self._groups.index(group) + 1 :]:
                behind.put_off_behind(self._world.now_ns)
        group.received, self._stale = True, True
        self._commit()

    def _let_go(self, number: int, leg: Leg) -> None:
        if leg.way is not None:
            self._planner.release(("push", leg.key), leg.way)
            self._order.forget(number)

    def _commit(self) -> None:
        """Apply what is there and whose turn it is."""
        if self._together:
            here = [update for group in self._groups if group.received for update in group.members]
            if len(here) == len(self._workers):
                self._groups.clear()
                self.version += 1
                for update in here:
                    self._apply(update, 0)
            return
        while self._groups and self._groups[0].received:
            for update in self._groups.pop(0).members:
                delay = self.version - update.computed_from
                if self._method is Method.ASYNCHRONOUS and delay > self._world.cluster.delay_bound:
                    self._drop(update)
                else:
                    self.version += 1
                    self._apply(update, delay)

    def _apply(self, update: Update, delay: int) -> None:
        self._world.record.commit(self._world.now_ns, delay)
        self._sequencing.settled(update, self.version)
        self._forget(update)
        self._hearers.settled(update)

    def _drop(self, update: Update) -> None:
        self._world.record.dropped[update.worker] += 1
        self._sequencing.settled(update, None)
        self._forget(update)
        self._hearers.settled(update)

    def _forget(self, update: Update) -> None:
        self.open.discard(update)
        self._holder.pop(update, None)
        self.waiting.pop(update, None)
        self.commit_ns.pop(update, None)
        self._apart.discard(update)
        self._late.pop(update, None)

    # What leaves the plan

    def overdue(self, group: Group) -> None:
        """Give up a sum that should have been there for a while, and let others pass a lone update that should."""
        is_due = self._world.now_ns >= group.due_ns + group.patience_ns
        if group.received or not is_due or group not in self._groups:
            return
        self._stale = True
        if not self._together and self._groups[0] is not group:
            self._hearers.alarm(self._world.now_ns + group.patience_ns, group)
        elif not group.is_lone:
            self._late.update(group.members)
            self._apart.update(update for update in group.members if self._late[update] > FORGIVEN)
            self._groups.remove(group)
            self._tear(group)
            self._commit()
        else:
            self._groups.remove(group)
            self._groups.append(group)
            group.put_off(self._world.now_ns)
            self._hearers.alarm(group.due_ns + group.patience_ns, group)
            self._commit()

    def links_changed(self) -> None:
        """Plan anew what has not begun if links are otherwise than it was planned with."""
        self._stale = True
        if self._together:
            off = [group for group in self._groups if self._has_lost_its_links(group)]
        elif any(group.is_off(self._planner.known_rates, self._world.now_ns) for group in self._groups):
            off = [group for group in self._groups if self._is_ahead(group)]
        else:
            return
        for group in off:
            self._groups.remove(group)
            self._tear(group)
        self._commit()

    def _has_lost_its_links(self, group: Group) -> bool:
        flows, numbers = self._world.flows, list(group.flows)
        if group.received or max(flows.spans_ns(numbers)[0]) >= 0:
            return False
        return flows.crosses(numbers, drifted(group.known, self._planner.known_rates))

    def _is_ahead(self, group: Group) -> bool:
        """Tell whether nothing of a group is planned to have begun, and whether that is a reason to plan it anew."""
        is_kept = self._sequencing.can_sum and group.is_lone
        return not group.received and not is_kept and group.begin_ns > self._world.now_ns

    def _leave(self, update: Update, movable: Sequence[Group] = ()) -> None:
        """Drop an update that a plan has no place for, on its way or not."""
        for group in movable:
            if group.members[0] == update:
                self._break_off(group)
        self._drop(update)
        self._hearers.planned(update)

    def _tear(self, group: Group) -> None:
        """Break all transfers of a group off, which has no place any more; its workers ask again."""
        self._break_off(group)
        for update in group.members:
            self._hearers.again(self._world.now_ns + 2 * self._world.control_ns, update)

    def _break_off(self, group: Group) -> None:
        self._world.flows.cancel(list(group.flows))
        for number, leg in group.flows.items():
            self._let_go(number, leg)
            del self._group_of[number]
        for update in group.members:
            del self._holder[update]
