"""What happens to a server besides the scheduler's instructions, and what its state machine asks its shell to do.

Pure values. Connections are known here by the number that the shell gave them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mlfabric.protocol import (
    CancelServe,
    Drop,
    Expect,
    Followed,
    GetId,
    HostModel,
    MemberEvent,
    ModelVersion,
    Outcome,
    Replicate,
    Serve,
    ServerHolds,
    TransferId,
    Unfollowed,
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
    "HandOn",
    "InstallInitial",
    "InstallRefused",
    "Installed",
    "Offered",
    "PayloadReceived",
    "RefuseOffer",
    "RefuseWant",
    "Report",
    "SeedOffered",
    "SeedTaken",
    "ServeModel",
    "ServerEvent",
    "StepDone",
    "StepKind",
    "StepRefused",
    "TransferBroken",
    "Wanted",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegan:
    """A scheduler of this epoch admitted us: whatever an older one planned and nobody started is void."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOffered:
    """What comes with weights and state: what the primary holds at that version, and how many steps ADAM made."""

    holds: ServerHolds
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A worker or an aggregator offers a transfer on connection ``connection``; or a primary a seed to its replica."""

    connection: int
    transfer: TransferId
    ticket: bytes
    length: int
    digest: int
    seed: SeedOffered | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadReceived:
    """All bytes of a transfer are in its buffer."""

    transfer: TransferId
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferBroken:
    """The connection of a transfer broke."""

    transfer: TransferId
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
    """The store applied these transfers together; ``step_norm`` is the l2 norm of the whole change."""

    model: str
    transfers: tuple[TransferId, ...]
    step_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRefused:
    """The store found the step not finite; weights and state are as they were.

    Args:
        transfers: that were to be applied together.
        culprits: those of them that are to blame.
        spoilt: those that are not, and whose buffers hold them no more.
    """

    model: str
    transfers: tuple[TransferId, ...]
    detail: str
    culprits: tuple[TransferId, ...]
    spoilt: tuple[TransferId, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedTaken:
    """A copy of the present version's weights and state was taken for a replica.

    Args:
        history_norm, weights_norm: l2 norms of the momentum's history (0 without) and of the PARAMETER tensors.
        steps: how many ADAM made.
    """

    model: str
    history_norm: float
    weights_norm: float
    steps: int


ServerEvent = (
    HostModel
    | Drop
    | Followed
    | Replicate
    | Unfollowed
    | SeedTaken
    | Expect
    | Void
    | Serve
    | CancelServe
    | EpochBegan
    | Offered
    | PayloadReceived
    | TransferBroken
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
    """Let the transfer's bytes come, into a buffer of its own."""

    transfer: TransferId
    model: str
    connection: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseOffer:
    """Refuse what was offered on this connection; the worker asks the scheduler again, an aggregator gives it up."""

    transfer: TransferId
    connection: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """Close this connection: its transfer was voided, or offered anew on another one."""

    transfer: TransferId
    connection: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Tell the sender what became of each update in its transfer."""

    transfer: TransferId
    connection: int
    outcomes: tuple[tuple[UpdateId, Outcome], ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Free the transfer's buffer."""

    transfer: TransferId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOn:
    """Send the bytes of a transfer on to the replica, from its buffer; ``Forget`` or a step of it ends that."""

    order: Replicate
    reason: str


class StepKind(Enum):
    """How transfers become a step."""

    ONE = "the step of one update"
    SUM = "the steps of a sum's members, at once"
    MEAN = "one step of the mean of all members"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyStep:
    """Apply the buffers of these transfers together.

    Args:
        transfers: one; of a mean any number, to be added up in this order.
        lrs: the learning rate of each member, in the order of commits.
        version: the (last) one that is made.
    """

    model: str
    transfers: tuple[TransferId, ...]
    kind: StepKind
    lrs: tuple[float, ...]
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
    | HandOn
    | ApplyStep
    | InstallInitial
    | ServeModel
    | RefuseWant
    | Report
)
