"""One worker's part in one attempt at a round: the bytes of all its edges. Decides nothing.

For each range of the tensor there is a tree into a root and one out of it. Whoever has inputs adds them to its own
tensor while they arrive, and sends on what all have been added to; the result leaves the root, and every worker that
hands it on, while the rest of it is still being summed. So both directions of a link are busy at once.

Each chunk is summed at one place, in one order, and handed on as it is: all workers get the same bits. The sums of a
worker and the results that come back lie in one buffer: a byte of the result exists only after the same byte of the
sum has been received by the parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from mlfabric.channels import Connection, Frame, FrameKind, TransferRecord
from mlfabric.errors import FabricError, TransferError
from mlfabric.protocol import Peer, Reduce, ReducePart
from mlfabric.specs import ALIGNMENT_BYTES, DTYPE_BYTES, Layout, TensorSpec
from mlfabric.streaming import Accumulator, Filling, Input, InputKind, Relay, ready_chunks
from mlfabric.v1 import data_pb2
from mlfabric.worker_daemon.round_lines import RoundLines

__all__ = ["Attempt", "ReduceBuffers", "padded_bytes"]

RELAY_BYTES = 256 * 1024
_PADDING = memoryview(bytes(ALIGNMENT_BYTES))


def padded_bytes(size_bytes: int) -> int:
    """Return the size rounded up to whole ``ALIGNMENT_BYTES``."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceBuffers:
    """What is reduced, and where the result goes.

    Args:
        given: the tensor's bytes; never written to.
        result: as long as ``given``, rounded up to whole ``ALIGNMENT_BYTES``.
        dtype: of the elements, as in a layout.
    """

    given: memoryview
    result: memoryview
    dtype: str


