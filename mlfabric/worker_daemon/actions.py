"""What happens to a worker daemon besides instructions, and what its state machine asks its shell to do.

Pure values. What the worker asks for comes as the request that goes to the scheduler.
"""

from __future__ import annotations

from mlfabric.model.samples import Samples
from mlfabric.protocol import (
    Drop,
    Fetch,
    Fold,
    GetId,
    GetRequested,
    Initialise,
    Keep,
    MemberEvent,
    ModelVersion,
    NewServer,
    Outcome,
    PushRequested,
    Release,
    Replicate,
    Resolve,
    SamplesGranted,
    SamplesWanted,
    Send,
    SumId,
    Tick,
    TransferId,
    UpdateId,
)
from mlfabric.values import dataclass
from mlfabric.worker_daemon.round_actions import ReduceAction, ReduceEvent

__all__ = [
    "Action",
    "DaemonEvent",
    "Deliver",
    "DropCopies",
    "DropWindow",
    "EndReplicate",
    "FailPush",
    "FetchBroken",
    "FoldCopy",
    "FreezeWindow",
    "HandOver",
    "KeepAction",
    "KeepCopy",
    "ModelReceived",
    "OutcomeReceived",
    "ReplicaAnswered",
    "ReplicaBroken",
    "Request",
    "SamplesGivenUp",
    "SendBroken",
    "ServerAction",
    "Settle",
    "StartFetch",
    "StartReplicate",
    "StartSend",
    "StopTransfers",
    "TermBegan",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TermBegan:
    """A scheduler admitted us (again); it may know nothing of what is open.

    Args:
        clock, server_epoch: as in ``Welcome``.
    """

    term: int
    clock: int = 0
    server_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesGivenUp:
    """The worker computed an update from these samples and will not push it."""

    model: str
    samples: Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeReceived:
    """The server said on the data connection what became of an update."""

    update: UpdateId
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBroken:
    """The attempt to send an update ended without an outcome."""

    update: UpdateId
    ticket: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReceived:
    """A model is here completely."""

    get: GetId
    version: ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchBroken:
    """The attempt to fetch a model ended without one."""

    get: GetId
    ticket: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAnswered:
    """The replica has all of a transfer."""

    transfer: TransferId
    ticket: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBroken:
    """The attempt to send something to the replica ended before it had all of it."""

    transfer: TransferId
    ticket: bytes


DaemonEvent = (
    TermBegan
    | Keep
    | Fold
    | Release
    | Replicate
    | ReplicaAnswered
    | ReplicaBroken
    | PushRequested
    | SamplesGivenUp
    | SamplesGranted
    | SamplesWanted
    | GetRequested
    | OutcomeReceived
    | SendBroken
    | ModelReceived
    | FetchBroken
    | Send
    | Drop
    | Resolve
    | Fetch
    | Initialise
    | NewServer
    | Tick
    | ReduceEvent
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Send this event to the scheduler."""

    event: MemberEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Give the worker the samples that it has drawn, or the answer that there are none."""

    granted: SamplesGranted


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSend:
    """Offer the update to the server, and send it when granted."""

    plan: Send


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFetch:
    """Fetch the model."""

    plan: Fetch


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTransfers:
    """Give up every attempt to send an update or to fetch the model; nothing more is heard of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Resolve the handle of a push and let go of its tensors; ``update`` is its first part.

    ``samples`` are what it was computed from.
    """

    update: UpdateId
    outcome: Outcome
    reason: str
    samples: Samples = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailPush:
    """Fail the handle of a push: its parts ended in different ways, which must not be."""

    update: UpdateId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Resolve the handle of a get; ``get`` is its first part."""

    get: GetId
    version: ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepCopy:
    """Copy an update that is open, to keep it beyond its outcome."""

    update: UpdateId


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldCopy:
    """Put an update's copy behind the window, which begins with it if it is empty; see ``Fold``."""

    update: UpdateId
    lrs: tuple[float, ...]
    share: float
    begins: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCopies:
    """Keep these copies no longer."""

    updates: tuple[UpdateId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeWindow:
    """Let the window stand as it is, under this name; another one begins empty."""

    transfer: SumId


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReplicate:
    """Send an update's copy or a frozen window to the replica at ``address``."""

    plan: Replicate
    receiver: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReplicate:
    """Give up what is being sent under this name, if it is, and what is kept under it."""

    transfer: TransferId


@dataclass(frozen=True, slots=True, kw_only=True)
class DropWindow:
    """Forget what is folded and not frozen."""


KeepAction = KeepCopy | FoldCopy | DropCopies | FreezeWindow | StartReplicate | EndReplicate | DropWindow
ServerAction = HandOver | StartSend | StartFetch | StopTransfers | Settle | FailPush | Deliver | KeepAction
Action = Request | ServerAction | ReduceAction
