"""The sums of one model that are planned: who adds up what, where it goes, what has become of it. Pure.

A group of a plan is one sum: its *parts* are what each aggregator does of it, receivers before senders; the first part,
the root, goes to the server. A sum is committed whole or not at all, so whatever tears a part tears all of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlfabric.model.specs import Member
from mlfabric.network import Path, Profile
from mlfabric.protocol import CancelSum, SumId, UpdateId
from mlfabric.scheduler.records import OVERDUE_SLACK_NS, TornBy

__all__ = ["PlannedSum", "SumPart", "SumTable", "hops"]

_KEPT = 64
"""So many cancellations are kept for each aggregator: more than it has sums at one time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumPart:
    """What one aggregator adds up, and the transfer by which that goes on.

    Args:
        members: the updates in it, in the order of commits.
        updates: those of them that come from their workers.
        parts: the earlier parts that go into it.
        receiver: the member that gets it.
    """

    sum: SumId
    aggregator: Member
    members: tuple[UpdateId, ...]
    updates: tuple[UpdateId, ...]
    parts: tuple[SumId, ...]
    receiver: str
    ticket: bytes
    path: Path
    profile: Profile
    cut_through: bool


def hops(parts: Sequence[SumPart]) -> int:
    """Return how many transfers follow one another on the longest way through a sum, receivers before senders."""
    longest: dict[SumId, int] = {}
    for part in reversed(parts):
        longest[part.sum] = 1 + max((longest[child] for child in part.parts), default=0)
    return longest[parts[0].sum] + 1


@dataclass(slots=True, kw_only=True)
class PlannedSum:
    """A group on its way.

    Args:
        members: in the order of commits.
        open: those that are not settled.
        lrs: the learning rate of each member's step; empty where the sum makes one step.
        received: the server has all of it.
        voided: the server was told to let go of it; until it answers, its members stay planned.
        torn_by: why it was voided.
        due_ns: when it should be with the server: as planned, or later if what is before it was late.
        patience_ns: how long after that it becomes overdue; each hop may be late, so it grows with their number.
    """

    parts: tuple[SumPart, ...]
    members: tuple[UpdateId, ...]
    open: set[UpdateId]
    seq: int
    images: int
    lrs: tuple[float, ...]
    due_ns: int
    patience_ns: int = OVERDUE_SLACK_NS
    received: bool = False
    voided: bool = False
    torn_by: TornBy | None = None

    @property
    def root(self) -> SumPart:
        """The part that goes to the server."""
        return self.parts[0]

    @property
    def is_out(self) -> bool:
        """Whether it is on its way to the server."""
        return not (self.received or self.voided)

    @property
    def overdue_ns(self) -> int:
        """The instant at which it becomes overdue if it is still out, and nothing that is out is before it."""
        return self.due_ns + self.patience_ns

    def put_off(self, now_ns: int) -> None:
        """Grant it its time once more: what was before it has only now made way."""
        profile = self.root.profile
        self.due_ns = max(self.due_ns, now_ns + profile.end_ns - profile.start_ns)


class SumTable:
    """The sums by the ids of all of their parts, and the last cancellations, which aggregators may not have heard."""

    def __init__(self) -> None:
        self._by_root: dict[SumId, PlannedSum] = {}
        self._by_part: dict[SumId, PlannedSum] = {}
        self._cancelled: defaultdict[str, deque[tuple[int, CancelSum]]] = defaultdict(lambda: deque(maxlen=_KEPT))

    def __iter__(self) -> Iterator[PlannedSum]:
        return iter(self._by_root.values())

    def __len__(self) -> int:
        return len(self._by_root)

    def add(self, planned: PlannedSum) -> None:
        """Enter a sum."""
        self._by_root[planned.root.sum] = planned
        self._by_part.update((part.sum, planned) for part in planned.parts)

    def remove(self, planned: PlannedSum) -> None:
        """Take a sum out."""
        del self._by_root[planned.root.sum]
        for part in planned.parts:
            del self._by_part[part.sum]

    def of(self, part: SumId) -> PlannedSum | None:
        """Return the sum that a part belongs to, None if it is not planned (any more)."""
        return self._by_part.get(part)

    def whole(self, root: SumId) -> PlannedSum:
        """Return a sum that is planned."""
        return self._by_root[root]

    def at(self, aggregator: str) -> list[PlannedSum]:
        """Return the sums that an aggregator has a part in."""
        return [s for s in self if any(part.aggregator.name == aggregator for part in s.parts)]

    def load(self) -> Counter[str]:
        """Return by aggregator how many updates it is to add up."""
        found: Counter[str] = Counter()
        for planned in self:
            if planned.is_out:
                for part in planned.parts:
                    found[part.aggregator.name] += len(part.members)
        return found

    def note_cancelled(self, aggregator: Member, order: CancelSum) -> None:
        """Keep an order for an aggregator that cannot be talked to now, or whose stream has broken unnoticed."""
        self._cancelled[aggregator.name].append((aggregator.incarnation, order))

    def cancelled(self, aggregator: Member) -> list[CancelSum]:
        """Return what an aggregator that came back may have missed; another incarnation has missed nothing."""
        found = self._cancelled[aggregator.name]
        return [order for incarnation, order in found if incarnation == aggregator.incarnation]

    def put_off_behind(self, seq: int, now_ns: int) -> None:
        """Grant all sums at a place in the sequence and behind it their time once more."""
        for planned in self:
            if planned.seq >= seq:
                planned.put_off(now_ns)

    def validate(self) -> None:
        """Check what must hold after every event; a violation is a broken invariant."""
        for planned in self:
            name, ids = planned.root.sum, {part.sum for part in planned.parts}
            assert planned.open, f"{name} waits for nobody"
            assert planned.open <= set(planned.members), f"{name}: {planned.open} of {planned.members}"
            fed = [child for part in planned.parts for child in part.parts]
            assert sorted(fed) == sorted(ids - {name}), f"{name}: {fed} go on, of {ids}"
            leaves = [update for part in planned.parts for update in part.updates]
            assert sorted(leaves) == sorted(planned.members), f"{name}: {leaves} come in, of {planned.members}"
            assert all(self._by_part.get(i) is planned for i in ids), f"{name}: a part is of no sum or another"
