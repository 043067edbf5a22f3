"""What happens to a server besides the scheduler's instructions, and what its state machine asks its shell to do.

Pure values. Connections are known here by the number that the shell gave them.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlfabric.protocol import (
    CancelServe,
    Expect,
    GetId,
    HostModel,
    MemberEvent,
    ModelVersion,
    Outcome,
    Serve,
    UpdateId,
    Void,
)
from mlfabric.specs import ModelSpec

__all__ = [
    "Abandon",
    "Action",
    "Answer",
    "ApplyStep",
    "CreateStore",
    "EpochBegan",
    "Forget",
    "GetBroken",
    "GetServed",
    "Grant",
    "InstallInitial",
    "InstallRefused",
    "Installed",
    "Offered",
    "PayloadReceived",
    "RefuseOffer",
    "RefuseWant",
    "Report",
    "ServeModel",
    "ServerEvent",
    "StepDone",
    "StepRefused",
    "UpdateBroken",
    "Wanted",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegan:
    """A scheduler of this epoch admitted us: whatever an older one planned and nobody started is void."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A worker offers an update on connection ``connection``."""

    connection: int
    update: UpdateId
    ticket: bytes
    length: int
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadReceived:
    """All bytes of an update are in its buffer."""

    update: UpdateId
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBroken:
    """The connection of an update broke."""

    update: UpdateId
    connection: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A worker has a buffer ready for the model on connection ``connection``."""

    connection: int
    get: GetId
    ticket: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GetServed:
    """The model has been sent."""

    get: GetId
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBroken:
    """The connection of a get broke, before or while it was served."""

    get: GetId
    connection: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """The store applied an update."""

    model: str
    update: UpdateId
    step_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRefused:
    """The store found the step not finite and changed nothing."""

    model: str
    update: UpdateId
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The store took the initial weights."""

    model: str
    update: UpdateId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRefused:
    """The store refused the initial weights and changed nothing."""

    model: str
    update: UpdateId
    detail: str


ServerEvent = (
    HostModel
    | Expect
    | Void
    | Serve
    | CancelServe
    | EpochBegan
    | Offered
    | PayloadReceived
    | UpdateBroken
    | Wanted
    | GetServed
    | GetBroken
    | StepDone
    | StepRefused
    | Installed
    | InstallRefused
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStore:
    """Allocate a store for this model."""

    spec: ModelSpec
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Let the update's bytes come, into a buffer of its own."""

    update: UpdateId
    model: str
    connection: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseOffer:
    """Refuse what is offered on this connection; the worker asks the scheduler again."""

    update: UpdateId
    connection: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """Close this connection: its transfer was voided, or offered anew on another one."""

    update: UpdateId
    connection: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Tell the worker what became of its update."""

    update: UpdateId
    connection: int
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Free the update's buffer."""

    update: UpdateId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyStep:
    """Apply the update's buffer with this learning rate, making ``version``."""

    model: str
    update: UpdateId
    lr: float
    version: ModelVersion
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallInitial:
    """Take the update's buffer as the initial weights."""

    model: str
    update: UpdateId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeModel:
    """Pin the current version and send it; ``rate_bps`` 0 means unpaced."""

    get: GetId
    model: str
    connection: int
    version: ModelVersion
    rate_bps: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseWant:
    """Refuse a get on this connection."""

    get: GetId
    connection: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Send this event to the scheduler; ``again`` if it was sent before and may have been lost."""

    event: MemberEvent
    reason: str = ""
    again: bool = False


Action = (
    CreateStore
    | Grant
    | RefuseOffer
    | Abandon
    | Answer
    | Forget
    | ApplyStep
    | InstallInitial
    | ServeModel
    | RefuseWant
    | Report
)
