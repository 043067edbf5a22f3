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

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from mlfabric.specs import Member, ModelSpec

__all__ = [
    "AppliedIds",
    "CancelServe",
    "Commit",
    "CommitsReported",
    "Committed",
    "Drop",
    "DropReason",
    "Dropped",
    "Expect",
    "Fetch",
    "GetId",
    "GetRequested",
    "HostModel",
    "InitialReceived",
    "Initialise",
    "Instruction",
    "LinkRate",
    "LinksReported",
    "Lost",
    "MemberEvent",
    "MemberJoined",
    "MemberLeft",
    "MemberSilent",
    "MemoryReported",
    "ModelVersion",
    "MonitorAt",
    "Outcome",
    "PushRequested",
    "Refuse",
    "RefuseReason",
    "Resolve",
    "Send",
    "Serve",
    "ServerHolds",
    "Tick",
    "TransferEnd",
    "TransferEnded",
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


class ModelVersion(NamedTuple):
    """A model's version; ``epoch`` grows when a server resumes or is promoted, so pairs compare rightly."""

    epoch: int
    number: int


class UpdateKind(Enum):
    """What an update's bytes are."""

    GRADIENT = "gradient"
    INITIAL = "initial weights"


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
class MemberJoined:
    """A member registers, for the first time or again.

    ``spec`` is the model that a worker trains, ``held`` are the models that a server brings; ``holds_initial`` says
    that a worker can provide initial weights.
    """

    member: Member
    spec: ModelSpec | None = None
    held: tuple[ModelSpec, ...] = ()
    holds_initial: bool = False


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
class WorkerHolds:
    """What a worker had open when it (re)joined: everything without an outcome is asked for again."""

    worker: str
    pushes: tuple[PushRequested, ...]
    gets: tuple[GetRequested, ...]


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
    """What a server holds of one model when it (re)joins."""

    server: str
    spec: ModelSpec
    version: ModelVersion
    initialised: bool
    applied: tuple[AppliedIds, ...] = ()
    received: tuple[UpdateId, ...] = ()
    epoch_base: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One entry of a server's commit log as the scheduler sees it."""

    update: UpdateId
    version: ModelVersion
    tau: int
    lr: float
    step_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitsReported:
    """A server committed these, in this order."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEnded:
    """A server's report on one transfer; ``cause`` is set when the update was discarded."""

    server: str
    model: str
    transfer: UpdateId | GetId
    end: TransferEnd
    cause: DropReason | None = None
    detail: str = ""


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
    | WorkerHolds
    | ServerHolds
    | CommitsReported
    | InitialReceived
    | TransferEnded
    | LinksReported
    | MemoryReported
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
    """Offer this update to ``server`` at ``address``, showing the ticket; ``rate_bps`` 0 means unpaced."""

    to: str
    update: UpdateId
    server: str
    address: str
    seq: int
    ticket: bytes
    rate_bps: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """Receive this update and commit it at ``seq``; an update expected again moves to its new ``seq``.

    Args:
        after: transfers that the plan ends before this one starts; it is not granted while one of them runs.
        tau_max: the bound that its delay is held to.
    """

    to: str
    update: UpdateId
    model: str
    seq: int
    ticket: bytes
    size_bytes: int
    computed_from: ModelVersion
    tau_max: int
    kind: UpdateKind
    resolved_below: int
    after: tuple[UpdateId, ...]
    reason: str


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
    """Do not wait for this update any more, unless it is here completely."""

    to: str
    model: str
    update: UpdateId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Fetch the model from ``server`` at ``address``, showing the ticket."""

    to: str
    get: GetId
    server: str
    address: str
    ticket: bytes
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """Send the model to whoever shows the ticket, once ``after_update`` is settled; ``after`` as in Expect."""

    to: str
    get: GetId
    model: str
    ticket: bytes
    min_version: ModelVersion
    after_update: UpdateId | None
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
)
