"""What members and scheduler say to one another, as plain values.

Pure. Everything a state machine takes in (*events*) or gives out (*instructions*) is one of these frozen
values; ``wire.py`` turns them into protobuf messages and back. Every instruction names its receiver (``to``)
and carries its reason, which is what logs, metrics and the status page show.

Times are integer nanoseconds of the clock of whoever handles the value; no time ever crosses a host.

The way of one update (design, section 3)::

    worker                scheduler                   server
      PushRequested  ──────▶
                            plan
      ◀────── Send ─────────┴───────── Expect ─────────▶
      ── offer, on the data channel ───────────────────▶
      ◀──────────────────────────────── grant, its slot is there
      ── payload ──────────────────────────────────────▶  commits in seq order
      ◀──────────────────────────────── outcome: Committed(version, tau)
                            ◀───────── CommitsReported ──
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from mlfabric.specs import Member, ModelSpec

__all__ = [
    "AppliedIds",
    "CancelHandOn",
    "CancelReduce",
    "CancelServe",
    "CancelSum",
    "Commit",
    "CommitsReported",
    "Committed",
    "Drop",
    "DropReason",
    "Dropped",
    "Expect",
    "Expected",
    "Fetch",
    "Fold",
    "Followed",
    "Following",
    "GetId",
    "GetRequested",
    "HandOn",
    "HandOnTo",
    "HeldBack",
    "HostModel",
    "InitialReceived",
    "Initialise",
    "Instruction",
    "Keep",
    "LinkRate",
    "LinksReported",
    "Logged",
    "Lost",
    "MemberEvent",
    "MemberJoined",
    "MemberLeft",
    "MemberSilent",
    "MemoryReported",
    "ModelVersion",
    "MonitorAt",
    "NotKept",
    "Outcome",
    "Peer",
    "PushRequested",
    "Reduce",
    "ReduceFailed",
    "ReduceId",
    "ReduceOp",
    "ReducePart",
    "ReduceRequested",
    "ReduceSettled",
    "Refuse",
    "RefuseReason",
    "Release",
    "ReplicaReported",
    "Replicate",
    "Resolve",
    "RoundArrived",
    "RoundBroken",
    "RoundId",
    "Seed",
    "Send",
    "Serve",
    "ServerHolds",
    "Sum",
    "SumId",
    "SumInput",
    "Tick",
    "TransferEnd",
    "TransferEnded",
    "TransferId",
    "Unfollowed",
    "UpdateId",
    "UpdateKind",
    "Void",
    "Welcome",
    "WorkerHolds",
]


class UpdateId(NamedTuple):
    """Identity of an update for ever: its worker, that worker's incarnation, a counter from 0.

    As a tuple it equals the :class:`GetId` of the same figures: keep the two in tables of their own.
    """

    worker: str
    incarnation: int
    counter: int

    def __str__(self) -> str:
        return f"{self.worker}#{self.counter}"


class GetId(NamedTuple):
    """Identity of a get, counted apart from updates."""

    worker: str
    incarnation: int
    counter: int

    def __str__(self) -> str:
        return f"{self.worker}?{self.counter}"


class SumId(NamedTuple):
    """Identity of a sum for ever: the epoch of the scheduler that planned it, and a counter from 0."""

    epoch: int
    counter: int

    def __str__(self) -> str:
        return f"sum {self.counter}"


class ReduceId(NamedTuple):
    """Identity of a worker's part in an AllReduce, counted apart from updates and gets."""

    worker: str
    incarnation: int
    counter: int

    def __str__(self) -> str:
        return f"{self.worker}+{self.counter}"


class RoundId(NamedTuple):
    """Identity of one attempt at an AllReduce of all workers together: the scheduler's epoch, and a counter from 1.

    Later ones are greater.
    """

    epoch: int
    counter: int

    def __str__(self) -> str:
        return f"round {self.counter}"


TransferId = UpdateId | SumId
"""What travels towards a server in one piece: an update, or the sum of several."""


class ModelVersion(NamedTuple):
    """A model's version; ``epoch`` grows when a server resumes or is promoted, so pairs compare rightly."""

    epoch: int
    number: int


