"""Identities, versions, outcomes and enums on the wire, and the errors of all of :mod:`mlfabric.wire`.

``fill_...`` writes into a message that is already there: three times as fast as making one and having it copied.
An enum's tables are made from one list of pairs; value 0 and values of a newer contract are in no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from google.protobuf.message import Message

from mlfabric.errors import UsageError
from mlfabric.protocol import (
    Committed,
    Dropped,
    DropReason,
    GetId,
    Lost,
    ModelVersion,
    Outcome,
    ReduceId,
    SumId,
    TransferEnd,
    TransferId,
    UpdateId,
    UpdateKind,
)
from mlfabric.v1 import data_pb2 as data
from mlfabric.v1 import session_pb2 as session
from mlfabric.v1 import types_pb2 as types

__all__ = [
    "END_OF",
    "END_TO",
    "KIND_OF",
    "KIND_TO",
    "REASON_OF",
    "REASON_TO",
    "enum_of",
    "fill_outcome",
    "fill_request",
    "fill_transfer",
    "fill_version",
    "from_get_id",
    "from_outcome",
    "from_outcomes",
    "from_sum_id",
    "from_transfer_id",
    "from_update_id",
    "from_version",
    "malformed",
    "need",
    "to_get_id",
    "to_outcomes",
    "to_transfer_id",
    "to_version",
]

_Value = TypeVar("_Value", bound=Enum)

KIND_TO = {
    UpdateKind.GRADIENT: session.UPDATE_KIND_GRADIENT,
    UpdateKind.INITIAL: session.UPDATE_KIND_INITIAL,
    UpdateKind.STATE: session.UPDATE_KIND_STATE,
}
REASON_TO = {
    DropReason.DEADLINE_PAST: session.DROP_CAUSE_DEADLINE_PAST,
    DropReason.DEADLINE_CONFLICT: session.DROP_CAUSE_DEADLINE_CONFLICT,
    DropReason.NEXT_IS_FASTER: session.DROP_CAUSE_NEXT_IS_FASTER,
    DropReason.NO_CAPACITY: session.DROP_CAUSE_NO_CAPACITY,
    DropReason.DELAY_BOUND: session.DROP_CAUSE_DELAY_BOUND,
    DropReason.NOT_FINITE: session.DROP_CAUSE_NOT_FINITE,
    DropReason.ROLLED_BACK: session.DROP_CAUSE_ROLLED_BACK,
    DropReason.DUPLICATE: session.DROP_CAUSE_DUPLICATE,
    DropReason.FUTURE_VERSION: session.DROP_CAUSE_FUTURE_VERSION,
    DropReason.WRONG_LAYOUT: session.DROP_CAUSE_WRONG_LAYOUT,
    DropReason.CHANGED: session.DROP_CAUSE_CHANGED,
    DropReason.NOT_REPLICATED: session.DROP_CAUSE_NOT_REPLICATED,
    DropReason.WORKER_GONE: session.DROP_CAUSE_WORKER_GONE,
}
END_TO = {
    TransferEnd.RECEIVED: session.TRANSFER_END_RECEIVED,
    TransferEnd.SERVED: session.TRANSFER_END_SERVED,
    TransferEnd.BROKEN: session.TRANSFER_END_BROKEN,
    TransferEnd.VOIDED: session.TRANSFER_END_VOIDED,
    TransferEnd.DISCARDED: session.TRANSFER_END_DISCARDED,
    TransferEnd.TORN: session.TRANSFER_END_TORN,
}
KIND_OF: Mapping[int, UpdateKind] = {number: value for value, number in KIND_TO.items()}
REASON_OF: Mapping[int, DropReason] = {number: value for value, number in REASON_TO.items()}
END_OF: Mapping[int, TransferEnd] = {number: value for value, number in END_TO.items()}


def malformed(field: str, given: object, allowed: str) -> UsageError:
    """Return the error for a field that cannot be used."""
    return UsageError(f"{field}={given!r}; allowed: {allowed}")


def need(message: Message, field: str) -> None:
    """Refuse a message that lacks this sub-message.

    Raises:
        UsageError: it does.
    """
    if not message.HasField(field):
        raise UsageError(f"{message.DESCRIPTOR.name}.{field} is missing; it must be set")


def enum_of(table: Mapping[int, _Value], number: int, field: str) -> _Value:
    """Return the value that an enum's number stands for.

    Raises:
        UsageError: the number is 0 (unspecified) or unknown.
    """
    value = table.get(number)
    if value is None:
        raise malformed(field, number, ", ".join(f"{n} ({v.name})" for n, v in table.items()))
    return value


def fill_request(message: types.RequestId, request: UpdateId | GetId | ReduceId) -> None:
    """Write an id into a message."""
    message.worker, message.incarnation, message.counter = request


def fill_transfer(message: types.TransferId, transfer: TransferId) -> None:
    """Write the id of an update or a sum into a message."""
    if isinstance(transfer, SumId):
        message.sum.epoch, message.sum.counter = transfer
    else:
        fill_request(message.update, transfer)


def to_transfer_id(transfer: TransferId) -> types.TransferId:
    """Make the message of the id of an update or a sum."""
    message = types.TransferId()
    fill_transfer(message, transfer)
    return message


def from_transfer_id(message: types.TransferId) -> TransferId:
    """Return the id of an update or a sum that a message holds.

    Raises:
        UsageError: it holds none.
    """
    which = message.WhichOneof("transfer")
    if which is None:
        raise malformed("TransferId.transfer", None, "update or sum")
    return from_sum_id(message.sum) if which == "sum" else from_update_id(message.update)


def from_sum_id(message: types.SumId) -> SumId:
    """Return the sum's id that a message holds."""
    return SumId(message.epoch, message.counter)


