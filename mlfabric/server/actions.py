"""What happens to a server besides the scheduler's instructions, and what its state machine asks its shell to do.

Pure values. Connections are known here by the number that the shell gave them.
"""

from __future__ import annotations

from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import (
    CancelServe,
    Conclude,
    Drop,
    Expect,
    Followed,
    FreeModel,
    GetId,
    HostModel,
    ModelVersion,
    NoteDropped,
    Prepare,
    Serve,
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
from mlfabric.transfer.offers import (
    Abandon,
    Answer,
    EpochBegan,
    GetBroken,
    GetServed,
    LineEvent,
    Offered,
    PayloadReceived,
    Refuse,
    Report,
    SeedOffered,
    TransferBroken,
    Wanted,
)
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
    "Refuse",
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
class Stopping:
    """This server is about to end: it prepares no unit of work any more; see :class:`Settled`."""


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
    | LineEvent
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
    connection: int
    size_bytes: int


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
class Settled:
    """Nothing is prepared any more on a server that is stopping: its parts are where the others are."""


Action = (
    CreateStore
    | FreeStore
    | Grant
    | Refuse
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
    | Report
    | Settled
)
