"""Instructions to aggregators on the wire: what they sum, and which models they hand on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlfabric.protocol import CancelHandOn, CancelSum, HandOn, HandOnTo, Instruction, Sum, SumInput
from mlfabric.v1 import session_pb2 as session
from mlfabric.wire.values import (
    fill_request,
    fill_transfer,
    from_get_id,
    from_sum_id,
    from_transfer_id,
    from_update_id,
    malformed,
    need,
)

__all__ = ["FILL", "READ"]


def _fill_sum(message: session.Sum, value: Sum) -> None:
    message.sum.epoch, message.sum.counter = value.sum
    message.model = value.model
    for one in value.inputs:
        entry = message.inputs.add(ticket=one.ticket, first=one.first, second=one.second, size_bytes=one.size_bytes)
        fill_transfer(entry.transfer, one.transfer)
        for transfer in one.after:
            fill_transfer(entry.after.add(), transfer)
    for update in value.members:
        fill_request(message.members.add(), update)
    message.images = value.images
    message.cut_through = value.cut_through
    message.receiver = value.receiver
    message.address = value.address
    message.ticket = value.ticket
    message.rate_bps = value.rate_bps
    message.seq = value.seq


def _from_sum(message: session.Sum, to: str, reason: str) -> Sum:
    need(message, "sum")
    if not message.inputs or message.images not in (1, 2):
        given = f"{len(message.inputs)} inputs, {message.images} images"
        raise malformed("Sum.inputs, Sum.images", given, "at least 1 input, and 1 or 2 images")
    return Sum(
        to=to,
        sum=from_sum_id(message.sum),
        model=message.model,
        inputs=tuple(_from_input(one) for one in message.inputs),
        members=tuple(from_update_id(update) for update in message.members),
        images=message.images,
        cut_through=message.cut_through,
        receiver=message.receiver,
        address=message.address,
        ticket=message.ticket,
        rate_bps=message.rate_bps,
        seq=message.seq,
        reason=reason,
    )


def _from_input(message: session.SumInput) -> SumInput:
    need(message, "transfer")
    return SumInput(
        transfer=from_transfer_id(message.transfer),
        ticket=message.ticket,
        first=message.first,
        second=message.second,
        size_bytes=message.size_bytes,
        after=tuple(from_transfer_id(transfer) for transfer in message.after),
    )


def _fill_cancel_sum(message: session.CancelSum, value: CancelSum) -> None:
    message.model = value.model
    message.sum.epoch, message.sum.counter = value.sum


def _from_cancel_sum(message: session.CancelSum, to: str, reason: str) -> CancelSum:
    need(message, "sum")
    return CancelSum(to=to, model=message.model, sum=from_sum_id(message.sum), reason=reason)


def _fill_hand_on(message: session.HandOn, value: HandOn) -> None:
    fill_request(message.get, value.get)
    message.model = value.model
    message.source = value.source
    message.address = value.address
    message.ticket = value.ticket
    for target in value.targets:
        entry = message.targets.add(ticket=target.ticket, rate_bps=target.rate_bps)
        fill_request(entry.get, target.get)


def _from_hand_on(message: session.HandOn, to: str, reason: str) -> HandOn:
    need(message, "get")
    for target in message.targets:
        need(target, "get")
    return HandOn(
        to=to,
        get=from_get_id(message.get),
        model=message.model,
        source=message.source,
        address=message.address,
        ticket=message.ticket,
        targets=tuple(HandOnTo(from_get_id(t.get), t.ticket, t.rate_bps) for t in message.targets),
        reason=reason,
    )


def _fill_cancel_hand_on(message: session.CancelHandOn, value: CancelHandOn) -> None:
    message.model = value.model
    fill_request(message.get, value.get)


def _from_cancel_hand_on(message: session.CancelHandOn, to: str, reason: str) -> CancelHandOn:
    need(message, "get")
    return CancelHandOn(to=to, model=message.model, get=from_get_id(message.get), reason=reason)


FILL: Mapping[type, Callable[[session.Instruction, Any], None]] = {
    Sum: lambda message, value: _fill_sum(message.sum, value),
    CancelSum: lambda message, value: _fill_cancel_sum(message.cancel_sum, value),
    HandOn: lambda message, value: _fill_hand_on(message.hand_on, value),
    CancelHandOn: lambda message, value: _fill_cancel_hand_on(message.cancel_hand_on, value),
}
READ: Mapping[str, Callable[[Any, str, str], Instruction]] = {
    "sum": _from_sum,
    "cancel_sum": _from_cancel_sum,
    "hand_on": _from_hand_on,
    "cancel_hand_on": _from_cancel_hand_on,
}
