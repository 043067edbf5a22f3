"""What the parts of a model add on the wire: units of work that are prepared and concluded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlfabric.protocol import Conclude, Instruction, MemberEvent, Prepare, Prepared
from mlfabric.v1 import session_pb2 as session
from mlfabric.wire.values import (
    REASON_OF,
    REASON_TO,
    enum_of,
    fill_request,
    fill_transfer,
    fill_version,
    from_transfer_id,
    from_update_id,
    from_version,
    malformed,
    need,
)

__all__ = ["FILL", "FILL_EVENT", "READ", "READ_EVENT"]


def _fill_prepared(message: session.Prepared, event: Prepared) -> None:
    message.server = event.server
    message.model = event.model
    message.unit = event.unit
    message.accepted = event.accepted
    for update in event.culprits:
        fill_request(message.culprits.add(), update)
    if event.cause is not None:
        message.cause = REASON_TO[event.cause]
    message.detail = event.detail


def _from_prepared(message: session.Prepared, member: str) -> Prepared:
    if message.server != member:
        raise malformed("Prepared.server", message.server, f"{member!r}, whose session this is")
    return Prepared(
        server=message.server,
        model=message.model,
        unit=message.unit,
        accepted=message.accepted,
        culprits=tuple(from_update_id(update) for update in message.culprits),
        cause=enum_of(REASON_OF, message.cause, "Prepared.cause") if message.cause else None,
        detail=message.detail,
    )


def _fill_prepare(message: session.Prepare, value: Prepare) -> None:
    message.model = value.model
    message.unit = value.unit
    for transfer in value.transfers:
        fill_transfer(message.transfers.add(), transfer)
    fill_version(message.version, value.version)


def _from_prepare(message: session.Prepare, to: str, reason: str) -> Prepare:
    need(message, "version")
    if not message.transfers:
        raise malformed("Prepare.transfers", (), "at least 1")
    return Prepare(
        to=to,
        model=message.model,
        unit=message.unit,
        transfers=tuple(from_transfer_id(transfer) for transfer in message.transfers),
        version=from_version(message.version),
        reason=reason,
    )


def _fill_conclude(message: session.Conclude, value: Conclude) -> None:
    message.model = value.model
    message.unit = value.unit
    message.commit = value.commit


def _from_conclude(message: session.Conclude, to: str, reason: str) -> Conclude:
    return Conclude(to=to, model=message.model, unit=message.unit, commit=message.commit, reason=reason)


FILL_EVENT: Mapping[type, Callable[[session.Event, Any], None]] = {
    Prepared: lambda message, event: _fill_prepared(message.prepared, event),
}
READ_EVENT: Mapping[str, Callable[[Any, str], MemberEvent]] = {"prepared": _from_prepared}
FILL: Mapping[type, Callable[[session.Instruction, Any], None]] = {
    Prepare: lambda message, value: _fill_prepare(message.prepare, value),
    Conclude: lambda message, value: _fill_conclude(message.conclude, value),
}
READ: Mapping[str, Callable[[Any, str, str], Instruction]] = {
    "prepare": _from_prepare,
    "conclude": _from_conclude,
}
