"""The planner once more, deliberately dumb: the rules as they are written, nothing kept, nothing fast.

A link's capacity is a list of changes, its reservations a list of pieces; all answers are computed from these lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from mlfabric.network import HORIZON_NS, LinkId, Path, Piece, Profile
from mlfabric.protocol import DropReason, UpdateId
from mlfabric.scheduler.planning import Candidate, DropRule


@dataclass
class TwinNetwork:
    """Capacity changes (at_ns, bps), the first at 0, and reserved pieces, by link."""

    changes: dict[LinkId, list[tuple[int, int]]] = field(default_factory=dict)
    reserved: dict[LinkId, list[Piece]] = field(default_factory=dict)

    def copy(self) -> TwinNetwork:
        return TwinNetwork(dict(self.changes), {link: list(pieces) for link, pieces in self.reserved.items()})

    def capacity(self, link: LinkId, at_ns: int) -> int:
        return max((at, n, bps) for n, (at, bps) in enumerate(self.changes[link]) if at <= at_ns)[2]

    def free(self, link: LinkId, at_ns: int) -> int:
        taken = sum(p.bps for p in self.reserved.get(link, []) if p.start_ns <= at_ns < p.end_ns)
        return max(0, self.capacity(link, at_ns) - taken)

    def instants(self, path: Iterable[LinkId]) -> list[int]:
        """Every instant at which anything on a path may change."""
        found: set[int] = set()
        for link in path:
            found.update(at for at, _ in self.changes[link])
            for piece in self.reserved.get(link, []):
                found.update((piece.start_ns, piece.end_ns))
        return sorted(found)

    def reserve(self, path: Path, profile: Profile) -> None:
        for link in path:
            self.reserved.setdefault(link, []).extend(profile.pieces)

    def transfer(self, path: Path, size_bytes: int, ready_ns: int) -> Profile | None:
        if not path or size_bytes == 0:
            return Profile(ready_ns, ready_ns, ())
        bits = Fraction(8 * size_bytes)
        pieces: list[Piece] = []
        bounds = [ready_ns, *(at for at in self.instants(path) if at > ready_ns), HORIZON_NS]
        for start_ns, end_ns in pairwise(bounds):
            bps = min(self.free(link, start_ns) for link in path)
            if bps == 0:
                continue
            ends_ns = start_ns + math.ceil(bits * 10**9 / bps)
            pieces.append(Piece(start_ns, min(ends_ns, end_ns), bps))
            if ends_ns <= end_ns:
                return Profile(pieces[0].start_ns, ends_ns, joined(pieces)) if ends_ns < HORIZON_NS else None
            bits -= Fraction(bps * (end_ns - start_ns), 10**9)
        return None


def joined(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Join neighbours of one rate."""
    found: list[Piece] = []
    for piece in pieces:
        if found and (found[-1].end_ns, found[-1].bps) == (piece.start_ns, piece.bps):
            found.append(Piece(found.pop().start_ns, piece.end_ns, piece.bps))
        else:
            found.append(piece)
    return tuple(found)


@dataclass
class TwinPlan:
    """Slots as (update, profile, commit_ns), by position, and the cause of each that was left."""

    slots: list[tuple[UpdateId, Profile, int]]
    left: dict[UpdateId, DropReason]