class UpdateKind(Enum):
    """What an update's bytes are."""

    GRADIENT = "gradient"
    INITIAL = "initial weights"
    STATE = "weights and optimizer state of one version"


class ReduceOp(Enum):
    """What an AllReduce makes of the tensors of all workers."""

    SUM = "sum"
    MEAN = "mean"


class DropReason(Enum):
    """Why an update was not, and will not be, applied."""

    DEADLINE_PAST = "its deadline passed before it could be planned"
    DEADLINE_CONFLICT = "more updates were due at its deadline than positions were left"
    NEXT_IS_FASTER = "the next update would finish before it (the paper's rule)"
    NO_CAPACITY = "a link on its path has no capacity"
    DELAY_BOUND = "the server found its delay above the bound"
    NOT_FINITE = "it holds NaN or Inf, or its step would"
    ROLLED_BACK = "it was computed on a version that was lost"
    DUPLICATE = "it was applied before"
    FUTURE_VERSION = "it claims a version that does not exist yet"
    WRONG_LAYOUT = "its layout or length is not the model's"
    CHANGED = "its tensors were changed while it was on its way"
    NOT_REPLICATED = "its worker is gone, and without it the replica cannot get it"


# Outcomes: what the handle of a push resolves to.


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The update was applied: it made ``version``, with delay ``tau``."""

    version: ModelVersion
    tau: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """The update was refused and never applied; ``detail`` says it in words."""

    cause: DropReason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The update's fate cannot be learnt, or a server died with it; within a stated bound, and counted."""

    detail: str


Outcome = Committed | Dropped | Lost


