"""What happens to an aggregator besides the scheduler's instructions, and what its state machine asks its shell to do.

Pure values. Connections that others opened are known here by the number that the shell gave them; each carries one
transfer at a time. A connection that the aggregator opens belongs to the sum or the get that it was opened for.
"""

from __future__ import annotations

from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import (
    CancelHandOn,
    CancelSum,
    DropReason,
    FreeModel,
    GetId,
    HandOn,
    HostModel,
    ModelVersion,
    Sum,
    SumId,
    TransferId,
)
from mlfabric.transfer.offers import (
    Abandon,
    Answer,
    GetBroken,
    GetServed,
    LineEvent,
    Offered,
    Outcomes,
    PayloadReceived,
    Refuse,
    Report,
    TermBegan,
    TransferBroken,
    Wanted,
)
from mlfabric.values import dataclass

__all__ = [
    "Abandon",
    "Action",
    "AggregatorEvent",
    "Answer",
    "FetchFailed",
    "ForgetModel",
    "ForgetSum",
    "GetBroken",
    "GetServed",
    "GiveUp",
    "Grant",
    "HandModelOn",
    "InputUnusable",
    "ModelArrived",
    "ModelComes",
    "OfferSum",
    "Offered",
    "OutcomesReceived",
    "PayloadReceived",
    "Refuse",
    "Report",
    "ReserveSum",
    "SealSum",
    "StartFetch",
    "StopFetch",
    "SumFailed",
    "SumSealed",
    "TermBegan",
    "TransferBroken",
    "Wanted",
    "dismissed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputUnusable:
    """An input has NaN or Inf in it, or was changed while it was sent; ``cause`` says which."""

    transfer: TransferId
    connection: int
    cause: DropReason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SumSealed:
    """The whole sum has been sent and sealed: its receiver has it."""

    sum: SumId


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomesReceived:
    """The receiver says what became of the updates in a sum."""

    sum: SumId
    outcomes: Outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class SumFailed:
    """The receiver refused the sum, or the connection to it broke."""

    sum: SumId
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelComes:
    """The model that was fetched as ``get`` begins to arrive."""

    get: GetId
    version: ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArrived:
    """The model that was fetched as ``get`` is here completely."""

    get: GetId


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    """The source refused the model that was fetched as ``get``, or the connection to it broke."""

    get: GetId
    detail: str


AggregatorEvent = (
    HostModel
    | FreeModel
    | Sum
    | CancelSum
    | HandOn
    | CancelHandOn
    | TermBegan
    | LineEvent
    | InputUnusable
    | SumSealed
    | OutcomesReceived
    | SumFailed
    | ModelComes
    | ModelArrived
    | FetchFailed
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveSum:
    """Allocate a sum's accumulator."""

    plan: Sum
    spec: ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Let an input's bytes come, and add them to the sum as its input ``index``."""

    sum: SumId
    index: int
    transfer: TransferId
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferSum:
    """Offer a sum to its receiver; when that grants it, send what is summed up as it becomes ready.

    Args:
        whole: the sum is complete and so small that it travels with its offer.
    """

    plan: Sum
    spec: ModelSpec
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SealSum:
    """Seal the sum once it is sent: all its inputs are sealed."""

    sum: SumId


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSum:
    """Free a sum's accumulator: its receiver has all of it."""

    plan: Sum
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetModel:
    """Free the buffer of a model that was handed on to everybody."""

    get: GetId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Tear a sum: close the connection to its receiver without a seal, and free its accumulator."""

    sum: SumId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFetch:
    """Reserve a buffer for the model and fetch it."""

    plan: HandOn
    spec: ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StopFetch:
    """Give up what is fetched as ``get`` and free its buffer; who is being handed it gets a torn payload."""

    get: GetId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandModelOn:
    """Send ``get`` the model that was fetched as ``source``, as it arrives; ``rate_bps`` 0 means unpaced."""

    source: GetId
    get: GetId
    connection: int
    version: ModelVersion
    digest: int
    rate_bps: int


Action = (
    ReserveSum
    | Grant
    | OfferSum
    | SealSum
    | ForgetSum
    | ForgetModel
    | GiveUp
    | Answer
    | Refuse
    | Abandon
    | StartFetch
    | StopFetch
    | HandModelOn
    | Report
)


def dismissed(connection: int, reason: str, *, is_running: bool) -> Refuse | Abandon:
    """Return how to send away whoever is at a connection: in the middle of a transfer no frame can be sent."""
    return Abandon(connection=connection) if is_running else Refuse(connection=connection, reason=reason)