class Attempt:
    """One attempt.

    Args:
        plan: what this worker does.
        buffers: see there.
        lines: connections to and from the other workers.
        host: this worker's host.
        recorded: told of every finished transfer and its other end: the host it came from, or the worker it went to.
    """

    def __init__(
        self,
        plan: Reduce,
        buffers: ReduceBuffers,
        lines: RoundLines,
        host: str,
        recorded: Callable[[TransferRecord, str], None],
    ) -> None:
        self._plan = plan
        self._buffers = buffers
        self._lines = lines
        self._host = host
        self._recorded = recorded

    async def run(self) -> None:
        """Do everything; the result is then in its buffer, and with all who were to fetch it here.

        Raises:
            FabricError: some transfer failed; what is in the buffer is void.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for part in self._plan.parts:
                    self._begin(group, part)
        except* (FabricError, DecodeError) as errors:
            first = _first(errors)
            raise (first if isinstance(first, FabricError) else TransferError(f"malformed frame: {first}")) from None

    def _begin(self, group: asyncio.TaskGroup, part: ReducePart) -> None:
        """Start all edges of one range."""
        own = self._own(part)
        out = self._buffers.result[part.start : part.start + sum(map(len, own))]
        summed = self._sum(group, part, own, out) if part.inputs else None
        if part.parent is not None:
            group.create_task(self._offer(part, part.parent, own, summed))
        if part.source is not None:
            relay = Relay(out, RELAY_BYTES)
            group.create_task(self._fetch(part, part.source, relay))
            result: Filling = relay
        elif summed is not None:
            result = summed
        else:
            _copy(own, out)
            return
        for taker in part.takers:
            group.create_task(self._hand_on(part, taker, result))

    def _own(self, part: ReducePart) -> list[memoryview]:
        given = self._buffers.given[part.start : part.end]
        padding = padded_bytes(len(given)) - len(given)
        return [given, _PADDING[:padding]] if padding else [given]

    def _layout(self, part: ReducePart) -> Layout:
        dtype = self._buffers.dtype
        shape = ((part.end - part.start) // DTYPE_BYTES[dtype],)
        return Layout((TensorSpec(name=f"bytes {part.start} to {part.end}", shape=shape, dtype=dtype),))

    def _sum(
        self, group: asyncio.TaskGroup, part: ReducePart, own: Sequence[memoryview], out: memoryview
    ) -> Accumulator:
        inputs = [Input(), *(Input(kind=InputKind.SUM) for _ in part.inputs)]
        summed = Accumulator(self._layout(part), inputs, ordered=True, check_finite=False, buffer=out)
        group.create_task(summed.add(0, own))
        for i, peer in enumerate(part.inputs, start=1):
            group.create_task(self._receive(part, peer, summed, i))
        return summed

    async def _receive(self, part: ReducePart, peer: Peer, summed: Accumulator, index: int) -> None:
        """Grant what is offered, and add it while it comes."""
        async with self._lines.visit(peer.ticket, FrameKind.OFFER) as visit:
            connection = visit.connection
            offer = data_pb2.OfferMeta.FromString(visit.frame.meta)
            await connection.send(Frame(kind=FrameKind.GRANT, ticket=peer.ticket))
            frame = await self._expect(connection, FrameKind.PAYLOAD, part, summed.length_of(index))
            self._recorded(await summed.receive(connection, index, frame.length), offer.host)

    async def _offer(
        self, part: ReducePart, parent: Peer, own: Sequence[memoryview], summed: Accumulator | None
    ) -> None:
        """Offer the sum, and send it, when granted, as it becomes ready."""
        length = sum(map(len, own))
        digest = self._layout(part).digest
        meta = data_pb2.OfferMeta(size_bytes=length, host=self._host).SerializeToString()
        async with self._lines.line(parent.address) as connection:
            await connection.send(Frame(kind=FrameKind.OFFER, ticket=parent.ticket, digest=digest, meta=meta))
            await self._expect(connection, FrameKind.GRANT, None, 0)
            frame = Frame(kind=FrameKind.PAYLOAD, ticket=parent.ticket, length=length, digest=digest)
            if summed is None:
                record = await connection.send(frame, own)
            else:
                record = await connection.send_stream(frame, ready_chunks(summed))
        if record is not None:
            self._recorded(record, parent.worker)

    async def _fetch(self, part: ReducePart, source: Peer, result: Relay) -> None:
        """Fetch the result."""
        meta = data_pb2.WantMeta(host=self._host).SerializeToString()
        async with self._lines.line(source.address) as connection:
            await connection.send(Frame(kind=FrameKind.WANT, ticket=source.ticket, meta=meta))
            frame = await self._expect(connection, FrameKind.MODEL, part, len(result.payload))
            record = await result.receive(connection, frame.length)
        self._recorded(record, data_pb2.ModelMeta.FromString(frame.meta).host)

    async def _hand_on(self, part: ReducePart, taker: Peer, result: Filling) -> None:
        """Send the result, as it becomes ready, to one who comes for it."""
        async with self._lines.visit(taker.ticket, FrameKind.WANT) as visit:
            frame = Frame(
                kind=FrameKind.MODEL,
                ticket=taker.ticket,
                length=len(result.payload),
                digest=self._layout(part).digest,
                meta=data_pb2.ModelMeta(host=self._host).SerializeToString(),
            )
            record = await visit.connection.send_stream(frame, ready_chunks(result))
        self._recorded(record, taker.worker)

    async def _expect(self, connection: Connection, kind: FrameKind, part: ReducePart | None, length: int) -> Frame:
        """Receive a frame that must be of this kind, and of this part and length if it brings bytes."""
        frame = await connection.receive()
        if frame.kind is FrameKind.REFUSE:
            reason = data_pb2.RefuseMeta.FromString(frame.meta).reason
            raise TransferError(f"{connection.peer} refuses: {reason}")
        digest = 0 if part is None else self._layout(part).digest
        if (frame.kind, frame.length, frame.digest) != (kind, length, digest):
            raise TransferError(
                f"{frame.kind.name} of {frame.length} bytes came from {connection.peer}; wanted {kind.name} of {length}"
            )
        return frame


def _copy(pieces: Sequence[memoryview], out: memoryview) -> None:
    at = 0
    for piece in pieces:
        out[at : at + len(piece)] = piece
        at += len(piece)


def _first(errors: BaseExceptionGroup[FabricError | DecodeError]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
