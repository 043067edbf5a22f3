"""What happens to a worker daemon besides instructions, and what its state machine asks its shell to do.

Pure values. What the worker asks for comes as the request that goes to the scheduler.
"""

from __future__ import annotations

from mlfabric.model.samples import Samples
from mlfabric.protocol import (
    BeginState,
    CancelReduce,
    Drop,
    Fetch,
    FetchState,
    Fold,
    GetId,
    GetRequested,
    GiveState,
    Initialise,
    Keep,
    MemberEvent,
    ModelVersion,
    NewServer,
    Outcome,
    PassReduce,
    Probe,
    PushRequested,
    Reduce,
    ReduceFailed,
    ReduceId,
    ReduceRequested,
    ReduceSettled,
    Release,
    Replicate,
    Resolve,
    RoundId,
    SamplesGranted,
    SamplesWanted,
    Send,
    SumId,
    Tick,
    TransferId,
    UpdateId,
)
from mlfabric.values import dataclass

__all__ = [
    "Action",
    "AttemptEnded",
    "AttemptSlow",
    "DaemonEvent",
    "Deliver",
    "DropCopies",
    "DropWindow",
    "EndReplicate",
    "FailPush",
    "FailReduce",
    "FetchBroken",
    "FinishReduce",
    "FoldCopy",
    "FreezeWindow",
    "HandOver",
    "KeepAction",
    "KeepCopy",
    "KeepState",
    "ModelReceived",
    "OutcomeReceived",
    "PassOver",
    "ProbeEnded",
    "ReduceAction",
    "ReduceCalled",
    "ReduceEvent",
    "ReduceWithdrawn",
    "ReplicaAnswered",
    "ReplicaBroken",
    "Request",
    "SamplesGivenUp",
    "SendBroken",
    "ServerAction",
    "Settle",
    "StartAttempt",
    "StartFetch",
    "StartFetchState",
    "StartGiveState",
    "StartProbes",
    "StartReplicate",
    "StartSend",
    "StateEnded",
    "StopAttempt",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceCalled:
    """The worker handed over a tensor for an AllReduce."""

    request: ReduceRequested


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceWithdrawn:
    """A tensor that was offered while it was made is to be in no round; ``reason`` says why."""

    reduce: ReduceId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """The result of an attempt at a round is here, or it never will be: then ``detail`` says why.

    ``up_bps`` and ``down_bps`` are what this host's link carried at best meanwhile; 0 if unknown.
    """

    round: RoundId
    detail: str = ""
    up_bps: int = 0
    down_bps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSlow:
    """An attempt goes on slowly: at its pace the rest takes ``left_ns``."""

    round: RoundId
    left_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEnded:
    """A probe has come, or most of it: after which round it was sent, by whom, and how fast it came."""

    model: str
    round: RoundId
    source: str
    bps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEnded:
    """Model and optimizer state of this version have come from a peer, or ``detail`` says why not.

    ``round`` as in the order to fetch them.
    """

    round: RoundId
    version: int = 0
    is_loan: bool = False
    detail: str = ""


ReduceEvent = (
    ReduceCalled
    | ReduceWithdrawn
    | AttemptEnded
    | AttemptSlow
    | ProbeEnded
    | StateEnded
    | Reduce
    | CancelReduce
    | ReduceSettled
    | ReduceFailed
    | PassReduce
    | BeginState
    | FetchState
    | GiveState
    | Probe
)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempt:
    """Take part in a round."""

    plan: Reduce


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAttempt:
    """Take part in this round no more."""

    round: RoundId


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProbes:
    """Send and expect probes; those of an earlier request are void."""

    plan: Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishReduce:
    """The result of a round is here, and with all others; ``workers`` contributed. Resolve the handle, if any.

    The model is to apply the result if that ``follows`` on its version. That of a guest, who is lent the weights now
    and then, does not.
    """

    plan: Reduce
    workers: int
    follows: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOver:
    """Resolve the handle of a gradient that is in no round: keep it for the next one, or drop it."""

    reduce: ReduceId
    keep: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepState:
    """Go on with the state that is here: it is the model's at this version. Stop to fetch another one."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFetchState:
    """Fetch model and optimizer state; results that wait to be applied are void."""

    plan: FetchState


@dataclass(frozen=True, slots=True, kw_only=True)
class StartGiveState:
    """Let a peer fetch model and optimizer state."""

    plan: GiveState


@dataclass(frozen=True, slots=True, kw_only=True)
class FailReduce:
    """Fail the handle of an AllReduce; the tensor is as it was."""

    reduce: ReduceId
    reason: str


ReduceAction = (
    StartAttempt
    | StopAttempt
    | StartProbes
    | FinishReduce
    | FailReduce
    | PassOver
    | KeepState
    | StartFetchState
    | StartGiveState
)
KeepAction = KeepCopy | FoldCopy | DropCopies | FreezeWindow | StartReplicate | EndReplicate | DropWindow
ServerAction = HandOver | StartSend | StartFetch | StopTransfers | Settle | FailPush | Deliver | KeepAction
Action = Request | ServerAction | ReduceAction
