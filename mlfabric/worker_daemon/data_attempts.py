"""The data connections of a worker daemon: one attempt to push an update or to fetch a model. Decides nothing.

Connections are kept and used again, one transfer at a time. An attempt ends with an event for the state machine,
whatever happens; only a connection whose framing is whole goes back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError

from mlfabric import wire
from mlfabric.channels import Channel, Connection, Frame, FrameKind, TransferRecord
from mlfabric.channels.progress import Progress
from mlfabric.errors import FabricError, TransferError
from mlfabric.fail_stop import Failed, Tasks
from mlfabric.protocol import Dropped, DropReason, Fetch, Outcome, Send
from mlfabric.transfer import exchange
from mlfabric.transfer.dialling import Dialled
from mlfabric.transfer.offers import WITH_OFFER_BYTES
from mlfabric.v1 import data_pb2
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.observations import Observer, Transferred

__all__ = ["GivenUpError", "Growth", "Parcel", "Transfers"]


log = logging.getLogger("mlfabric.worker")


class GivenUpError(Exception):
    """An update will never be complete, or must not be used."""

    def __init__(self, cause: DropReason, detail: str) -> None:
        super().__init__(detail)
        self.outcome = Dropped(cause=cause, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How much there is of an update that is sent while it is being made.

    Args:
        payload: its image.
        progress: how much of it is ready; it fails with a ``GivenUpError`` if the rest will never come.
    """

    payload: memoryview
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """An update's bytes, and the check that nobody changed them.

    Args:
        pieces: contiguous buffers that make up the image.
        digest: the layout's.
        is_unchanged: tells whether the tensors are what they were when they were handed over.
        growth: of an update that is not complete yet; None of one that is.
    """

    pieces: Sequence[memoryview]
    digest: int
    is_unchanged: Callable[[], bool]
    growth: Growth | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the image."""
        return sum(piece.nbytes for piece in self.pieces)

    def within(self, start: int, end: int, digest: int) -> Parcel:
        """Return the parcel of a range of bytes: views, nothing is copied.

        Args:
            start, end: first byte, and the byte after the last.
            digest: of the layout of what lies there.
        """
        pieces, at = [], 0
        for piece in self.pieces:
            part = piece.cast("B")[max(0, start - at) : max(0, end - at)]
            at += piece.nbytes
            if part.nbytes:
                pieces.append(part)
        return replace(self, pieces=pieces, digest=digest)


class Transfers:
    """Attempts under way.

    Args:
        channel: the daemon's data channel.
        host: this worker's host.
        take_in: where events for the state machine go.
        recorded: told of every finished transfer and its other end: the host it came from, or the server it went to.
        observer: told of every finished transfer and what it was.
    """

    def __init__(
        self,
        channel: Channel,
        host: str,
        take_in: Callable[[act.DaemonEvent | Failed], None],
        recorded: Callable[[TransferRecord, str], None],
        observer: Observer,
    ) -> None:
        self._host = host
        self._take_in = take_in
        self._recorded = recorded
        self._observer = observer
        self._dialled = Dialled(channel)
        self._tasks = Tasks(take_in)

    def send(self, plan: Send, parcel: Parcel) -> None:
        """Begin an attempt to push an update."""
        self._tasks.spawn(self._send(plan, parcel))

    def fetch(self, plan: Fetch, buffers: Sequence[memoryview], digest: int) -> None:
        """Begin an attempt to fetch a model into buffers, one after the other."""
        self._tasks.spawn(self._fetch(plan, buffers, digest))

    def break_off(self, address: str) -> None:
        """Break every attempt at an address: its other end does not answer any more."""
        self._dialled.break_off(address)

    def break_off_all(self) -> None:
        """Break every attempt, and use none of the connections again: the other ends have given them up."""
        self._dialled.break_off_all()

    def stop(self) -> None:
        """Give up every attempt: nothing more is heard of any."""
        self._tasks.cancel()

    async def close(self) -> None:
        """Cancel every attempt."""
        await self._tasks.close()

    async def _send(self, plan: Send, parcel: Parcel) -> None:
        ended: act.OutcomeReceived | act.SendBroken
        try:
            async with self._dialled.line(plan.address) as connection:
                outcome = await self._push(connection, plan, parcel)
            ended = act.OutcomeReceived(update=plan.update, outcome=outcome)
        except GivenUpError as error:
            ended = act.OutcomeReceived(update=plan.update, outcome=error.outcome)
        except (FabricError, DecodeError) as error:
            log.debug("an attempt to send %s to %s broke: %s", plan.update, plan.receiver, error)
            ended = act.SendBroken(update=plan.update, ticket=plan.ticket)
        self._take_in(ended)

    async def _push(self, connection: Connection, plan: Send, parcel: Parcel) -> Outcome:
        """Offer, send when granted, and return the outcome."""
        image = b"".join(parcel.pieces) if parcel.size_bytes <= WITH_OFFER_BYTES else b""
        if not parcel.is_unchanged() or (parcel.growth is not None and not parcel.growth.progress.is_complete):
            image = b""  # offered all the same: it is taken back once it is granted, so that the server waits no more
        meta = data_pb2.OfferMeta(
            transfer=wire.to_transfer_id(plan.update), size_bytes=parcel.size_bytes, host=self._host, image=image
        )

        async def send(frame: Frame) -> Frame:
            await self._payload(connection, frame, plan, parcel)
            return await connection.receive()

        payload = await exchange.offer(connection, meta, plan.ticket, parcel.digest)
        outcomes = await exchange.answer_to(connection, payload, send)
        if plan.update not in outcomes:
            raise TransferError(f"an outcome came without that of {plan.update}")
        return outcomes[plan.update]

    async def _payload(self, connection: Connection, frame: Frame, plan: Send, parcel: Parcel) -> None:
        if parcel.is_unchanged():
            record = await self._bytes(connection, frame, plan, parcel)
            if record is not None:
                self._recorded(record, plan.receiver)
            self._observe(plan, record)
        if parcel.is_unchanged():
            await connection.send(exchange.seal_of(frame))
            return
        meta = data_pb2.RefuseMeta(reason=DropReason.CHANGED.value).SerializeToString()
        await connection.send(Frame(kind=FrameKind.REFUSE, ticket=plan.ticket, meta=meta))
        # The connection ends with it: nobody waits for what the receiver says to that.
        raise GivenUpError(DropReason.CHANGED, "hand over tensors that nothing writes to any more")

    async def _bytes(self, connection: Connection, frame: Frame, plan: Send, parcel: Parcel) -> TransferRecord | None:
        """Send the image, as it grows if it is not complete."""
        growth = parcel.growth
        if growth is None or growth.progress.is_complete:
            return await connection.send(frame, parcel.pieces, plan.rate_bps)
        return await connection.send_stream(frame, growth, plan.rate_bps)

    async def _fetch(self, plan: Fetch, buffers: Sequence[memoryview], digest: int) -> None:
        ended: act.ModelReceived | act.FetchBroken
        try:
            async with self._dialled.line(plan.address) as connection:
                length = sum(buffer.nbytes for buffer in buffers)
                meta = await exchange.want(connection, plan.get, plan.ticket, self._host, length, digest)
                record = await connection.receive_through(buffers, lambda: None)
                self._recorded(record, meta.host)
                self._observe(plan, record)
            ended = act.ModelReceived(get=plan.get, version=wire.from_version(meta.version))
        except (FabricError, DecodeError) as error:
            log.debug("an attempt to fetch %s from %s broke: %s", plan.get, plan.source, error)
            ended = act.FetchBroken(get=plan.get, ticket=plan.ticket)
        self._take_in(ended)

    def _observe(self, plan: Send | Fetch, record: TransferRecord | None) -> None:
        if record is not None:
            seen = Transferred(
                transfer=plan.update if isinstance(plan, Send) else plan.get,
                peer=plan.receiver if isinstance(plan, Send) else plan.source,
                size_bytes=record.bytes,
                started_ns=record.started_ns,
                ended_ns=record.ended_ns,
            )
            self._observer(seen)
