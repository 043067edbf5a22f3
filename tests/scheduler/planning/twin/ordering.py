"""The order of commits by the rules as they are written, for one server and for a model in parts.

A trip is how one update travels: a profile for each server's part. With one server it has one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlfabric.network import HORIZON_NS, Path, Profile
from mlfabric.protocol import DropReason, UpdateId
from mlfabric.scheduler.planning.values import Candidate, DropRule
from tests.scheduler.planning.twin.network import TwinNetwork

Trip = tuple[Profile, ...]


@dataclass
class TwinOrder:
    """Who travels how, by position, and the cause of each that was left."""

    placed: list[tuple[Candidate, Trip]] = field(default_factory=list)
    left: dict[UpdateId, DropReason] = field(default_factory=dict)
    now_ns: int = 0

    @property
    def slots(self) -> list[tuple[UpdateId, Profile, int]]:
        """Return (update, profile, when it and all before have been sent), for one server."""
        ends = [ends_ns(trip) for _, trip in self.placed]
        return [(c.update, trip[0], max([self.now_ns, *ends[: p + 1]])) for p, (c, trip) in enumerate(self.placed)]


@dataclass
class TwinPlanner:
    """One batch's network, and the numbers that all rules of ordering share; ``tau_max`` None for no bound."""

    network: TwinNetwork
    servers: tuple[str, ...]
    v_init: int
    tau_max: int | None
    now_ns: int

    def deadline(self, c: Candidate) -> float:
        return math.inf if self.tau_max is None else c.computed_from + self.tau_max - self.v_init + 1

    def paths(self, c: Candidate) -> list[Path]:
        return [self.network.path(c.source, server) for server in self.servers]

    def trip(self, c: Candidate, network: TwinNetwork) -> Trip | None:
        """Plan the parts of an update, by least end, each over what the earlier ones leave."""
        if c.in_flight is not None:
            return c.in_flight_parts or (c.in_flight,)
        sizes = c.part_bytes or (c.size_bytes,)
        paths, ready_ns = self.paths(c), max(c.ready_ns, self.now_ns)
        over = network.copy() if len(paths) > 1 else network
        found: dict[int, Profile] = {}
        while len(found) < len(paths):
            planned = {i: over.transfer(paths[i], sizes[i], ready_ns) for i in range(len(paths)) if i not in found}
            reachable = [(p.end_ns, i, p) for i, p in planned.items() if p is not None]
            if not reachable:
                return None
            _, i, found[i] = min(reachable, key=lambda r: r[:2])
            if len(paths) > 1:
                over.reserve(paths[i], found[i])
        return tuple(found[i] for i in range(len(paths)))

    def reserve(self, network: TwinNetwork, c: Candidate, trip: Trip) -> None:
        if c.in_flight is None:
            for path, profile in zip(self.paths(c), trip, strict=True):
                network.reserve(path, profile)

    def key(self, c: Candidate, trip: Trip) -> tuple[int, float, UpdateId]:
        return (ends_ns(trip), self.deadline(c), c.update)

    def order(self, candidates: Sequence[Candidate], rule: DropRule) -> TwinOrder:
        found = TwinOrder(now_ns=self.now_ns)
        kept = []
        for c in candidates:
            if self.deadline(c) < 1:
                found.left[c.update] = DropReason.DEADLINE_PAST
            elif self.trip(c, self.network) is None:
                found.left[c.update] = DropReason.NO_CAPACITY
            else:
                kept.append(c)
        if rule is DropRule.PAPER:
            self.paper(kept, found)
        else:
            self.feasible(kept, found)
        return found

    def feasible(self, kept: list[Candidate], found: TwinOrder) -> None:
        solo = {c.update: ends_ns(self.trip(c, self.network)) for c in kept}
        while violated := self.first_full(kept, 1, spare=1):
            due = [c for c in kept if self.deadline(c) <= violated]
            worst = max(due, key=lambda c: (c.in_flight is None, solo[c.update], c.update))
            found.left[worst.update] = DropReason.DEADLINE_CONFLICT
            kept.remove(worst)
        trips = self.reservations(kept)
        for c in list(kept):
            if c.update not in trips:
                found.left[c.update] = DropReason.NO_CAPACITY
                kept.remove(c)
        self.commits(kept, trips, found)

    def first_full(self, among: list[Candidate], least: int, spare: int) -> int:
        """Return the first position q from ``least`` on with more than q - ``least`` + ``spare`` due by then, or 0."""
        deadlines = sorted(self.deadline(c) for c in among)
        last = least + len(among)
        return next((q for q in range(least, last) if bisect_right(deadlines, q) > q - least + spare), 0)

    def reservations(self, kept: list[Candidate]) -> dict[UpdateId, Trip]:
        network = self.network.copy()
        flying = [c for c in kept if c.in_flight is not None]
        trips = {c.update: trip for c in flying if (trip := self.trip(c, network)) is not None}
        waiting = [c for c in kept if c.in_flight is None]
        while waiting:
            binding = [self.deadline(c) for c in waiting if self.deadline(c) <= len(kept)]
            pool = [c for c in waiting if self.deadline(c) == min(binding)] if binding else waiting
            reachable = [(c, trip) for c in pool if (trip := self.trip(c, network)) is not None]
            if not reachable:
                waiting = [c for c in waiting if c not in pool]
                continue
            c, trip = min(reachable, key=lambda r: self.key(*r))
            trips[c.update] = trip
            self.reserve(network, c, trip)
            waiting.remove(c)
        return trips

    def commits(self, kept: list[Candidate], trips: dict[UpdateId, Trip], found: TwinOrder) -> None:
        remaining = list(kept)
        for p in range(1, len(kept) + 1):
            tight = self.first_full(remaining, p, spare=0)
            pool = [c for c in remaining if not tight or self.deadline(c) <= tight]
            c = min(pool, key=lambda c: self.key(c, trips[c.update]))
            found.placed.append((c, trips[c.update]))
            remaining.remove(c)

    def paper(self, kept: list[Candidate], found: TwinOrder) -> None:
        network, waiting = self.network.copy(), list(kept)
        for i in range(1, len(kept) + 1):
            for c in [c for c in waiting if self.deadline(c) <= len(found.placed)]:
                found.left[c.update] = DropReason.DEADLINE_CONFLICT
                waiting.remove(c)
            current = self.shortest_or_due(i, waiting, network)
            if current is None:
                break
            c, trip = current
            waiting.remove(c)
            after = network.copy()
            self.reserve(after, c, trip)
            following = self.shortest_or_due(i + 1, waiting, after)
            due = self.deadline(c) == i and c.in_flight is None
            if due and following is not None and ends_ns(trip) > ends_ns(following[1]):
                found.left[c.update] = DropReason.NEXT_IS_FASTER
                continue
            found.placed.append((c, trip))
            network = after
        for c in waiting:
            found.left[c.update] = DropReason.NO_CAPACITY

    def shortest_or_due(self, i: int, waiting: list[Candidate], network: TwinNetwork) -> tuple[Candidate, Trip] | None:
        for pool in ([c for c in waiting if self.deadline(c) == i], waiting):
            reachable = [(c, trip) for c in pool if (trip := self.trip(c, network)) is not None]
            if reachable:
                return min(reachable, key=lambda r: self.key(*r))
        return None


def ends_ns(trip: Trip | None) -> int:
    """Return when all parts have been sent."""
    return HORIZON_NS if trip is None else max(profile.end_ns for profile in trip)
