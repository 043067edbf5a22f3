"""AllReduce on the wire: what workers ask for and report, and what they are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlfabric.protocol import (
    CancelReduce,
    Instruction,
    LinkProbed,
    MemberEvent,
    Peer,
    Probe,
    Reduce,
    ReduceFailed,
    ReduceId,
    ReduceOp,
    ReducePart,
    ReduceRequested,
    ReduceSettled,
    RoundArrived,
    RoundBroken,
    RoundId,
)
from mlfabric.specs import ALIGNMENT_BYTES, DTYPE_BYTES
from mlfabric.v1 import session_pb2 as session
from mlfabric.v1 import types_pb2 as types
from mlfabric.wire.values import enum_of, fill_request, malformed, need

__all__ = [
    "FILL",
    "FILL_EVENT",
    "READ",
    "READ_EVENT",
    "fill_reduce_requested",
    "from_reduce_requested",
]

_OP_TO = {ReduceOp.SUM: session.REDUCE_OP_SUM, ReduceOp.MEAN: session.REDUCE_OP_MEAN}
_OP_OF: Mapping[int, ReduceOp] = {number: value for value, number in _OP_TO.items()}


def _from_reduce_id(message: types.RequestId) -> ReduceId:
    return ReduceId(message.worker, message.incarnation, message.counter)


def _fill_round(message: session.RoundId, value: RoundId) -> None:
    message.SetInParent()
    message.epoch, message.counter = value


def _from_round(message: session.RoundId) -> RoundId:
    return RoundId(message.epoch, message.counter)


def fill_reduce_requested(message: session.ReduceRequested, event: ReduceRequested) -> None:
    """Write a request into a message."""
    fill_request(message.reduce, event.reduce)
    message.model = event.model
    message.size_bytes = event.size_bytes
    message.dtype = event.dtype
    message.op = _OP_TO[event.op]
    message.together = event.together
    if event.settled is not None:
        _fill_round(message.settled, event.settled)
    if event.arrived is not None:
        _fill_round(message.arrived, event.arrived)


def from_reduce_requested(message: session.ReduceRequested, member: str) -> ReduceRequested:
    """Return what ``member`` asks for.

    Raises:
        UsageError: it is incomplete, another member's, or of a dtype or size that cannot be.
    """
    need(message, "reduce")
    if message.reduce.worker != member:
        raise malformed("ReduceRequested.reduce.worker", message.reduce.worker, f"{member!r}, whose session this is")
    _check_elements(message, "ReduceRequested")
    return ReduceRequested(
        reduce=_from_reduce_id(message.reduce),
        model=message.model,
        size_bytes=message.size_bytes,
        dtype=message.dtype,
        op=enum_of(_OP_OF, message.op, "ReduceRequested.op"),
        together=message.together,
        settled=_from_round(message.settled) if message.HasField("settled") else None,
        arrived=_from_round(message.arrived) if message.HasField("arrived") else None,
    )


def _check_elements(message: session.ReduceRequested, what: str) -> None:
    item_bytes = DTYPE_BYTES.get(message.dtype, 0)
    if not item_bytes:
        raise malformed(f"{what}.dtype", message.dtype, ", ".join(DTYPE_BYTES))
    if message.size_bytes % item_bytes:
        raise malformed(f"{what}.size_bytes", message.size_bytes, f"a multiple of {item_bytes} ({message.dtype})")
    if not message.together:
        raise malformed(f"{what}.together", message.together, "1 or more")


def _fill_arrived(message: session.RoundArrived, event: RoundArrived) -> None:
    message.model = event.model
    _fill_round(message.round, event.round)
    message.up_bps, message.down_bps = event.up_bps, event.down_bps


def _from_arrived(message: session.RoundArrived, member: str) -> RoundArrived:
    need(message, "round")
    return RoundArrived(
        worker=member,
        model=message.model,
        round=_from_round(message.round),
        up_bps=message.up_bps,
        down_bps=message.down_bps,
    )


def _fill_broken(message: session.RoundBroken, event: RoundBroken) -> None:
    message.model = event.model
    _fill_round(message.round, event.round)
    message.detail = event.detail


def _from_broken(message: session.RoundBroken, member: str) -> RoundBroken:
    need(message, "round")
    return RoundBroken(worker=member, model=message.model, round=_from_round(message.round), detail=message.detail)


def _fill_probed(message: session.LinkProbed, event: LinkProbed) -> None:
    message.model = event.model
    _fill_round(message.round, event.round)
    message.source, message.bps = event.source, event.bps


def _from_probed(message: session.LinkProbed, member: str) -> LinkProbed:
    need(message, "round")
    if not message.bps:
        raise malformed("LinkProbed.bps", message.bps, "1 or more")
    return LinkProbed(
        worker=member, model=message.model, round=_from_round(message.round), source=message.source, bps=message.bps
    )


def _fill_peer(message: session.Peer, value: Peer) -> None:
    message.worker, message.address, message.ticket, message.most_bps = value


def _from_peer(message: session.Peer) -> Peer:
    return Peer(message.worker, message.address, message.ticket, message.most_bps)


def _fill_part(message: session.ReducePart, value: ReducePart) -> None:
    message.start, message.end = value.start, value.end
    for peer in value.inputs:
        _fill_peer(message.inputs.add(), peer)
    if value.parent is not None:
        _fill_peer(message.parent, value.parent)
    if value.source is not None:
        _fill_peer(message.source, value.source)
    for peer in value.takers:
        _fill_peer(message.takers.add(), peer)
    message.rate_bps = value.rate_bps


def _from_part(message: session.ReducePart) -> ReducePart:
    if message.start % ALIGNMENT_BYTES or message.end <= message.start:
        given = (message.start, message.end)
        raise malformed(
            "ReducePart.start, end", given, f"a start at a multiple of {ALIGNMENT_BYTES}, and an end after it"
        )
    return ReducePart(
        start=message.start,
        end=message.end,
        inputs=tuple(_from_peer(peer) for peer in message.inputs),
        parent=_from_peer(message.parent) if message.HasField("parent") else None,
        source=_from_peer(message.source) if message.HasField("source") else None,
        takers=tuple(_from_peer(peer) for peer in message.takers),
        rate_bps=message.rate_bps,
    )


def _fill_reduce(message: session.Reduce, value: Reduce) -> None:
    fill_request(message.reduce, value.reduce)
    _fill_round(message.round, value.round)
    message.workers = value.workers
    for part in value.parts:
        _fill_part(message.parts.add(), part)


def _from_reduce(message: session.Reduce, to: str, reason: str) -> Reduce:
    need(message, "reduce")
    need(message, "round")
    return Reduce(
        to=to,
        reduce=_from_reduce_id(message.reduce),
        round=_from_round(message.round),
        workers=message.workers,
        parts=tuple(_from_part(part) for part in message.parts),
        reason=reason,
    )


def _from_cancel(message: session.CancelReduce, to: str, reason: str) -> CancelReduce:
    need(message, "round")
    return CancelReduce(to=to, round=_from_round(message.round), reason=reason)


def _fill_settled(message: session.ReduceSettled, value: ReduceSettled) -> None:
    fill_request(message.reduce, value.reduce)
    _fill_round(message.round, value.round)
    message.workers = value.workers


def _from_settled(message: session.ReduceSettled, to: str, reason: str) -> ReduceSettled:
    need(message, "reduce")
    need(message, "round")
    reduce, round_id = _from_reduce_id(message.reduce), _from_round(message.round)
    return ReduceSettled(to=to, reduce=reduce, round=round_id, workers=message.workers, reason=reason)


def _from_failed(message: session.ReduceFailed, to: str, reason: str) -> ReduceFailed:
    need(message, "reduce")
    return ReduceFailed(to=to, reduce=_from_reduce_id(message.reduce), reason=reason)


def _fill_probe(message: session.Probe, value: Probe) -> None:
    _fill_round(message.round, value.round)
    message.model, message.size_bytes, message.slot_ns = value.model, value.size_bytes, value.slot_ns
    for peer in value.targets:
        _fill_peer(message.targets.add(), peer)
    for peer in value.sources:
        _fill_peer(message.sources.add(), peer)


def _from_probe(message: session.Probe, to: str, reason: str) -> Probe:
    need(message, "round")
    if not message.size_bytes:
        raise malformed("Probe.size_bytes", message.size_bytes, "1 or more")
    return Probe(
        to=to,
        model=message.model,
        round=_from_round(message.round),
        size_bytes=message.size_bytes,
        targets=tuple(_from_peer(peer) for peer in message.targets),
        sources=tuple(_from_peer(peer) for peer in message.sources),
        slot_ns=message.slot_ns,
        reason=reason,
    )


FILL_EVENT: Mapping[type, Callable[[session.Event, Any], None]] = {
    ReduceRequested: lambda message, event: fill_reduce_requested(message.reduce_requested, event),
    RoundArrived: lambda message, event: _fill_arrived(message.round_arrived, event),
    RoundBroken: lambda message, event: _fill_broken(message.round_broken, event),
    LinkProbed: lambda message, event: _fill_probed(message.link_probed, event),
}
READ_EVENT: Mapping[str, Callable[[Any, str], MemberEvent]] = {
    "reduce_requested": from_reduce_requested,
    "round_arrived": _from_arrived,
    "round_broken": _from_broken,
    "link_probed": _from_probed,
}
FILL: Mapping[type, Callable[[session.Instruction, Any], None]] = {
    Reduce: lambda message, value: _fill_reduce(message.reduce, value),
    CancelReduce: lambda message, value: _fill_round(message.cancel_reduce.round, value.round),
    ReduceSettled: lambda message, value: _fill_settled(message.reduce_settled, value),
    ReduceFailed: lambda message, value: fill_request(message.reduce_failed.reduce, value.reduce),
    Probe: lambda message, value: _fill_probe(message.probe, value),
}
READ: Mapping[str, Callable[[Any, str, str], Instruction]] = {
    "reduce": _from_reduce,
    "cancel_reduce": _from_cancel,
    "reduce_settled": _from_settled,
    "reduce_failed": _from_failed,
    "probe": _from_probe,
}
