"""What happens to a worker daemon besides instructions, and what its state machine asks its shell to do.

Pure values.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlfabric.protocol import (
    CancelReduce,
    Drop,
    Fetch,
    GetId,
    GetRequested,
    MemberEvent,
    ModelVersion,
    Outcome,
    PushRequested,
    Reduce,
    ReduceFailed,
    ReduceId,
    ReduceRequested,
    ReduceSettled,
    Resolve,
    RoundId,
    Send,
    Tick,
    UpdateId,
)

__all__ = [
    "Action",
    "AttemptEnded",
    "DaemonEvent",
    "Deliver",
    "EpochBegan",
    "FailReduce",
    "FetchBroken",
    "FinishReduce",
    "GetCalled",
    "ModelReceived",
    "OutcomeReceived",
    "PushCalled",
    "ReduceAction",
    "ReduceCalled",
    "ReduceEvent",
    "Request",
    "SendBroken",
    "Settle",
    "StartAttempt",
    "StartFetch",
    "StartSend",
    "StopAttempt",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegan:
    """A scheduler admitted us (again); it may know nothing of what is open."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PushCalled:
    """The worker handed over an update."""

    request: PushRequested


@dataclass(frozen=True, slots=True, kw_only=True)
class GetCalled:
    """The worker wants the model."""

    request: GetRequested


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
    detail: str


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
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceCalled:
    """The worker handed over a tensor for an AllReduce."""

    request: ReduceRequested


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """The result of an attempt at a round is here, or it never will be: then ``detail`` says why."""

    round: RoundId
    detail: str = ""


ReduceEvent = ReduceCalled | AttemptEnded | Reduce | CancelReduce | ReduceSettled | ReduceFailed

DaemonEvent = (
    EpochBegan
    | PushCalled
    | GetCalled
    | OutcomeReceived
    | SendBroken
    | ModelReceived
    | FetchBroken
    | Send
    | Drop
    | Resolve
    | Fetch
    | Tick
    | ReduceEvent
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Send this event to the scheduler."""

    event: MemberEvent
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSend:
    """Offer the update to the server, and send it when granted."""

    plan: Send
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFetch:
    """Fetch the model."""

    plan: Fetch
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Resolve the handle of a push and let go of its tensors."""

    update: UpdateId
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Resolve the handle of a get."""

    get: GetId
    version: ModelVersion
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempt:
    """Take part in a round."""

    plan: Reduce
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAttempt:
    """Take part in this round no more."""

    round: RoundId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishReduce:
    """Resolve the handle of an AllReduce: the result is here, ``workers`` took part."""

    reduce: ReduceId
    workers: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailReduce:
    """Fail the handle of an AllReduce; the tensor is as it was."""

    reduce: ReduceId
    reason: str


ReduceAction = StartAttempt | StopAttempt | FinishReduce | FailReduce
Action = Request | StartSend | StartFetch | Settle | Deliver | ReduceAction
