"""What the end that opened a data connection says over it: one offer with its bytes, or one want. Decides nothing.

Shell-level, shared by workers, aggregators and servers; ``served_connections.py`` is the other end. After the bytes
comes their seal, an empty payload: before it nothing counts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from mlfabric import wire
from mlfabric.channels import Connection, Frame, FrameKind, TransferRecord
from mlfabric.errors import TransferError
from mlfabric.protocol import GetId, Outcome, UpdateId
from mlfabric.transfer.offers import WITH_OFFER_BYTES
from mlfabric.v1 import data_pb2

__all__ = ["LONGEST_REASON", "TurnedAwayError", "answer_to", "deliver", "offer", "reason_of", "seal_of", "want"]

# A reason quotes what was given, and a frame holds only so much.
LONGEST_REASON = 4096


class TurnedAwayError(TransferError):
    """The other end refuses this transfer; the connection can carry another one."""


async def offer(connection: Connection, meta: data_pb2.OfferMeta, ticket: bytes, digest: int) -> Frame:
    """Offer a transfer.

    Args:
        connection: to whoever is to have it.
        meta: says what it is.
        ticket: of this transfer.
        digest: of its layout.

    Returns:
        The frame that announces its payload.
    """
    frame = Frame(kind=FrameKind.OFFER, ticket=ticket, digest=digest, meta=meta.SerializeToString())
    await connection.send(frame)
    return Frame(kind=FrameKind.PAYLOAD, ticket=ticket, length=meta.size_bytes, digest=digest)


def seal_of(payload: Frame) -> Frame:
    """Return the frame that says that a payload is whole and may be used."""
    return replace(payload, length=0)


async def answer_to(
    connection: Connection, payload: Frame, send: Callable[[Frame], Awaitable[Frame]]
) -> dict[UpdateId, Outcome]:
    """Return what becomes of the updates in a transfer that was offered.

    Args:
        connection: over which it was offered.
        payload: the frame that announces its bytes.
        send: sends payload and seal once that is granted, and returns what the other end says then.

    Raises:
        TurnedAwayError: the other end refuses it.
        TransferError: the other end breaks the rules.
    """
    answer = await connection.receive()
    if answer.kind is FrameKind.GRANT:
        answer = await send(payload)
    if answer.kind is FrameKind.REFUSE:
        raise TurnedAwayError(reason_of(answer))
    if answer.kind is not FrameKind.OUTCOME:
        raise TransferError(f"a {answer.kind.name} frame came; wanted OUTCOME")
    return wire.from_outcomes(data_pb2.OutcomeMeta.FromString(answer.meta))


async def deliver(
    connection: Connection, meta: data_pb2.OfferMeta, ticket: bytes, digest: int, image: memoryview, rate_bps: int = 0
) -> TransferRecord | None:
    """Offer an image and send it; return the record of that, None if it went with the offer.

    Raises:
        TurnedAwayError: the other end refuses it.
        TransferError: the other end breaks the rules.
    """
    record: TransferRecord | None = None
    if image.nbytes <= WITH_OFFER_BYTES:
        meta.image = bytes(image)

    async def send(payload: Frame) -> Frame:
        nonlocal record
        record = await connection.send(payload, (image,), rate_bps)
        await connection.send(seal_of(payload))
        return await connection.receive()

    await answer_to(connection, await offer(connection, meta, ticket, digest), send)
    return record


async def want(
    connection: Connection, get: GetId, ticket: bytes, host: str, length: int, digest: int
) -> data_pb2.ModelMeta:
    """Say that buffer and slot are here; return which model comes next on the connection.

    Args:
        connection: to whoever has it.
        get: which asks for it.
        ticket: of this transfer.
        host: the one that asks.
        length: that the model must have.
        digest: that its layout must have.

    Raises:
        TurnedAwayError: the other end refuses it.
        TransferError: the other end breaks the rules.
    """
    meta = data_pb2.WantMeta(get=wire.to_get_id(get), host=host)
    await connection.send(Frame(kind=FrameKind.WANT, ticket=ticket, meta=meta.SerializeToString()))
    frame = await connection.receive()
    if frame.kind is FrameKind.REFUSE:
        raise TurnedAwayError(reason_of(frame))
    if frame.kind is not FrameKind.MODEL or frame.length != length or frame.digest != digest:
        raise TransferError(f"{frame.kind.name} of {frame.length} bytes came; wanted MODEL of {length}")
    return data_pb2.ModelMeta.FromString(frame.meta)


def reason_of(refusal: Frame) -> str:
    """Return why the other end refuses; what becomes of it may have to fit into a frame again."""
    return data_pb2.RefuseMeta.FromString(refusal.meta).reason[:LONGEST_REASON]
