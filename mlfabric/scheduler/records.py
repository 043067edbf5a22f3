"""What the scheduler remembers of members, updates and gets. Pure data with a few derived figures.

All of it is soft: after a restart the members announce it again (design, section 6).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from mlfabric.model.specs import Member
from mlfabric.network import Profile
from mlfabric.planning import Shape
from mlfabric.protocol import (
    Following,
    GetId,
    GetRequested,
    ModelVersion,
    Outcome,
    PushRequested,
    SumId,
    TransferId,
    UpdateId,
)

__all__ = [
    "Lateness",
    "MemberRecord",
    "MemberState",
    "PlanCount",
    "PlannedGet",
    "PlannedUpdate",
    "SettledUpdates",
    "TornBy",
    "WaitingGet",
    "WorkerTally",
]

LONGEST_STEP = 1e300
"""A gradient may be finite and its step not; planned with this, it goes to the server, which refuses such a step."""
OVERDUE_SLACK_NS = 50_000_000
LATENESS_STEP_NS = 1_000_000


class MemberState(Enum):
    """Whether a member can be talked to."""

    HERE = "here"
    SILENT = "silent"
    LEFT = "left"


class TornBy(Enum):
    """Why a sum that was planned is given up."""

    AGGREGATOR = "its aggregator gave it up"
    AGGREGATOR_GONE = "its aggregator is gone"
    WORKER_GONE = "the worker of one of its updates is gone"
    BROKEN = "its transfer to the server broke"
    REFUSED = "the server refused it"
    OVERDUE = "it is overdue"
    HELD_UP = "it would hold up others"
    NOT_FINITE = "one of its updates is not finite"
    SERVER_BACK = "the server came back without it"
    DRIFT = "a link's rate has left the plan's"


@dataclass(slots=True)
class PlanCount:
    """What was planned so far.

    Args:
        plans: how many were made.
        updates: how many new updates they were over, in all.
        groups: how many groups were planned, by shape and by how many updates they have.
        torn: how many sums were given up, by reason.
    """

    plans: int = 0
    updates: int = 0
    groups: Counter[tuple[Shape, int]] = field(default_factory=Counter)
    torn: Counter[TornBy] = field(default_factory=Counter)


@dataclass(slots=True)
class WorkerTally:
    """What became of a worker's updates, or of its gradients that it offered for rounds; of dropped ones by reason.

    ``dropped_in_a_row`` is what the warning about shut-out workers is built on.
    """

    committed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_in_a_row: int = 0

    def commit(self, updates: int = 1) -> None:
        """Count updates that are in the model."""
        self.committed += updates
        self.dropped_in_a_row = 0

    def drop(self, reason: str, updates: int = 1) -> None:
        """Count updates that were dropped."""
        self.dropped[reason] += updates
        self.dropped_in_a_row += updates

    @property
    def dropped_total(self) -> int:
        """Dropped updates, for whatever reason."""
        return sum(self.dropped.values())

    @property
    def dropped_share(self) -> float:
        """Dropped of all settled updates; 0 while nothing is settled."""
        return self.dropped_total / max(1, self.dropped_total + self.committed)


@dataclass(slots=True)
class MemberRecord:
    """A member that joined at least once; ``most_updates`` is of an aggregator, ``follows`` of a replica.

    ``lost`` says why nobody waits for it, if it does not answer any more; ``was_lost`` is of one that is back since.
    ``has_resigned`` says that it said good-bye, ``has_said`` that a worker has said what it has drawn since it joined.
    ``job`` is the identity of a worker's, ``keeps`` says that a server has a directory of checkpoints.
    ``machine_bytes`` is the memory of a server's machine, 0 if nobody knows. ``knows_server`` says that a worker was
    told under which server epoch its model is served.
    """

    member: Member
    state: MemberState
    since_ns: int
    most_updates: int = 0
    model: str = ""
    holds_initial: bool = False
    tally: WorkerTally = field(default_factory=WorkerTally)
    memory_bytes: dict[str, int] = field(default_factory=dict)
    follows: Following | None = None
    lost: str = ""
    was_lost: bool = False
    has_resigned: bool = False
    has_said: bool = False
    job: str = ""
    keeps: bool = False
    machine_bytes: int = 0
    knows_server: bool = False


@dataclass(slots=True)
class WaitingGet:
    """A get that no plan holds yet; ``blocked_until_ns`` is when it is worth while to try again."""

    request: GetRequested
    since_ns: int
    blocked_until_ns: int = 0


@dataclass(slots=True, kw_only=True)
class PlannedUpdate:
    """An update that was instructed and is not settled.

    Args:
        sum: the sum that reaches the server with it in it; None if it goes there by itself.
        profile: the rate that its reservation gives it over time; None if it was adopted and needs none.
        received: the server has all of it.
        voided: the server was told to let go of it; until it answers that it did, or settled it, nothing else is
            planned for this update.
        adopted: the server held it before this scheduler's time.
        asked: its worker has asked this scheduler for it; else ``request`` is made up.
        is_over: its worker has come back without it, and knows its outcome: it does not send it again.
        patience_ns: how long after its planned end it becomes overdue.
        overdue: how often it was found overdue.
        late_end_ns: when it was taken to end when it was last found overdue; 0 if it never was.
    """

    request: PushRequested
    seq: int
    ticket: bytes
    profile: Profile | None
    sum: SumId | None = None
    received: bool = False
    voided: bool = False
    adopted: bool = False
    asked: bool = True
    is_over: bool = False
    patience_ns: int = OVERDUE_SLACK_NS
    overdue: int = 0
    late_end_ns: int = 0

    @property
    def transfer(self) -> TransferId:
        """What reaches the server with it in it."""
        return self.request.update if self.sum is None else self.sum

    def end_ns(self, now_ns: int) -> int:
        """Return when all of it will be there: as planned, or for an overdue one after its planned time once more."""
        if self.received or self.profile is None:
            return now_ns
        if not self.is_overdue(now_ns):
            return self.late_end_ns or self.profile.end_ns
        return now_ns + max(self.profile.end_ns - self.profile.start_ns, OVERDUE_SLACK_NS)

    def note_overdue(self, now_ns: int) -> None:
        """Keep its place behind those that are planned now, until it is here or overdue once more."""
        if self.is_overdue(now_ns):
            self.late_end_ns = self.end_ns(now_ns)
            self.overdue += 1

    def overdue_ns(self) -> int | None:
        """Return the instant at which it becomes overdue (again), None if it cannot: a sum is overdue as a whole."""
        if self.received or self.voided or self.profile is None or self.sum is not None:
            return None
        return self.profile.end_ns + (self.patience_ns << self.overdue)

    def is_overdue(self, now_ns: int) -> bool:
        """Tell whether it should have been there for a while."""
        at = self.overdue_ns()
        return at is not None and now_ns >= at


class Lateness:
    """How late transfers usually are: what is no later than most is not overdue, it is the plans that are too hopeful.

    A running estimate that each sample moves by an eighth at most, so that a few stuck transfers do not count.
    """

    def __init__(self) -> None:
        self.usual_ns = 0

    def note(self, late_ns: int) -> None:
        """Take in how long after its planned end a transfer ended."""
        most = self.usual_ns // 8 + LATENESS_STEP_NS
        self.usual_ns = max(0, self.usual_ns + max(-most, min(most, late_ns - self.usual_ns)))

    def patience_ns(self, profile: Profile) -> int:
        """Return how long after its planned end a transfer of this profile becomes overdue."""
        return max((profile.end_ns - profile.start_ns) // 2, OVERDUE_SLACK_NS, 2 * self.usual_ns)


@dataclass(slots=True, kw_only=True)
class PlannedGet:
    """A get that was instructed and is not served.

    Args:
        source: the server, or the aggregator that hands the model on.
        by: the own get of that aggregator; None if the server serves it.
        version: of a part of a model: the one that all parts are served at; None for any that is asked for.
    """

    request: GetRequested
    source: str
    ticket: bytes
    profile: Profile
    by: GetId | None = None
    version: ModelVersion | None = None


class SettledUpdates:
    """Outcomes that workers may still ask for, by worker incarnation; below a mark the worker knows them all."""

    def __init__(self) -> None:
        self._by_worker: dict[tuple[str, int], dict[int, Outcome]] = {}
        self._low: dict[tuple[str, int], int] = {}

    def __contains__(self, update: UpdateId) -> bool:
        known = self._by_worker.get(update[:2])
        return known is not None and update.counter in known

    def items(self) -> Iterator[tuple[UpdateId, Outcome]]:
        """Return everything that is known."""
        for (worker, incarnation), known in self._by_worker.items():
            for counter, outcome in known.items():
                yield UpdateId(worker, incarnation, counter), outcome

    def get(self, update: UpdateId) -> Outcome | None:
        """Return the outcome, or None if it is not known (any more)."""
        known = self._by_worker.get(update[:2])
        return None if known is None else known.get(update.counter)

    def count(self, update: UpdateId) -> int:
        """Return how many outcomes are known of ``update``'s worker incarnation."""
        return len(self._by_worker.get(update[:2], ()))

    def is_over(self, update: UpdateId) -> bool:
        """Tell whether its worker knows the outcome: what still asks for it is a late repetition."""
        return update.counter < self._low.get(update[:2], 0)

    def add(self, update: UpdateId, outcome: Outcome) -> None:
        """Remember an outcome, unless its worker knows it."""
        if not self.is_over(update):
            self._by_worker.setdefault(update[:2], {})[update.counter] = outcome

    def forget(self, update: UpdateId) -> None:
        """Forget an outcome: it is open again."""
        self._by_worker.get(update[:2], {}).pop(update.counter, None)

    def forget_below(self, update: UpdateId, counter: int) -> None:
        """Forget what ``update``'s worker incarnation will not ask for again; the mark never falls."""
        self._low[update[:2]] = max(counter, self._low.get(update[:2], 0))
        known = self._by_worker.get(update[:2])
        if known:
            for old in [c for c in known if c < counter]:
                del known[old]

    def forget_worker(self, worker: str, keeps: int | None = None) -> None:
        """Forget a worker that will not ask any more, but not its incarnation ``keeps``."""
        for table in (self._by_worker, self._low):
            for key in [k for k in table if k[0] == worker and k[1] != keeps]:
                del table[key]
