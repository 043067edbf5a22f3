"""What happens to a server besides the scheduler's instructions, and what its state machine asks its shell to do.

Pure values. Connections are known here by the number that the shell gave them.

A step is applied in one go; that of a unit of work of a model in parts (design, section 5, "Several servers") is
prepared first, and committed or discarded on the scheduler's word.
"""

from __future__ import annotations

from enum import Enum

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
from mlfabric.transfer.offers import (
    Abandon,
    Answer,
    GetBroken,
    GetServed,
    Offered,
    PayloadReceived,
    Refuse,
    Report,
    SeedOffered,
    TermBegan,
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
    "Forget",
    "FreeStore",
    "GetBroken",
    "GetServed",
    "Grant",
    "InstallInitial",
    "InstallRefused",
    "Installed",
    "ModelEvent",
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
    "TermBegan",
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
class StepPrepared:
    """The store made the first pass of a unit's step, which waits to be committed or discarded."""

    model: str
    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRefused:
    """The store found a unit's step not finite; nothing was changed.

    Args:
        culprits: those transfers of the unit that are to blame, at least one.
    """

    model: str
    unit: int
    detail: str
    culprits: tuple[TransferId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDiscarded:
    """The store threw a prepared step away."""

    model: str
    unit: int


ModelEvent = (
    Drop
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
    | PayloadReceived
    | TransferBroken
    | GetServed
    | GetBroken
    | StepDone
    | StepRefused
    | Installed
    | InstallRefused
)
"""What concerns one model that is here, if it is."""

ServerEvent = ModelEvent | HostModel | FreeModel | StoreFreed | Stopping | TermBegan | Offered | Wanted


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareStep:
    """Make the first pass of a unit's step in a copy of these buffers, which stay as they are; see ``ApplyStep``.

    Args:
        unit: of work, at most one of a model is prepared at a time.
    """

    model: str
    unit: int
    transfers: tuple[TransferId, ...]
    kind: StepKind
    lrs: tuple[float, ...]
    version: ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitStep:
    """Take the step that was prepared out of these transfers."""

    model: str
    unit: int
    transfers: tuple[TransferId, ...]
    version: ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardStep:
    """Throw the step away that was prepared."""

    model: str
    unit: int


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
