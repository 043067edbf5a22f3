"""Instructions on the wire: what the scheduler tells a member.

The reason is on the outer message, the receiver is whoever's session it is. ``Welcome`` and ``Refuse`` are answers to a
registration (see :func:`mlfabric.wire.to_admission`) and do not travel on a session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlfabric.protocol import (
    CancelServe,
    Drop,
    Expect,
    Expected,
    Fetch,
    FreeModel,
    HostModel,
    Initialise,
    Instruction,
    MonitorAt,
    PeerLost,
    Resolve,
    Send,
    Serve,
    Void,
)
from mlfabric.v1 import session_pb2 as session
from mlfabric.wire import reduces, relays, replicas, sampling, shards
from mlfabric.wire.sampling import from_samples, to_samples
from mlfabric.wire.specs import fill_spec, from_spec
from mlfabric.wire.values import (
    KIND_OF,
    KIND_TO,
    REASON_OF,
    REASON_TO,
    enum_of,
    fill_outcome,
    fill_request,
    fill_transfer,
    fill_version,
    from_get_id,
    from_outcome,
    from_transfer_id,
    from_update_id,
    from_version,
    malformed,
    need,
)

__all__ = ["from_instruction", "to_instruction"]


def to_instruction(instruction: Instruction) -> session.Instruction:
    """Make the message of an instruction.

    Raises:
        UsageError: instructions of this kind do not travel on a session.
    """
    fill = _FILL.get(type(instruction))
    if fill is None:
        raise malformed("instruction", type(instruction).__name__, ", ".join(kind.__name__ for kind in _FILL))
    message = session.Instruction(reason=instruction.reason)
    fill(message, instruction)
    return message


def from_instruction(message: session.Instruction, to: str) -> Instruction:
    """Return the instruction that a message holds.

    Args:
        message: what came on the session.
        to: whose session it is.

    Raises:
        UsageError: it holds no instruction, or an incomplete one.
    """
    which = message.WhichOneof("instruction")
    if which is None:
        raise malformed("Instruction.instruction", None, ", ".join(_READ))
    instruction: Instruction = _READ[which](getattr(message, which), to, message.reason)
    return instruction


def _fill_host_model(message: session.HostModel, value: HostModel) -> None:
    fill_spec(message.spec, value.spec)
    message.epoch = value.epoch


def _from_host_model(message: session.HostModel, to: str, reason: str) -> HostModel:
    need(message, "spec")
    return HostModel(to=to, spec=from_spec(message.spec), reason=reason, epoch=message.epoch or 1)


def _fill_free_model(message: session.FreeModel, value: FreeModel) -> None:
    message.model, message.epoch = value.model, value.epoch


def _from_free_model(message: session.FreeModel, to: str, reason: str) -> FreeModel:
    return FreeModel(to=to, model=message.model, epoch=message.epoch, reason=reason)


def _fill_initialise(message: session.Initialise, value: Initialise) -> None:
    message.model = value.model


def _from_initialise(message: session.Initialise, to: str, reason: str) -> Initialise:
    return Initialise(to=to, model=message.model, reason=reason)


def _fill_send(message: session.Send, value: Send) -> None:
    fill_request(message.update, value.update)
    message.receiver = value.receiver
    message.address = value.address
    message.seq = value.seq
    message.ticket = value.ticket
    message.rate_bps = value.rate_bps


def _from_send(message: session.Send, to: str, reason: str) -> Send:
    need(message, "update")
    return Send(
        to=to,
        update=from_update_id(message.update),
        receiver=message.receiver,
        address=message.address,
        seq=message.seq,
        ticket=message.ticket,
        rate_bps=message.rate_bps,
        reason=reason,
    )


def _fill_expect(message: session.Expect, value: Expect) -> None:
    fill_transfer(message.transfer, value.transfer)
    for member in value.members:
        entry = message.members.add(resolved_below=member.resolved_below, norm=member.norm)
        entry.samples.extend(to_samples(member.samples))
        fill_request(entry.update, member.update)
        fill_version(entry.computed_from, member.computed_from)
    message.model = value.model
    message.seq = value.seq
    message.ticket = value.ticket
    message.size_bytes = value.size_bytes
    message.tau_max = value.tau_max
    message.kind = KIND_TO[value.kind]
    for transfer in value.after:
        fill_transfer(message.after.add(), transfer)
    message.lrs.extend(value.lrs)
    message.parts = value.parts


def _from_expect(message: session.Expect, to: str, reason: str) -> Expect:
    need(message, "transfer")
    if not message.members or not message.parts:
        given = f"{len(message.members)} members, {message.parts} parts"
        raise malformed("Expect.members, Expect.parts", given, "at least 1 of each")
    return Expect(
        to=to,
        transfer=from_transfer_id(message.transfer),
        members=tuple(_from_expected(member) for member in message.members),
        model=message.model,
        seq=message.seq,
        ticket=message.ticket,
        size_bytes=message.size_bytes,
        tau_max=message.tau_max,
        kind=enum_of(KIND_OF, message.kind, "Expect.kind"),
        after=tuple(from_transfer_id(transfer) for transfer in message.after),
        lrs=tuple(message.lrs),
        parts=message.parts,
        reason=reason,
    )


def _from_expected(message: session.Expected) -> Expected:
    need(message, "update")
    need(message, "computed_from")
    return Expected(
        update=from_update_id(message.update),
        computed_from=from_version(message.computed_from),
        resolved_below=message.resolved_below,
        norm=message.norm,
        samples=from_samples(message.samples, "Expected.samples"),
    )


def _fill_drop(message: session.Drop, value: Drop) -> None:
    fill_request(message.update, value.update)
    message.cause = REASON_TO[value.cause]
    message.model = value.model


def _from_drop(message: session.Drop, to: str, reason: str) -> Drop:
    need(message, "update")
    cause = enum_of(REASON_OF, message.cause, "Drop.cause")
    return Drop(to=to, model=message.model, update=from_update_id(message.update), cause=cause, reason=reason)


def _fill_resolve(message: session.Resolve, value: Resolve) -> None:
    fill_request(message.update, value.update)
    fill_outcome(message.outcome, value.outcome)


def _from_resolve(message: session.Resolve, to: str, reason: str) -> Resolve:
    need(message, "update")
    need(message, "outcome")
    outcome = from_outcome(message.outcome)
    return Resolve(to=to, update=from_update_id(message.update), outcome=outcome, reason=reason)


def _fill_void(message: session.Void, value: Void) -> None:
    message.model = value.model
    fill_transfer(message.transfer, value.transfer)


def _from_void(message: session.Void, to: str, reason: str) -> Void:
    need(message, "transfer")
    return Void(to=to, model=message.model, transfer=from_transfer_id(message.transfer), reason=reason)


def _fill_fetch(message: session.Fetch, value: Fetch) -> None:
    fill_request(message.get, value.get)
    message.source = value.source
    message.address = value.address
    message.ticket = value.ticket


def _from_fetch(message: session.Fetch, to: str, reason: str) -> Fetch:
    need(message, "get")
    return Fetch(
        to=to,
        get=from_get_id(message.get),
        source=message.source,
        address=message.address,
        ticket=message.ticket,
        reason=reason,
    )


def _fill_serve(message: session.Serve, value: Serve) -> None:
    fill_request(message.get, value.get)
    message.model = value.model
    message.ticket = value.ticket
    fill_version(message.min_version, value.min_version)
    for update in value.after_updates:
        fill_request(message.after_updates.add(), update)
    for get in value.after:
        fill_request(message.after.add(), get)
    message.rate_bps = value.rate_bps
    message.span_ns = value.span_ns
    if value.version is not None:
        fill_version(message.version, value.version)


def _from_serve(message: session.Serve, to: str, reason: str) -> Serve:
    need(message, "get")
    need(message, "min_version")
    return Serve(
        to=to,
        get=from_get_id(message.get),
        model=message.model,
        ticket=message.ticket,
        min_version=from_version(message.min_version),
        after_updates=tuple(from_update_id(update) for update in message.after_updates),
        after=tuple(from_get_id(get) for get in message.after),
        rate_bps=message.rate_bps,
        reason=reason,
        version=from_version(message.version) if message.HasField("version") else None,
        span_ns=message.span_ns,
    )


def _fill_cancel(message: session.CancelServe, value: CancelServe) -> None:
    message.model = value.model
    message.gone = value.gone
    fill_request(message.get, value.get)


def _from_cancel(message: session.CancelServe, to: str, reason: str) -> CancelServe:
    need(message, "get")
    get = from_get_id(message.get)
    return CancelServe(to=to, model=message.model, get=get, reason=reason, gone=message.gone)


def _fill_monitor_at(message: session.MonitorAt, value: MonitorAt) -> None:
    message.address, message.token = value.address, value.token


def _from_monitor_at(message: session.MonitorAt, to: str, reason: str) -> MonitorAt:
    return MonitorAt(to=to, address=message.address, token=message.token, reason=reason)


def _fill_peer_lost(message: session.PeerLost, value: PeerLost) -> None:
    message.address = value.address


def _from_peer_lost(message: session.PeerLost, to: str, reason: str) -> PeerLost:
    return PeerLost(to=to, address=message.address, reason=reason)


_FILL: Mapping[type, Callable[[session.Instruction, Any], None]] = {
    HostModel: lambda message, value: _fill_host_model(message.host_model, value),
    FreeModel: lambda message, value: _fill_free_model(message.free_model, value),
    Initialise: lambda message, value: _fill_initialise(message.initialise, value),
    Send: lambda message, value: _fill_send(message.send, value),
    Expect: lambda message, value: _fill_expect(message.expect, value),
    Drop: lambda message, value: _fill_drop(message.drop, value),
    Resolve: lambda message, value: _fill_resolve(message.resolve, value),
    Void: lambda message, value: _fill_void(message.void, value),
    Fetch: lambda message, value: _fill_fetch(message.fetch, value),
    Serve: lambda message, value: _fill_serve(message.serve, value),
    CancelServe: lambda message, value: _fill_cancel(message.cancel_serve, value),
    MonitorAt: lambda message, value: _fill_monitor_at(message.monitor_at, value),
    PeerLost: lambda message, value: _fill_peer_lost(message.peer_lost, value),
    **relays.FILL,
    **replicas.FILL,
    **reduces.FILL,
    **shards.FILL,
    **sampling.FILL,
}
_READ: Mapping[str, Callable[[Any, str, str], Instruction]] = {
    "host_model": _from_host_model,
    "free_model": _from_free_model,
    "initialise": _from_initialise,
    "send": _from_send,
    "expect": _from_expect,
    "drop": _from_drop,
    "resolve": _from_resolve,
    "void": _from_void,
    "fetch": _from_fetch,
    "serve": _from_serve,
    "cancel_serve": _from_cancel,
    "monitor_at": _from_monitor_at,
    "peer_lost": _from_peer_lost,
    **relays.READ,
    **replicas.READ,
    **reduces.READ,
    **shards.READ,
    **sampling.READ,
}
