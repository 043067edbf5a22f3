"""What happens to a server besides the scheduler's instructions, and what its state machine asks its shell to do.

Pure values. Connections are known here by the number that the shell gave them.
"""

from __future__ import annotations

from mlfabric.protocol import (
    CancelServe,
    Conclude,
    Drop,
    Expect,
    Followed,
    FreeModel,
    GetId,
    HostModel,
    MemberEvent,
    ModelVersion,
    NoteDropped,
    Outcome,
    Prepare,
    Serve,
    ServerHolds,
    TransferId,
    Unfollowed,
    UpdateId,
    Void,
)
from mlfabric.server.step_actions import (
    ApplyStep,
    CommitStep,
    DiscardStep,
    PrepareRefused,
    PrepareStep,
    StepDiscarded,
    StepDone,
    StepKind,
    StepPrepared,
    StepRefused,
)
from mlfabric.specs import ModelSpec
from mlfabric.values import dataclass

__all__ = [
    "Abandon",
    "Action",
    "Answer",
    "ApplyStep",
    "CommitStep",
    "CreateStore",
    "DiscardStep",
    "EpochBegan",
    "Forget",
    "FreeStore",
    "GetBroken",
    "GetServed",
    "Grant",
    "InstallInitial",
    "InstallRefused",
    "Installed",
    "Offered",
    "PayloadReceived",
    "PinModel",
    "PrepareRefused",
    "PrepareStep",
    "RefuseOffer",
    "RefuseWant",
    "Report",
    "SeedOffered",
    "SeedTaken",
    "ServeModel",
    "ServerEvent",
    "Settled",
    "StepDiscarded",
    "StepDone",
    "StepKind",
    "StepPrepared",
    "StepRefused",
    "Stopping",
    "StoreFreed",
    "TransferBroken",
    "UnpinModel",
    "Wanted",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegan:
    """A scheduler of this epoch admitted us: whatever an older one planned and nobody started is void."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """This server is about to end: it prepares no unit of work any more; see :class:`Settled`."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFreed:
    """Nothing of a model that has ended is in memory any more."""

    model: str


ServerEvent = (
    HostModel
    | FreeModel
    | StoreFreed
    | Drop
    | NoteDropped
    | Followed
    | Unfollowed
    | SeedTaken
    | Expect
    | Void
    | Serve
    | CancelServe
    | Prepare
    | Conclude
    | StepPrepared
    | PrepareRefused
    | StepDiscarded
    | Stopping
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
class FreeStore:
    """Free a model's store, its checkpoints and these buffers, once nothing of it runs; see :class:`StoreFreed`."""

    model: str
    transfers: tuple[TransferId, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Let the transfer's bytes come, into a buffer of its own."""

    transfer: TransferId
    model: str
    connection: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseOffer:
    """Refuse what was offered on this connection; the worker asks the scheduler again, an aggregator gives it up."""

    transfer: TransferId
    connection: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """Close this connection: its transfer was voided, or offered anew on another one, or who it is for is gone."""

    transfer: TransferId | GetId
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Tell the sender what became of each update in its transfer."""

    transfer: TransferId
    connection: int
    outcomes: tuple[tuple[UpdateId, Outcome], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Free the transfer's buffer."""

    transfer: TransferId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallInitial:
    """Take the update's buffer as the initial weights."""

    model: str
    update: UpdateId


@dataclass(frozen=True, slots=True, kw_only=True)
class PinModel:
    """Pin the current version for a get, which will be served it whatever is committed meanwhile."""

    get: GetId
    model: str
    version: ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinModel:
    """Unpin what was pinned for a get that will not be served."""

    get: GetId
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeModel:
    """Send what was pinned for this get, else pin the current version and send it; ``rate_bps`` 0 means unpaced."""

    get: GetId
    model: str
    connection: int
    version: ModelVersion
    rate_bps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseWant:
    """Refuse a get on this connection."""

    get: GetId
    connection: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Nothing is prepared any more on a server that is stopping: its parts are where the others are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Send this event to the scheduler; ``again`` if it was sent before and may have been lost."""

    event: MemberEvent
    again: bool = False


Action = (
    CreateStore
    | FreeStore
    | Grant
    | RefuseOffer
    | Abandon
    | Answer
    | Forget
    | ApplyStep
    | PrepareStep
    | CommitStep
    | DiscardStep
    | InstallInitial
    | PinModel
    | UnpinModel
    | ServeModel
    | RefuseWant
    | Report
    | Settled
)