def fill_version(message: types.ModelVersion, version: ModelVersion) -> None:
    """Write a version into a message."""
    message.epoch, message.number = version


def from_update_id(message: types.RequestId) -> UpdateId:
    """Return the update's id that a message holds."""
    return UpdateId(message.worker, message.incarnation, message.counter)


def to_get_id(get: GetId) -> types.RequestId:
    """Make the message of a get's id."""
    return types.RequestId(worker=get.worker, incarnation=get.incarnation, counter=get.counter)


def from_get_id(message: types.RequestId) -> GetId:
    """Return the get's id that a message holds."""
    return GetId(message.worker, message.incarnation, message.counter)


def to_version(version: ModelVersion) -> types.ModelVersion:
    """Make the message of a model's version."""
    return types.ModelVersion(epoch=version.epoch, number=version.number)


def from_version(message: types.ModelVersion) -> ModelVersion:
    """Return the model's version that a message holds."""
    return ModelVersion(message.epoch, message.number)


def fill_outcome(message: session.Outcome, outcome: Outcome) -> None:
    """Write an outcome into a message."""
    match outcome:
        case Committed():
            fill_version(message.committed.version, outcome.version)
            message.committed.tau = outcome.tau
        case Dropped():
            message.dropped.cause = REASON_TO[outcome.cause]
            message.dropped.detail = outcome.detail
        case Lost():
            message.lost.detail = outcome.detail


def to_outcomes(outcomes: Mapping[UpdateId, Outcome], server_epoch: int) -> data.OutcomeMeta:
    """Make the message that says what became of the updates in a transfer."""
    message = data.OutcomeMeta(server_epoch=server_epoch)
    for update, outcome in outcomes.items():
        entry = message.outcomes.add()
        fill_request(entry.update, update)
        fill_outcome(entry.outcome, outcome)
    return message


def from_outcomes(message: data.OutcomeMeta) -> dict[UpdateId, Outcome]:
    """Return what became of the updates in a transfer.

    Raises:
        UsageError: an entry is incomplete.
    """
    for entry in message.outcomes:
        need(entry, "update")
    return {from_update_id(entry.update): from_outcome(entry.outcome) for entry in message.outcomes}


def from_outcome(message: session.Outcome) -> Outcome:
    """Return the outcome that a message holds.

    Raises:
        UsageError: it holds none, or one without version or known cause.
    """
    which = message.WhichOneof("outcome")
    if which == "committed":
        need(message.committed, "version")
        return Committed(version=from_version(message.committed.version), tau=message.committed.tau)
    if which == "dropped":
        cause = enum_of(REASON_OF, message.dropped.cause, "Dropped.cause")
        return Dropped(cause=cause, detail=message.dropped.detail)
    if which == "lost":
        return Lost(detail=message.lost.detail)
    raise malformed("Outcome.outcome", None, "committed, dropped or lost")
