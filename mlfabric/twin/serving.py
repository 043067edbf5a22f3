"""Gets in virtual time: gathered, planned, served by the server or handed on; as ``scheduler/gets`` does."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.scheduler.gets import EGRESS_LEAD_NS, GATHER_SHARE
from mlfabric.scheduler.planning import Plan, Transfer
from mlfabric.specs import Mode
from mlfabric.twin.flow_field import SOON, Column
from mlfabric.twin.groups import Update
from mlfabric.twin.planned import Legs
from mlfabric.twin.pushing import MOST_PLANS, Pushing
from mlfabric.twin.run_world import RunWorld

__all__ = ["Serving"]

MOST_VERSIONS = 65536


@dataclass(slots=True, eq=False)
class _Sent:
    """What the server sends once: the version, and how many transfers carry it."""

    carriers: int
    version: int = 0


class _Leg(NamedTuple):
    """A transfer of a model: its reservation, whether the server sends it itself, and the get that it answers."""

    key: int
    sent: _Sent
    is_first: bool
    answers: Update | None


class _Prepared(NamedTuple):
    """A plan as transfers. ``sources``: by place, that of the transfer in which the server sends what it carries on;
    ``answers``: by worker, the place of the transfer that brings its model."""

    transfers: list[Transfer]
    legs: Legs
    sources: list[int]
    answers: dict[int, int]
    carriers: Counter[int]


class Serving:
    """All gets that are not answered.

    Args:
        answered: told of each get (by the update that it follows), of the version that it brought, and when.
    """

    def __init__(self, world: RunWorld, pushing: Pushing, answered: Callable[[Update, int, float], None]) -> None:
        self._open: set[Update] = set()
        self._ready: dict[Update, None] = {}
        self._first_ns = math.inf
        self._world, self._planner, self._pushing = world, world.planner, pushing
        self._answered = answered
        self._together = world.cluster.mode is Mode.SYNCHRONOUS
        self._order = world.order()
        self._legs: dict[int, _Leg] = {}
        self._holds: dict[Update, list[int]] = {}
        self._versions: list[int] = [0]
        self._since_ns: list[float] = [0.0]
        self._keys = 0
        self._plans: dict[tuple[bytes, tuple[int, ...]], _Prepared] = {}
        self._workers = {host.name: number for number, host in enumerate(world.cluster.workers)}
        self._server_up = world.planner.links[world.planner.up[world.cluster.server.name]]
        self._due_ns = math.inf
        self._stale = True

    # When

    def due_ns(self) -> float:
        """Return when the next plan is to be made, infinity if nothing calls for one."""
        if self._stale:
            self._due_ns, self._stale = self._find_due_ns(), False
        return self._due_ns

    def ask(self, get: Update) -> None:
        """Take a get whose update is planned or settled; nothing happens if it was asked before."""
        if get not in self._open:
            self._open.add(get)
            self._be_ready(get)

    def _be_ready(self, get: Update) -> None:
        self._ready[get] = None
        self._first_ns = min(self._first_ns, self._there_ns(get))
        self._stale = True

    def _find_due_ns(self) -> float:
        return max(self._dry_ns(), self._first_ns) - EGRESS_LEAD_NS if self._first_ns < math.inf else math.inf

    def _gather_ns(self) -> float:
        """Return how long an answer may wait for the updates of others."""
        return GATHER_SHARE * 8e9 * self._world.cluster.model_bytes / self._planner.rate_bps(self._server_up)

    def _see_first(self, late_ns: float) -> None:
        """Find what is ready first; nobody waits for an update that is late, not even who is to have it."""
        commit_ns = self._pushing.commit_ns
        there_ns = [commit_ns.get(get, 0.0) for get in self._ready]
        self._first_ns = min([ns for ns in there_ns if ns == 0 or ns >= late_ns], default=math.inf)

    def _dry_ns(self) -> int:
        if self._together:
            return 0
        return self._planner.network.busy_until(self._server_up, int(self._world.now_ns))

    def _there_ns(self, get: Update) -> float:
        return self._pushing.commit_ns.get(get, 0.0)

    # Plans

    def plan(self) -> None:
        """Plan what is answered together: what is ready when the server can send again, or little later."""
        self._stale, now_ns, gather_ns = True, self._world.now_ns, self._gather_ns()
        late_ns = now_ns - gather_ns
        self._see_first(late_ns)
        if self.due_ns() > now_ns:
            return
        self._stale = True
        latest_ns = max(now_ns, self._dry_ns(), self._first_ns) + gather_ns
        there = {get: self._there_ns(get) for get in self._ready}
        batch = {get.worker: get for get, ns in there.items() if ns == 0 or late_ns <= ns <= latest_ns}
        if self._together:
            prepared = self._known_plan(tuple(sorted(batch)))
        else:
            there_ns = int(max(now_ns, *map(self._there_ns, batch.values())))
            gets = [self._planner.get(get.worker, get.step, there_ns) for get in batch.values()]
            prepared = self._prepare(self._planner.plan_gets(gets, int(now_ns)))
        self._enter(prepared, batch)

    def _known_plan(self, workers: tuple[int, ...]) -> _Prepared:
        key = self._planner.known_rates.tobytes(), workers
        if key not in self._plans:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._order = self._world.order()
            gets = [self._planner.get(worker, 0, 0) for worker in workers]
            self._plans[key] = self._prepare(self._planner.plan_gets(gets, 0))
        return self._plans[key]

    def _prepare(self, found: Plan) -> _Prepared:
        transfers = list(found.transfers)
        answers = {self._workers[answer.get.worker]: answer.transfer for answer in found.gets}
        sources: list[int] = []
        for place, transfer in enumerate(transfers):
            sources.append(sources[transfer.inputs[0]] if transfer.inputs else place)
        legs = self._order.legs(transfers, set(answers.values()))
        return _Prepared(transfers, legs, sources, answers, Counter(sources))

    def _enter(self, prepared: _Prepared, batch: dict[int, Update]) -> None:
        world = self._world
        table = prepared.legs.table.copy()
        table[:, Column.READY] = world.now_ns + world.plans(len(batch)) + world.control_ns + world.latency_ns
        lacking = [(prepared.sources[prepared.answers[get.worker]], get) for get in batch.values()
                   if get in self._pushing.commit_ns]  # fmt: skip
        if self._together:  # updates are settled all at once, and answers lead to nothing before a step is computed
            lacking = list(dict(lacking).items())
            table[:, Column.TOLD] *= SOON
        for source, _ in lacking:
            table[source, Column.HOLDS] += 1
        numbers = world.flows.enter_table(table, prepared.legs.edges)
        if not self._together:
            self._order.entered(numbers)
        sent = {source: _Sent(carriers) for source, carriers in prepared.carriers.items()}
        answers = {place: batch.get(worker) for worker, place in prepared.answers.items()}
        for place, number in enumerate(numbers):
            source, key = prepared.sources[place], self._reserve(prepared.transfers[place])
            self._legs[number] = _Leg(key, sent[source], source == place, answers.get(place))
        for source, get in lacking:
            self._holds.setdefault(get, []).append(numbers[source])
        for worker in prepared.answers:
            del self._ready[batch[worker]]
        self._see_first(world.now_ns - self._gather_ns())

    def _reserve(self, transfer: Transfer) -> int:
        self._keys += 1
        if not self._together:
            self._planner.reserve(("get", self._keys), transfer)
        return self._keys

    # Ends

    def settled(self, update: Update) -> None:
        """Note that an update is settled: what follows it may be sent."""
        now_ns, version = self._world.now_ns, self._pushing.version
        if version > self._versions[-1]:
            self._versions.append(version)
            self._since_ns.append(now_ns)
            if len(self._versions) > 2 * MOST_VERSIONS:
                del self._versions[:MOST_VERSIONS], self._since_ns[:MOST_VERSIONS]
        for number in self._holds.pop(update, ()):
            self._world.flows.release(number, now_ns)
        if update in self._ready:
            self._first_ns, self._stale = 0.0, True

    def arrived(self, number: int, began_ns: float, ended_ns: float) -> None:
        """Note that a transfer has arrived, not long ago."""
        leg = self._legs.pop(number)
        self._let_go(number, leg.key)
        if leg.is_first:
            self._stale = True
            leg.sent.version = self._version_at(began_ns)
        if leg.answers is not None:
            self._world.record.span(leg.answers.worker, "get", began_ns, ended_ns)
            self._open.discard(leg.answers)
            self._answered(leg.answers, leg.sent.version, ended_ns)

    def _let_go(self, number: int, key: int) -> None:
        if not self._together:
            self._planner.release(("get", key))
            self._order.forget(number)

    def _version_at(self, at_ns: float) -> int:
        """Return the version that the model had at an instant not long ago."""
        return self._versions[max(0, bisect_right(self._since_ns, at_ns) - 1)]

    def links_changed(self, changed: NDArray[np.bool_]) -> None:
        """Plan anew what the server has not begun to send to single workers, over links that have other rates now."""
        self._stale = True
        for number, leg in list(self._legs.items()):
            if leg.answers is None or leg.sent.carriers > 1 or self._world.flows.span_ns(number)[0] >= 0:
                continue
            if self._world.flows.crosses([number], changed):
                self._take_back(number, leg, leg.answers)

    def _take_back(self, number: int, leg: _Leg, get: Update) -> None:
        del self._legs[number]
        self._let_go(number, leg.key)
        self._world.flows.cancel([number])
        held = self._holds.get(get, [])
        if number in held:
            held.remove(number)
        self._be_ready(get)
