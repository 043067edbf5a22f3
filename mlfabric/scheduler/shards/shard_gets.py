"""The gets of a model that is cut: all parts of one are served at one version, or none is. Pure.

A get waits until its worker has asked for every part of it, its update (if any) is settled at all of them or was lost,
and the method does not hold it back; then all parts are served in one go, between two units, at the version that all
have made. A worker whose get broke asks for every part again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mlfabric.methods import Standing
from mlfabric.protocol import GetId, GetRequested, Instruction, TransferEnded
from mlfabric.scheduler.context import Context
from mlfabric.scheduler.shards.parts import part_of, part_of_get, whole_get_of, whole_of
from mlfabric.scheduler.shards.shard_levels import ShardLevels

__all__ = ["OpenGet", "ShardGets"]

HALF_ASKED_NS = 30_000_000_000


@dataclass(slots=True)
class OpenGet:
    """A get of which not all parts are served; ``asked`` has the requests by part.

    What is not asked for as a whole is a late repetition, and forgotten after a while.
    """

    since_ns: int
    asked: dict[int, GetRequested] = field(default_factory=dict)
    is_served: bool = False


class ShardGets(ShardLevels):
    """The parts of a model, the open unit, and the gets."""

    def __init__(self, context: Context, name: str, count: int) -> None:
        super().__init__(context, name, count)
        self.gets: dict[GetId, OpenGet] = {}

    # What happens

    def request_get(self, event: GetRequested, shard: int, now_ns: int) -> Iterator[Instruction]:
        """Take the request for one part; if the get was served before, it begins anew with this request."""
        get = whole_get_of(event.get, self.count)
        known = self.gets.setdefault(get, OpenGet(now_ns))
        if known.is_served:
            yield from self._take_back(get, known, "asked for again")
            known.asked.clear()
        known.asked[shard], known.since_ns = event, now_ns

    def _take_back(self, get: GetId, known: OpenGet, reason: str) -> Iterator[Instruction]:
        known.is_served = False
        for shard in range(self.count):
            yield from self.parts[shard].gets.cancel(part_of_get(get, shard, self.count), reason)

    def get_ended(self, event: TransferEnded, part: GetId, shard: int, now_ns: int) -> Iterator[Instruction]:
        """Note that a part was served, or broke; then its worker asks for all parts again."""
        yield from self.parts[shard].gets.ended(event, part, now_ns)
        self._forget_if_over(whole_get_of(part, self.count))

    def _forget_if_over(self, get: GetId) -> None:
        known = self.gets.get(get)
        if known is None or not known.is_served:
            return
        parts = ((i, part_of_get(get, i, self.count)) for i in range(self.count))
        if not any(part in self.parts[i].gets.planned for i, part in parts):
            del self.gets[get]

    def _take_back_at(self, shard: int, reason: str) -> Iterator[Instruction]:
        """Take back what one server serves, which may not know it any more; the workers ask for all parts again."""
        for part in list(self.parts[shard].gets.planned):
            yield from self.parts[shard].gets.cancel(part, reason)
            self._forget_if_over(whole_get_of(part, self.count))

    def _forget_halves(self) -> None:
        """Forget gets that were not asked for as a whole."""
        before_ns = self._now_ns - HALF_ASKED_NS
        for get, known in list(self.gets.items()):
            if not known.is_served and len(known.asked) < self.count and known.since_ns < before_ns:
                del self.gets[get]

    def _forget_gets(self, worker: str) -> None:
        for get in [g for g in self.gets if g.worker == worker]:
            del self.gets[get]

    # What follows

    def held_back(self, worker: str) -> list[str]:
        """Say why the method holds gets of a worker back."""
        waiting = [g for g, known in self.gets.items() if g.worker == worker and not known.is_served]
        return [why for get in waiting if (why := self.holds_back(self.gets[get]))]

    def _serve_gets(self) -> Iterator[Instruction]:
        """Serve what is due, at the version of all parts."""
        if not self.is_between_units:
            return
        version = self.version
        for known in self.gets.values():
            if known.is_served or len(known.asked) < self.count or not self._is_due(known):
                continue
            known.is_served = True
            for shard, request in sorted(known.asked.items()):
                yield from self.parts[shard].gets.serve_exactly(request, version, self._now_ns)

    def _is_due(self, known: OpenGet) -> bool:
        if self.follows_open(known) or not all(self.version.reaches(r.min_version) for r in known.asked.values()):
            return False
        return not self.holds_back(known)

    def follows_open(self, known: OpenGet) -> bool:
        """Tell whether a get follows a push that is not settled.

        A worker asks for all parts of a push before it asks for a get that follows: else it knows what became of it.
        """
        after = {whole_of(r.after_update, self.count) for r in known.asked.values() if r.after_update is not None}
        return any(push in self.open and push not in self._lost and self._is_asked(push) for push in after)

    def holds_back(self, known: OpenGet) -> str:
        """Say why the method holds a get back: by the first part, as the clocks of all parts never move at once."""
        if (request := known.asked.get(0)) is None:
            return ""
        return self.tables[0].policy.holds_back(request, self._standing(0))

    def _standing(self, shard: int) -> Standing:
        """Return what the method decides by; an iteration is what has been fixed for all parts."""
        under_way = {part_of(push, shard, self.count) for push in self.roster}
        standing = self.parts[shard].pushes.standing()
        return replace(standing, is_under_way=bool(under_way), under_way=under_way)

    def validate_gets(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        for get, known in self.gets.items():
            parts = [part_of_get(get, shard, self.count) for shard in range(self.count)]
            planned = [g for i, part in enumerate(parts) if (g := self.parts[i].gets.planned.get(part)) is not None]
            assert known.is_served or not planned, f"{self.name}: {get} waits, and parts of it are served: {planned}"
            versions = {g.version for g in planned}
            assert len(versions) <= 1, f"{self.name}: {get} is served at {versions}"
