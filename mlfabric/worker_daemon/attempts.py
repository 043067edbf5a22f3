"""One worker's part in one attempt at a round: the bytes of all its edges. Decides nothing.

For each range of the tensor there is a tree into a root and one out of it; in gossip only trees into roots, one for
each member, as each has a result of its own. Whoever has inputs adds them to its own tensor while they arrive, and
sends on what all have been added to; the result leaves the root, and every worker that hands it on, while the rest of
it is still being summed. So both directions of a link are busy at once.

Each chunk is summed at one place, in one order, and handed on as it is: all workers get the same bits. The sums of a
worker and the results that come back lie in one buffer: a byte of the result exists only after the same byte of the
sum has been received by the parent.

Sums come unasked: whoever is to receive them was told so by the scheduler, and until it has been, the network holds
them up. To ask for the result on a connection of its own costs more than sending few bytes does: of a range of
``BRIEF_BYTES`` or less it goes back as the answer to the sum; not in stripes, where it is to flow back meanwhile.
Streams in trees go as fast as links let them, which tells the monitor what these carry, but none has more on its way
than its planned rate asks for: whole tensors that are ready would fill the queues in which what is passed on waits.

A gradient may be offered while backward still makes it, from the first byte on. Then everything goes as far as its
bytes are there, and each range travels with bytes from all over the gradient (``dealt_bytes``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

from google.protobuf.message import DecodeError

from mlfabric.channels import Connection, Frame, FrameKind, TransferRecord
from mlfabric.channels.progress import Filling, Progress, ProgressOfPieces
from mlfabric.errors import FabricError, TransferError
from mlfabric.model.specs import ALIGNMENT_BYTES, DTYPE_BYTES, Layout, TensorSpec
from mlfabric.protocol import Peer, Reduce, ReducePart
from mlfabric.telemetry.forwarding_log import note_forwarding
from mlfabric.transfer.relay import Relay
from mlfabric.transfer.running_sum import Accumulator, Input, InputKind
from mlfabric.v1 import data_pb2
from mlfabric.worker_daemon.dealt_bytes import beginning, pieces_of
from mlfabric.worker_daemon.round_lines import RoundLines

__all__ = ["BRIEF_BYTES", "Attempt", "GradientGrowth", "ReduceBuffers", "padded_bytes"]

BRIEF_BYTES = 64 * 1024
_PADDING = memoryview(bytes(ALIGNMENT_BYTES))


def padded_bytes(size_bytes: int) -> int:
    """Return the size rounded up to whole ``ALIGNMENT_BYTES``."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(eq=False, slots=True, kw_only=True)
class GradientGrowth:
    """How much there is of a gradient that is offered while backward makes it.

    Args:
        progress: how much of it is ready, for the daemon's thread.
        patience_s: it is withdrawn if it is not complete so long after the offer.
        is_late: it was withdrawn because of that; once it is complete it may be offered again.
    """

    progress: Progress
    patience_s: float
    is_late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceBuffers:
    """What is reduced, and where the result goes.

    Args:
        given: the tensor's bytes; never written to. None if this worker only receives the result.
        result: as long as the tensor, rounded up to whole ``ALIGNMENT_BYTES``.
        dtype: of the elements, as in a layout.
        growth: how much of what is given is there, if it is not all of it.
    """

    given: memoryview | None
    result: memoryview
    dtype: str
    growth: GradientGrowth | None = None


