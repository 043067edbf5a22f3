"""The order of commits by the rules as they are written."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlfabric.network import Path, Profile
from mlfabric.protocol import DropReason, UpdateId
from mlfabric.scheduler.planning.values import Candidate
from tests.scheduler.planning.twin.network import TwinNetwork


@dataclass
class TwinOrder:
    """Who travels how, by position, and the cause of each that was left."""

    placed: list[tuple[Candidate, Profile]] = field(default_factory=list)
    left: dict[UpdateId, DropReason] = field(default_factory=dict)
    now_ns: int = 0

    @property
    def slots(self) -> list[tuple[UpdateId, Profile, int]]:
        """Return (update, profile, when it and all before have been sent)."""
        ends = [profile.end_ns for _, profile in self.placed]
        return [(c.update, profile, max([self.now_ns, *ends[: p + 1]])) for p, (c, profile) in enumerate(self.placed)]


@dataclass
class TwinPlanner:
    """One batch's network, and the numbers that all rules of ordering share; ``tau_max`` None for no bound."""

    network: TwinNetwork
    server: str
    v_init: int
    tau_max: int | None
    now_ns: int

    def deadline(self, c: Candidate) -> float:
        return math.inf if self.tau_max is None else c.computed_from + self.tau_max - self.v_init + 1

    def path(self, c: Candidate) -> Path:
        return self.network.path(c.source, self.server)

    def profile(self, c: Candidate, network: TwinNetwork) -> Profile | None:
        """Plan how an update travels."""
        return c.in_flight or network.transfer(self.path(c), c.size_bytes, max(c.ready_ns, self.now_ns))

    def reserve(self, network: TwinNetwork, c: Candidate, profile: Profile) -> None:
        if c.in_flight is None:
            network.reserve(self.path(c), profile)

    def key(self, c: Candidate, profile: Profile) -> tuple[int, float, UpdateId]:
        return (profile.end_ns, self.deadline(c), c.update)

    def order(self, candidates: Sequence[Candidate]) -> TwinOrder:
        found = TwinOrder(now_ns=self.now_ns)
        kept = []
        for c in candidates:
            if self.deadline(c) < 1:
                found.left[c.update] = DropReason.DEADLINE_PAST
            elif self.profile(c, self.network) is None:
                found.left[c.update] = DropReason.NO_CAPACITY
            else:
                kept.append(c)
        self.feasible(kept, found)
        return found

    def feasible(self, kept: list[Candidate], found: TwinOrder) -> None:
        solo = {c.update: profile.end_ns for c in kept if (profile := self.profile(c, self.network)) is not None}
        while violated := self.first_full(kept, 1, spare=1):
            due = [c for c in kept if self.deadline(c) <= violated]
            worst = max(due, key=lambda c: (c.in_flight is None, solo[c.update], c.update))
            found.left[worst.update] = DropReason.DEADLINE_CONFLICT
            kept.remove(worst)
        profiles = self.reservations(kept)
        for c in list(kept):
            if c.update not in profiles:
                found.left[c.update] = DropReason.NO_CAPACITY
                kept.remove(c)
        self.commits(kept, profiles, found)

    def first_full(self, among: list[Candidate], least: int, spare: int) -> int:
        """Return the first position q from ``least`` on with more than q - ``least`` + ``spare`` due by then, or 0."""
        deadlines = sorted(self.deadline(c) for c in among)
        last = least + len(among)
        return next((q for q in range(least, last) if bisect_right(deadlines, q) > q - least + spare), 0)

    def reservations(self, kept: list[Candidate]) -> dict[UpdateId, Profile]:
        network = self.network.copy()
        profiles = {c.update: c.in_flight for c in kept if c.in_flight is not None}
        waiting = [c for c in kept if c.in_flight is None]
        while waiting:
            binding = [self.deadline(c) for c in waiting if self.deadline(c) <= len(kept)]
            pool = [c for c in waiting if self.deadline(c) == min(binding)] if binding else waiting
            reachable = [(c, profile) for c in pool if (profile := self.profile(c, network)) is not None]
            if not reachable:
                waiting = [c for c in waiting if c not in pool]
                continue
            c, profile = min(reachable, key=lambda r: self.key(*r))
            profiles[c.update] = profile
            self.reserve(network, c, profile)
            waiting.remove(c)
        return profiles

    def commits(self, kept: list[Candidate], profiles: dict[UpdateId, Profile], found: TwinOrder) -> None:
        remaining = list(kept)
        for p in range(1, len(kept) + 1):
            tight = self.first_full(remaining, p, spare=0)
            pool = [c for c in remaining if not tight or self.deadline(c) <= tight]
            c = min(pool, key=lambda c: self.key(c, profiles[c.update]))
            found.placed.append((c, profiles[c.update]))
            remaining.remove(c)
