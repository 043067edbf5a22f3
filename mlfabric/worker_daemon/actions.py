"""What happens to a worker daemon besides instructions, and what its state machine asks its shell to do.

Pure values.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlfabric.protocol import (
    Drop,
    Fetch,
    GetId,
    GetRequested,
    MemberEvent,
    ModelVersion,
    Outcome,
    PushRequested,
    Resolve,
    Send,
    Tick,
    UpdateId,
)

__all__ = [
    "Action",
    "DaemonEvent",
    "Deliver",
    "EpochBegan",
    "FetchBroken",
    "GetCalled",
    "ModelReceived",
    "OutcomeReceived",
    "PushCalled",
    "Request",
    "SendBroken",
    "Settle",
    "StartFetch",
    "StartSend",
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


Action = Request | StartSend | StartFetch | Settle | Deliver