class Attempt:
    """One attempt.

    Args:
        plan: what this worker does.
        buffers: see there.
        lines: connections to and from the other workers.
        host: this worker's host.
        recorded: told of every finished transfer and its other end: the host it came from, or the worker it went to.
        segments: over how many segments of the tensor each range is dealt out; the same at all workers.
    """

    def __init__(
        self,
        plan: Reduce,
        buffers: ReduceBuffers,
        lines: RoundLines,
        host: str,
        recorded: Callable[[TransferRecord, str], None],
        segments: int = 1,
    ) -> None:
        self._segments = segments
        self._plan = plan
        self._buffers = buffers
        self._lines = lines
        self._host = host
        self._recorded = recorded
        self._results: list[tuple[ReducePart, Progress]] = []
        self._watched: list[Progress] = []
        """Of what fills up here piece by piece; what is received in one go says nothing while it comes."""

    @property
    def share_done(self) -> float:
        """How much of what can be watched here has been done, 0 to 1; 1 if nothing can."""
        total = sum(progress.size_bytes for progress in self._watched)
        return sum(progress.ready_bytes for progress in self._watched) / total if total else 1.0

    def come(self) -> Iterator[tuple[list[tuple[int, int]], memoryview]]:
        """Give what has come of the result: where bytes belong in the tensor, and these bytes."""
        for part, progress in self._results:
            length = min(progress.ready_bytes, part.end - part.start)
            yield beginning(self._pieces(part), length), self._buffers.result[part.start : part.start + length]

    @property
    def flows(self) -> bool:
        """Whether something has come of all that can be watched here."""
        return all(progress.ready_bytes for progress in self._watched)

    async def run(self) -> None:
        """Do everything; the result is then in its buffer, and with all who were to fetch it here.

        Raises:
            FabricError: some transfer failed; what is in the buffer is void.
        """
        try:
            with ExitStack() as following:
                async with asyncio.TaskGroup() as group:
                    for part in self._plan.parts:
                        self._begin(group, part, self._growing(part, following))
        except* (FabricError, DecodeError) as errors:
            first = _first(errors)
            raise (first if isinstance(first, FabricError) else TransferError(f"malformed frame: {first}")) from None

    def _growing(self, part: ReducePart, following: ExitStack) -> Progress | None:
        """Return how much there is of this worker's own bytes of a range; None for all."""
        growth = self._buffers.growth
        if growth is None or growth.progress.is_complete:
            return None
        growing = ProgressOfPieces(growth.progress, self._pieces(part))
        following.enter_context(growing.following())
        return growing.progress

    def _pieces(self, part: ReducePart) -> list[tuple[int, int]]:
        if self._segments == 1:
            return [(part.start, part.end)]
        return pieces_of(part.start, part.end, self._plan.size_bytes, self._segments)

    def _begin(self, group: asyncio.TaskGroup, part: ReducePart, growing: Progress | None) -> None:
        """Start all edges of one range; ``growing`` says how much there is of this worker's own bytes, if not all."""
        out = self._buffers.result[part.start : part.start + padded_bytes(part.end - part.start)]
        own = self._own(part)
        is_root = part.source is None and bool(part.takers)
        only_gives = part.source is None and part.parent is not None  # in gossip the result is that of another part
        is_filled = not only_gives and (growing is not None or len(own) > 1)
        summed = self._sum(part, out) if part.inputs or is_root or (own and is_filled) else None
        relay = Relay(out, is_last=not part.takers) if part.source is not None else None
        result: Filling | None = relay or summed
        if result is None and part.parent is None:
            _copy(own, out)
            return
        if summed is not None and part.inputs:
            self._watched.append(summed.progress)
        if relay is not None and part.takers:
            self._watched.append(relay.progress)
        if result is not None and (relay is not None or is_root):
            self._results.append((part, result.progress))
        answered = _answered(part, len(out))
        if summed is not None:
            if own:
                group.create_task(summed.add(0, own, growing))
            for i, peer in enumerate(part.inputs, start=1 if own else 0):
                answer = result if peer.worker in answered else None
                group.create_task(self._receive(part, peer, summed, i, answer))
        if part.parent is not None:
            answer = relay if part.parent.worker in answered else None
            group.create_task(self._hand_in(part, part.parent, own, summed, answer))
        if part.source is not None and relay is not None and part.source.worker not in answered:
            group.create_task(self._fetch(part, part.source, relay))
        for taker in part.takers:
            if taker.worker not in answered and result is not None:
                group.create_task(self._hand_on(part, taker, result))

    def _own(self, part: ReducePart) -> list[memoryview]:
        """Return this worker's own bytes of a range, padded; none if it contributes nothing."""
        if self._buffers.given is None:
            return []
        given = [self._buffers.given[start:end] for start, end in self._pieces(part)]
        padding = padded_bytes(part.end - part.start) - (part.end - part.start)
        return [*given, _PADDING[:padding]] if padding else given

    def _layout(self, part: ReducePart) -> Layout:
        return _layout_of(part.start, part.end, self._buffers.dtype, self._segments)

    def _sum(self, part: ReducePart, out: memoryview) -> Accumulator:
        own = [] if self._buffers.given is None else [Input()]
        inputs = [*own, *(Input(kind=InputKind.SUM) for _ in part.inputs)]
        return Accumulator(self._layout(part), inputs, ordered=True, check_finite=False, buffer=out)

    async def _receive(
        self, part: ReducePart, peer: Peer, summed: Accumulator, index: int, answer: Filling | None
    ) -> None:
        """Add what comes while it does; answer with the result if asked to."""
        length = summed.length_of(index)
        async with self._lines.visit(peer.ticket, FrameKind.PAYLOAD) as visit:
            connection, frame = visit.connection, visit.frame
            self._check(connection, frame, FrameKind.PAYLOAD, part, length)
            host = data_pb2.OfferMeta.FromString(frame.meta).host
            record = await summed.receive(connection, index, length)
            self._recorded(record, host)
            note_forwarding(host, self._host, record.bytes, record.started_ns, record.ended_ns)
            if answer is not None:
                await self._send_result(part, peer, connection, answer)

    async def _hand_in(
        self,
        part: ReducePart,
        parent: Peer,
        own: Sequence[memoryview],
        summed: Accumulator | None,
        answer: Relay | None,
    ) -> None:
        """Send the sum as it becomes ready; receive the answer, if any."""
        length, digest, ticket = padded_bytes(part.end - part.start), self._layout(part).digest, parent.ticket
        meta = data_pb2.OfferMeta(size_bytes=length, host=self._host).SerializeToString()
        frame = Frame(kind=FrameKind.PAYLOAD, ticket=ticket, length=length, digest=digest, meta=meta)
        async with self._lines.line(parent.address) as connection:
            connection.spread(parent.most_bps)
            connection.hold_back(part.rate_bps)
            if summed is None:
                record = await connection.send(frame, own)
            else:
                record = await connection.send_stream(frame, summed)
            if record is not None:
                self._recorded(record, parent.worker)
            if answer is not None:
                await self._receive_result(part, connection, answer)

    async def _fetch(self, part: ReducePart, source: Peer, result: Relay) -> None:
        """Fetch the result."""
        meta = data_pb2.WantMeta(host=self._host).SerializeToString()
        async with self._lines.line(source.address) as connection:
            await connection.send(Frame(kind=FrameKind.WANT, ticket=source.ticket, meta=meta))
            await self._receive_result(part, connection, result)

    async def _receive_result(self, part: ReducePart, connection: Connection, result: Relay) -> None:
        frame = await connection.receive()
        self._check(connection, frame, FrameKind.MODEL, part, len(result.payload))
        record = await result.receive(connection, frame.length)
        self._recorded(record, data_pb2.ModelMeta.FromString(frame.meta).host)

    async def _hand_on(self, part: ReducePart, taker: Peer, result: Filling) -> None:
        """Send the result to one who comes for it."""
        async with self._lines.visit(taker.ticket, FrameKind.WANT) as visit:
            await self._send_result(part, taker, visit.connection, result)

    async def _send_result(self, part: ReducePart, taker: Peer, connection: Connection, result: Filling) -> None:
        """Send the result as it becomes ready."""
        connection.spread(taker.most_bps)
        connection.hold_back(part.rate_bps)
        frame = Frame(
            kind=FrameKind.MODEL,
            ticket=taker.ticket,
            length=len(result.payload),
            digest=self._layout(part).digest,
            meta=data_pb2.ModelMeta(host=self._host).SerializeToString(),
        )
        self._recorded(await connection.send_stream(frame, result), taker.worker)

    def _check(self, connection: Connection, frame: Frame, kind: FrameKind, part: ReducePart, length: int) -> None:
        """Refuse a frame that is not of this kind, part and length."""
        if frame.kind is FrameKind.REFUSE:
            reason = data_pb2.RefuseMeta.FromString(frame.meta).reason
            raise TransferError(f"{connection.peer} refuses: {reason}")
        if (frame.kind, frame.length, frame.digest) != (kind, length, self._layout(part).digest):
            raise TransferError(
                f"{frame.kind.name} of {frame.length} bytes came from {connection.peer}; wanted {kind.name} of {length}"
            )


@lru_cache(maxsize=256)
def _layout_of(start: int, end: int, dtype: str, segments: int) -> Layout:
    """Return what a range is, for its sums and for the digest that both ends of an edge compare."""
    name = f"bytes {start} to {end}" + (f" of {segments} segments" if segments > 1 else "")
    return Layout((TensorSpec(name=name, shape=((end - start) // DTYPE_BYTES[dtype],), dtype=dtype),))


def _is_brief(part: ReducePart, length: int) -> bool:
    """Tell whether the result is the answer; what has a rate takes so long that it flows back meanwhile."""
    return length <= BRIEF_BYTES and not part.rate_bps


def _answered(part: ReducePart, length: int) -> set[str]:
    """Return the workers that send their sum and get the result for it as an answer; both ends find the same."""
    if not _is_brief(part, length):
        return set()
    both = {peer.worker for peer in part.inputs} & {peer.worker for peer in part.takers}
    if part.parent is not None and part.source is not None and part.parent.worker == part.source.worker:
        both.add(part.parent.worker)
    return both


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
