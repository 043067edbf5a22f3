"""Gets in virtual time: gathered, planned, served by the server or handed on; as ``gets/get_requests`` does."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlfabric.model.specs import Method
from mlfabric.planning import Plan, Transfer
from mlfabric.scheduler.gets.get_requests import EGRESS_LEAD_NS, GATHER_SHARE
from mlfabric.scheduler.updates.ingress_queue import Coming, Succession, look_again_ns
from mlfabric.scheduler.updates.patience import keep_open_until_ns
from mlfabric.twin.flow_kernel import Column
from mlfabric.twin.groups import Update, drifted
from mlfabric.twin.planned import Legs, Way
from mlfabric.twin.pushing import MOST_PLANS, Pushing
from mlfabric.twin.run_world import RunWorld

__all__ = ["Serving"]


@dataclass(slots=True, eq=False)
class _Sent:
    """What the server sends once.

    Args:
        carriers: how many transfers carry it.
        start_ns, end_ns: when the server is planned to begin and end.
        follows: the updates that are still to be settled before.
        version: that was sent; 0 before.
    """

    carriers: int
    start_ns: int
    end_ns: int
    follows: dict[Update, None] = field(default_factory=dict)
    version: int = 0


class _Leg(NamedTuple):
    """A transfer of a model: its reservation, whether the server sends it itself, and the get that it answers; when it
    is planned to begin, its way, None if nothing is reserved, and the rates that were known then."""

    key: int
    sent: _Sent
    is_first: bool
    answers: Update | None
    start_ns: int
    way: Way | None
    known: NDArray[np.int64]


class _Next(NamedTuple):
    """The next plan: when the updates of the gets that it may answer are to be committed, until when the server sends
    what was planned before, and when it is to be made."""

    there: dict[Update, int]
    dry_ns: int
    due_ns: float


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
        self._unsent: dict[_Sent, None] = {}
        self._succession = Succession()
        self._world, self._planner, self._pushing = world, world.planner, pushing
        self._answered = answered
        self._together = world.cluster.method is Method.SYNCHRONOUS
        self._order = world.order()
        self._legs: dict[int, _Leg] = {}
        self._holds: dict[Update, list[int]] = {}
        self._since_ns: list[float] = [0.0]
        self._keys = 0
        self._known_plan = lru_cache(MOST_PLANS)(self._plan_together)
        self._workers = {host.name: number for number, host in enumerate(world.cluster.workers)}
        self._server_up = world.planner.links[world.planner.up[world.cluster.server.name]]
        self._next = _Next({}, 0, math.inf)
        self._stale = True

    # When

    def due_ns(self) -> float:
        """Return when the next plan is to be made, infinity if nothing calls for one."""
        if self._stale:
            self._next, self._stale = self._look(), False
        return self._next.due_ns

    def ask(self, get: Update) -> None:
        """Take a get whose update is planned or settled; nothing happens if it was asked before."""
        if get not in self._open:
            self._open.add(get)
            self._be_ready(get)

    def _be_ready(self, get: Update) -> None:
        self._ready[get] = None
        self._stale = True

    def _look(self) -> _Next:
        there = self._there()
        if not there:
            return _Next(there, 0, math.inf)
        now_ns, lead_ns, dry_ns = int(self._world.now_ns), EGRESS_LEAD_NS + self._succession.lead_ns, self._dry_ns()
        due_ns = max(dry_ns, min(there.values())) - lead_ns
        if due_ns <= now_ns and not self._together:
            coming = [there_ns - lead_ns for there_ns in there.values()]
            count = sum(ns <= now_ns for ns in coming)
            due_ns = keep_open_until_ns(coming, count, self._least_ns(), now_ns) or due_ns
        return _Next(there, dry_ns, look_again_ns(due_ns, now_ns))

    def _least_ns(self) -> int:
        """Return how long the server takes to send the model if its link has nothing else to do."""
        rate_bps = self._planner.rate_bps(self._server_up)
        return self._world.cluster.model_bytes * 8 * 10**9 // max(1, rate_bps)

    def _gather_ns(self) -> int:
        """Return how long an answer may wait for the updates of others."""
        return int(GATHER_SHARE * self._least_ns())

    def _there(self) -> dict[Update, int]:
        """Return by get that can be planned when its update is to be committed, 0 if that is over.

        Nobody waits for an update that is late, not even who is to have it.
        """
        late_ns = self._world.now_ns - self._gather_ns()
        found = zip(self._ready, self._pushing.expected_ns(self._ready), strict=True)
        return {get: int(ns) for get, ns in found if ns == 0 or late_ns <= ns < math.inf}

    def _dry_ns(self) -> int:
        """Return until when the server sends what was planned before."""
        now_ns = int(self._world.now_ns)
        if self._together:
            return now_ns
        needs_ns, unsent = self._least_ns(), sorted(self._unsent, key=attrgetter("start_ns"))
        expected_ns = iter(self._pushing.expected_ns([update for sent in unsent for update in sent.follows]))
        coming = [_coming(sent, needs_ns, [next(expected_ns) for _ in sent.follows]) for sent in unsent]
        booked_ns = self._planner.network.busy_until(self._server_up, now_ns)
        return max(booked_ns, self._succession.dry_ns(coming, now_ns))

    # Plans

    def plan(self) -> None:
        """Plan what is answered together: what is ready when the server can send again, or little later."""
        self._stale, now_ns = True, self._world.now_ns
        if self.due_ns() > now_ns:
            return
        self._stale, there = True, self._next.there
        latest_ns = max(int(now_ns), self._next.dry_ns, min(there.values())) + self._gather_ns()
        batch = {get.worker: get for get, ns in there.items() if ns <= latest_ns}
        if self._together:
            prepared = self._known_plan(self._planner.known_rates.tobytes(), tuple(sorted(batch)))
        else:
            there_ns = max([int(now_ns), *(there[get] for get in batch.values())])
            gets = [self._planner.get(get.worker, get.step, there_ns) for get in batch.values()]
            prepared = self._prepare(self._planner.plan_gets(gets, int(now_ns)))
        self._enter(prepared, batch)

    def _plan_together(self, rates: bytes, workers: tuple[int, ...]) -> _Prepared:
        """Plan gets of synchronous training with nothing else under way; ``rates`` are those that are known."""
        self._order = self._world.order()
        gets = [self._planner.get(worker, 0, 0) for worker in workers]
        return self._prepare(self._planner.plan_gets(gets, 0))

    def _prepare(self, found: Plan) -> _Prepared:
        transfers = list(found.transfers)
        answers = {self._workers[t.get.worker]: place for place, t in enumerate(transfers) if t.get is not None}
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
                   if get in self._pushing.open]  # fmt: skip
        if self._together:  # updates are settled all at once
            lacking = list(dict(lacking).items())
        for source, _ in lacking:
            table[source, Column.HOLDS] += 1
        numbers = world.flows.enter_table(table, prepared.legs.edges)
        if not self._together:
            self._order.entered(numbers)
        sent = {source: self._sent(prepared.transfers[source], carriers)
                for source, carriers in prepared.carriers.items()}  # fmt: skip
        answers = {place: batch.get(worker) for worker, place in prepared.answers.items()}
        for place, number in enumerate(numbers):
            source, transfer = prepared.sources[place], prepared.transfers[place]
            self._legs[number] = self._leg(transfer, sent[source], source == place, answers.get(place))
        for source, get in lacking:
            sent[source].follows[get] = None
            self._holds.setdefault(get, []).append(numbers[source])
        for worker in prepared.answers:
            del self._ready[batch[worker]]

    def _sent(self, transfer: Transfer, carriers: int) -> _Sent:
        found = _Sent(carriers, transfer.profile.start_ns, transfer.profile.end_ns)
        self._unsent[found] = None
        return found

    def _leg(self, transfer: Transfer, sent: _Sent, is_first: bool, answers: Update | None) -> _Leg:
        self._keys += 1
        way = None if self._together else self._planner.reserve(("get", self._keys), transfer)
        return _Leg(self._keys, sent, is_first, answers, transfer.profile.start_ns, way, self._planner.known_rates)

    # Ends

    def settled(self, update: Update) -> None:
        """Note that an update is settled: what follows it may be sent."""
        now_ns = self._world.now_ns
        if self._pushing.version == len(self._since_ns):
            self._since_ns.append(now_ns)
        for number in self._holds.pop(update, ()):
            self._world.flows.release(number, now_ns)
            del self._legs[number].sent.follows[update]
        self._stale = True

    def arrived(self, number: int, began_ns: float, ended_ns: float) -> None:
        """Note that a transfer has arrived, not long ago."""
        leg = self._legs.pop(number)
        self._let_go(number, leg)
        if leg.is_first:
            self._stale = True
            leg.sent.version = max(0, bisect_right(self._since_ns, began_ns) - 1)
            del self._unsent[leg.sent]
            self._succession.over(_coming(leg.sent, self._least_ns(), ()), int(self._world.now_ns))
        if leg.answers is not None:
            self._world.record.span(leg.answers.worker, "get", began_ns, ended_ns)
            self._open.discard(leg.answers)
            self._answered(leg.answers, leg.sent.version, ended_ns)

    def _let_go(self, number: int, leg: _Leg) -> None:
        if leg.way is not None:
            self._planner.release(("get", leg.key), leg.way)
            self._order.forget(number)

    def links_changed(self) -> None:
        """Plan anew what the server is to send to single workers if links are otherwise than planned with."""
        self._stale, now_ns, known = True, self._world.now_ns, self._planner.known_rates
        ahead = [(leg.known, list(leg.way.links)) for leg in self._legs.values()
                 if leg.start_ns > now_ns and leg.known is not known and leg.way]  # fmt: skip
        if not any(drifted(then[links], known[links]).any() for then, links in ahead):
            return
        for number, leg in list(self._legs.items()):
            is_alone = leg.answers is not None and leg.sent.carriers == 1
            if is_alone and leg.start_ns > now_ns and self._world.flows.span_ns(number)[0] < 0:
                self._take_back(number, leg)

    def _take_back(self, number: int, leg: _Leg) -> None:
        get = leg.answers
        assert get is not None, "what is taken back is to answer a get"
        del self._legs[number], self._unsent[leg.sent]
        self._let_go(number, leg)
        self._world.flows.cancel([number])
        held = self._holds.get(get, [])
        if number in held:
            held.remove(number)
        self._be_ready(get)


def _coming(sent: _Sent, needs_ns: int, follows_ns: Sequence[float]) -> Coming:
    """Return what the server's link has to do for what it sends once: it begins when the updates are committed."""
    there_ns = max([ns for ns in follows_ns if ns < math.inf], default=0)
    end_ns = max(sent.end_ns, int(there_ns) + needs_ns)
    return Coming(end_ns, needs_ns, shares=sent.end_ns - sent.start_ns > 2 * needs_ns)