# Events: member -> scheduler.


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """The server whose models a replica follows, and how far each of them may be ahead of it (paper, section 5.3).

    Args:
        norm: l2 distance, >= 0; 0 for no lead at all, infinite for no such bound.
        updates: commits, >= 0; None for no such bound.
    """

    server: str
    norm: float = math.inf
    updates: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined:
    """A member registers, for the first time or again.

    Args:
        spec: the model that a worker trains.
        held: the models that a server brings.
        holds_initial: a worker can provide initial weights.
        most_updates: how many an aggregator takes into one sum, >= 0; 0 for any number.
        follows: what a replica follows.
    """

    member: Member
    spec: ModelSpec | None = None
    held: tuple[ModelSpec, ...] = ()
    holds_initial: bool = False
    most_updates: int = 0
    follows: Following | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSilent:
    """A member's stream broke; it may come back under the same incarnation."""

    name: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft:
    """A member said good-bye."""

    name: str
    incarnation: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequested:
    """A worker holds an update for its model; repeated until an answer is known.

    Args:
        computed_from: the version whose gradient it is.
        norm: l2 norm, computed once at the worker.
        resolved_below: every counter below this one has an outcome that the worker knows.
    """

    update: UpdateId
    model: str
    size_bytes: int
    computed_from: ModelVersion
    norm: float
    kind: UpdateKind = UpdateKind.GRADIENT
    resolved_below: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRequested:
    """A worker wants the model, at ``min_version`` or newer, once ``after_update`` (if any) has its outcome."""

    get: GetId
    model: str
    min_version: ModelVersion
    after_update: UpdateId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceRequested:
    """A worker has a tensor that is to be summed with those of the others, after all that it asked for before.

    Args:
        dtype: of the tensor, as in a layout.
        together: the first round waits until so many workers have joined, >= 1; after it, how many the last one had.
        settled: the last round whose result every worker has, as far as this one knows.
        arrived: the attempt whose result is here; others may not have it.
    """

    reduce: ReduceId
    model: str
    size_bytes: int
    dtype: str
    op: ReduceOp
    together: int = 1
    settled: RoundId | None = None
    arrived: RoundId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundArrived:
    """A worker has the result of this attempt, and has handed on what it was to hand on."""

    worker: str
    model: str
    round: RoundId


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBroken:
    """A worker cannot do its part of this attempt; ``detail`` says why."""

    worker: str
    model: str
    round: RoundId
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHolds:
    """What a worker had open when it (re)joined: everything without an outcome is asked for again."""

    worker: str
    pushes: tuple[PushRequested, ...]
    gets: tuple[GetRequested, ...]
    reduces: tuple[ReduceRequested, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedIds:
    """The applied updates of one worker incarnation: each has its counter in ``recent``, or below ``low``.

    ``recent`` maps counters >= ``low`` to the version that they made and their delay.
    """

    worker: str
    incarnation: int
    low: int
    recent: tuple[tuple[int, ModelVersion, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHolds:
    """What a server holds of one model when it (re)joins; ``replica`` is whom it must not be too far ahead of."""

    server: str
    spec: ModelSpec
    version: ModelVersion
    initialised: bool
    applied: tuple[AppliedIds, ...] = ()
    received: tuple[UpdateId, ...] = ()
    epoch_base: int = 0
    replica: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One update's entry in a server's commit log as the scheduler sees it.

    Args:
        version: that it made.
        step_norm: l2 norm of the change that its group made to the weights; the same for all of the group.
    """

    update: UpdateId
    version: ModelVersion
    tau: int
    lr: float
    step_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitsReported:
    """A server committed this group, in this order: its members were applied together."""

    server: str
    model: str
    commits: tuple[Commit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialReceived:
    """A server now holds a model's initial weights."""

    server: str
    model: str
    version: ModelVersion


class TransferEnd(Enum):
    """How a transfer ended at the member that reports it."""

    RECEIVED = "received"
    SERVED = "served"
    BROKEN = "the connection broke"
    VOIDED = "voided before it was complete"
    DISCARDED = "discarded"
    TORN = "a part of the sum will never come"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEnded:
    """A report on one transfer by whom it went to (or came from, for a get); ``cause`` says why one was discarded."""

    member: str
    model: str
    transfer: TransferId | GetId
    end: TransferEnd
    cause: DropReason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReported:
    """What a replica holds of a model: it is at ``version``, and has the bytes of these updates besides.

    Args:
        version: that it has applied; whatever was logged up to there and nothing else.
        held: updates that it holds each by itself, and has not applied.
        term: of its seed, see :class:`Keep`; 0 before the first.
    """

    replica: str
    model: str
    term: int
    version: ModelVersion
    held: tuple[UpdateId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """A primary does not commit these transfers, whose turn it is, until its replica holds more.

    Args:
        alone: they would be above the bound even if the replica held all that was committed before.
    """

    server: str
    model: str
    transfers: tuple[TransferId, ...]
    alone: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotKept:
    """A worker or a replica cannot give or use what it was told to: only the primary's state can fill the hole."""

    member: str
    model: str
    term: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """An estimate of what one direction of one host's link carries now."""

    host: str
    up: bool
    bps: int
    age_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReported:
    """What a member holds in memory, by kind, in bytes."""

    name: str
    kinds: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksReported:
    """A monitor's estimates."""

    monitor: str
    rates: tuple[LinkRate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed; nothing else happened."""


MemberEvent = (
    MemberJoined
    | MemberSilent
    | MemberLeft
    | PushRequested
    | GetRequested
    | ReduceRequested
    | RoundArrived
    | RoundBroken
    | WorkerHolds
    | ServerHolds
    | CommitsReported
    | InitialReceived
    | TransferEnded
    | LinksReported
    | MemoryReported
    | ReplicaReported
    | HeldBack
    | NotKept
    | Tick
)


# Instructions: scheduler -> member.


class RefuseReason(Enum):
    """Why a registration was refused; the shell maps each to a gRPC status."""

    NAME_TAKEN = "another live member has this name"
    LAYOUT_DIFFERS = "the model is registered with another layout"
    OPTIONS_DIFFER = "the model is registered with other options"
    PROTOCOL_VERSION = "this member speaks another version of the protocol"
    OUT_OF_RANGE = "a parameter is out of range"
    NOT_YET = "something that it needs is not there yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Admit a member; ``tau_max`` is the bound in force and ``initialise`` asks this worker for initial weights."""

    to: str
    incarnation: int
    epoch: int
    tau_max: int
    server: str
    server_address: str
    initialise: bool
    monitor_address: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Refuse a registration or a request; nothing was changed."""

    to: str
    cause: RefuseReason
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorAt:
    """Report finished transfers to this monitor from now on ("" for none)."""

    to: str
    address: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostModel:
    """Hold this model from now on."""

    to: str
    spec: ModelSpec
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialise:
    """Push initial weights (as an update of kind INITIAL)."""

    to: str
    model: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Offer this update to ``receiver`` at ``address``, showing the ticket; ``rate_bps`` 0 means unpaced."""

    to: str
    update: UpdateId
    receiver: str
    address: str
    seq: int
    ticket: bytes
    rate_bps: int
    reason: str


class Expected(NamedTuple):
    """One update of a transfer.

    Args:
        computed_from: the version whose gradient it is.
        resolved_below: below what its worker knows every outcome.
        norm: l2 norm of the update.
    """

    update: UpdateId
    computed_from: ModelVersion
    resolved_below: int
    norm: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """Receive this transfer and commit it at ``seq``; one that is expected again moves to its new ``seq``.

    Args:
        members: the updates in it, in the order of commits; a lone update is its own only member.
        size_bytes: of all that travels: a sum of a rule with momentum is two images.
        after: transfers that the plan ends before this one starts; it is not granted while one of them runs.
        tau_max: the bound that the delay of each member is held to.
        lrs: a sum of several steps only: the learning rate of each member's step, which its coefficients contain.
        parts: how many transfers share this ``seq`` and make one version together (synchronous), >= 1.
    """

    to: str
    transfer: TransferId
    members: tuple[Expected, ...]
    model: str
    seq: int
    ticket: bytes
    size_bytes: int
    tau_max: int
    kind: UpdateKind
    after: tuple[TransferId, ...]
    reason: str
    lrs: tuple[float, ...] = ()
    parts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Forget this update; it will not be sent."""

    to: str
    model: str
    update: UpdateId
    cause: DropReason
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve:
    """Learn the outcome of an update that a server had settled before."""

    to: str
    update: UpdateId
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Void:
    """Do not wait for this transfer any more, unless it is here completely."""

    to: str
    model: str
    transfer: TransferId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SumInput:
    """One transfer that goes into a sum.

    Args:
        first, second: what an update is multiplied with for the sum's first image, and its second if it has one; an
            earlier sum is added as it is, image by image.
        size_bytes: of all that travels.
        after: as in :class:`Expect`, for transfers to this aggregator.
    """

    transfer: TransferId
    ticket: bytes
    first: float
    second: float
    size_bytes: int
    after: tuple[TransferId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Receive the inputs, add them up, and offer the sum to ``receiver`` at ``address``, showing the ticket.

    Args:
        members: the updates in it, in the order of commits.
        images: how many the sum has: 1, or 2 for a rule with momentum.
        cut_through: offer it at once and send what is summed up while more comes; else only once it is complete.
        rate_bps: of the sum; 0 means unpaced.
        seq: sums of lower ``seq`` come first where memory is short.
    """

    to: str
    sum: SumId
    model: str
    inputs: tuple[SumInput, ...]
    members: tuple[UpdateId, ...]
    images: int
    cut_through: bool
    receiver: str
    address: str
    ticket: bytes
    rate_bps: int
    seq: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelSum:
    """Give this sum up, whatever has arrived of it; who sends to it or waits for it is told."""

    to: str
    model: str
    sum: SumId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Fetch the model from ``source`` at ``address``, showing the ticket."""

    to: str
    get: GetId
    source: str
    address: str
    ticket: bytes
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """Send the model to whoever shows the ticket, once ``after_updates`` are settled; ``after`` as in Expect."""

    to: str
    get: GetId
    model: str
    ticket: bytes
    min_version: ModelVersion
    after_updates: tuple[UpdateId, ...]
    after: tuple[GetId, ...]
    rate_bps: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelServe:
    """Nobody will come for this get any more."""

    to: str
    model: str
    get: GetId
    reason: str


class HandOnTo(NamedTuple):
    """Who is to be handed a model on, and the ticket that it will show; ``rate_bps`` 0 means unpaced."""

    get: GetId
    ticket: bytes
    rate_bps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOn:
    """Fetch the model from ``source`` for ``get``, a get of the aggregator's own, and send it on while it comes.

    Args:
        ticket: to be shown to ``source``.
        targets: who will come for it; another aggregator's own get is one of a lower level.
    """

    to: str
    get: GetId
    model: str
    source: str
    address: str
    ticket: bytes
    targets: tuple[HandOnTo, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelHandOn:
    """Nobody will come any more for what was fetched as ``get``."""

    to: str
    model: str
    get: GetId
    reason: str


# Replication.


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Keep every update of this model that is committed from now on, until told what becomes of it.

    A new term begins with nothing kept: whatever an earlier one kept or sent is over. An empty ``receiver`` ends it.

    Args:
        term: counts the seeds of the model's replica.
        receiver, address: the replica.
    """

    to: str
    model: str
    term: int
    receiver: str
    address: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Put a committed update that was kept into the window of updates that are to be sent together.

    Args:
        lrs: learning rates of the versions since the window's last one up to that of this update, which is the last; of
            a window's first update its own alone.
        share: of the update in its version's step: 1, or of an iteration of n updates 1 / n.
    """

    to: str
    model: str
    term: int
    update: UpdateId
    lrs: tuple[float, ...]
    share: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Keep these updates no longer: the replica has them, or was seeded with them in it."""

    to: str
    model: str
    term: int
    updates: tuple[UpdateId, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate:
    """Send to the replica, showing the ticket, one update, or the window as it is now; another one begins then.

    Repeat it until the replica has it, or the term is over. ``rate_bps`` 0 means unpaced.
    """

    to: str
    model: str
    term: int
    transfer: TransferId
    ticket: bytes
    rate_bps: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A group of the primary's commit log, for its replica."""

    to: str
    model: str
    commits: tuple[Commit, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """Send weights and optimizer state, as they are at one version, to the replica at ``address``."""

    to: str
    model: str
    term: int
    transfer: SumId
    receiver: str
    address: str
    ticket: bytes
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Commit only what keeps the lead over this replica within these bounds (design, section 5, "Replication").

    Args:
        version: that the replica is at.
        held: updates whose bytes it has besides.
        norm, updates: as in :class:`Following`.
    """

    to: str
    model: str
    replica: str
    version: ModelVersion
    held: tuple[UpdateId, ...]
    norm: float
    updates: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfollowed:
    """The model has no replica any more: nothing bounds the primary's lead."""

    to: str
    model: str
    reason: str


class Peer(NamedTuple):
    """The other end of an edge, and the ticket that is shown on it; ``address`` is "" if it comes to us."""

    worker: str
    address: str
    ticket: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducePart:
    """What a worker does for one range of the tensor's bytes: two trees, into a root and out of it.

    Args:
        start, end: the range; ``start`` is a multiple of 16.
        inputs: who offers the sum of its own and others' tensors.
        parent: who is offered the sum of these and our own; None at the root.
        source: from whom the result is fetched; None at the root.
        takers: who fetches the result here.
    """

    start: int
    end: int
    inputs: tuple[Peer, ...]
    parent: Peer | None
    source: Peer | None
    takers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """Take part in this attempt; an earlier one for the same ``reduce`` is void. ``workers`` is how many take part."""

    to: str
    reduce: ReduceId
    round: RoundId
    workers: int
    parts: tuple[ReducePart, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReduce:
    """This attempt is void; there will be another."""

    to: str
    round: RoundId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceSettled:
    """Every one of ``workers`` workers has the result of this attempt."""

    to: str
    reduce: ReduceId
    round: RoundId
    workers: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceFailed:
    """Give this up; ``reason`` says why."""

    to: str
    reduce: ReduceId
    reason: str


Instruction = (
    Welcome
    | Refuse
    | MonitorAt
    | HostModel
    | Initialise
    | Send
    | Expect
    | Drop
    | Resolve
    | Void
    | Fetch
    | Serve
    | CancelServe
    | Sum
    | CancelSum
    | HandOn
    | CancelHandOn
    | Keep
    | Fold
    | Release
    | Replicate
    | Logged
    | Seed
    | Followed
    | Unfollowed
    | Reduce
    | CancelReduce
    | ReduceSettled
    | ReduceFailed
)