@dataclass
class TwinPlanner:
    """One batch and the numbers that all rules share."""

    network: TwinNetwork
    paths: dict[str, Path]
    v_init: int
    tau_max: int
    now_ns: int

    def deadline(self, c: Candidate) -> int:
        return c.computed_from + self.tau_max - self.v_init + 1

    def profile(self, c: Candidate, network: TwinNetwork) -> Profile | None:
        if c.in_flight is not None:
            return c.in_flight
        return network.transfer(self.paths[c.source], c.size_bytes, max(c.ready_ns, self.now_ns))

    def key(self, c: Candidate, profile: Profile) -> tuple[int, int, UpdateId]:
        return (profile.end_ns, self.deadline(c), c.update)

    def order(self, candidates: Sequence[Candidate], rule: DropRule) -> TwinPlan:
        plan = TwinPlan([], {})
        kept = []
        for c in candidates:
            if self.deadline(c) < 1:
                plan.left[c.update] = DropReason.DEADLINE_PAST
            elif self.profile(c, self.network) is None:
                plan.left[c.update] = DropReason.NO_CAPACITY
            else:
                kept.append(c)
        if rule is DropRule.PAPER:
            self.paper(kept, plan)
        else:
            self.feasible(kept, plan)
        return plan

    def feasible(self, kept: list[Candidate], plan: TwinPlan) -> None:
        solo = {c.update: self.profile(c, self.network) for c in kept}
        while violated := [q for q in range(1, len(kept) + 1) if sum(self.deadline(c) <= q for c in kept) > q]:
            due = [c for c in kept if self.deadline(c) <= violated[0]]
            worst = max(due, key=lambda c: (c.in_flight is None, end(solo[c.update]), c.update))
            plan.left[worst.update] = DropReason.DEADLINE_CONFLICT
            kept.remove(worst)
        profiles = self.reservations(kept)
        for c in list(kept):
            if c.update not in profiles:
                plan.left[c.update] = DropReason.NO_CAPACITY
                kept.remove(c)
        self.commits(kept, profiles, plan)

    def reservations(self, kept: list[Candidate]) -> dict[UpdateId, Profile]:
        network = self.network.copy()
        profiles = {c.update: c.in_flight for c in kept if c.in_flight is not None}
        waiting = [c for c in kept if c.in_flight is None]
        while waiting:
            binding = [self.deadline(c) for c in waiting if self.deadline(c) <= len(kept)]
            pool = [c for c in waiting if self.deadline(c) == min(binding)] if binding else waiting
            found = [(c, p) for c in pool if (p := self.profile(c, network)) is not None]
            if not found:
                waiting = [c for c in waiting if c not in pool]
                continue
            c, p = min(found, key=lambda f: self.key(*f))
            profiles[c.update] = p
            network.reserve(self.paths[c.source], p)
            waiting.remove(c)
        return profiles

    def commits(self, kept: list[Candidate], profiles: dict[UpdateId, Profile], plan: TwinPlan) -> None:
        remaining = list(kept)
        commit_ns = self.now_ns
        for p in range(1, len(kept) + 1):
            tight = [q for q in range(p, len(kept) + 1) if sum(self.deadline(c) <= q for c in remaining) == q - p + 1]
            pool = [c for c in remaining if not tight or self.deadline(c) <= tight[0]]
            c = min(pool, key=lambda c: self.key(c, profiles[c.update]))
            commit_ns = max(commit_ns, profiles[c.update].end_ns)
            plan.slots.append((c.update, profiles[c.update], commit_ns))
            remaining.remove(c)

    def paper(self, kept: list[Candidate], plan: TwinPlan) -> None:
        network = self.network.copy()
        waiting, commit_ns = list(kept), self.now_ns
        for i in range(1, len(kept) + 1):
            for c in [c for c in waiting if self.deadline(c) <= len(plan.slots)]:
                plan.left[c.update] = DropReason.DEADLINE_CONFLICT
                waiting.remove(c)
            current = self.shortest_or_due(i, waiting, network)
            if current is None:
                break
            c, p = current
            waiting.remove(c)
            after = network.copy()
            if c.in_flight is None:
                after.reserve(self.paths[c.source], p)
            following = self.shortest_or_due(i + 1, waiting, after)
            if c.in_flight is None and following is not None and p.end_ns > following[1].end_ns:
                plan.left[c.update] = DropReason.NEXT_IS_FASTER
                continue
            commit_ns = max(commit_ns, p.end_ns)
            plan.slots.append((c.update, p, commit_ns))
            network = after
        for c in waiting:
            plan.left[c.update] = DropReason.NO_CAPACITY

    def shortest_or_due(
        self, i: int, waiting: list[Candidate], network: TwinNetwork
    ) -> tuple[Candidate, Profile] | None:
        for pool in ([c for c in waiting if self.deadline(c) == i], waiting):
            found = [(c, p) for c in pool if (p := self.profile(c, network)) is not None]
            if found:
                return min(found, key=lambda f: self.key(*f))
        return None


def end(profile: Profile | None) -> int:
    return HORIZON_NS if profile is None else profile.end_ns
