"""The data connections of a worker daemon: one attempt to push an update or to fetch a model. Decides nothing.

Connections are kept and used again, one transfer at a time. An attempt ends with an event for the state machine,
whatever happens; only a connection whose framing is whole goes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError

from mlfabric import wire
from mlfabric.channels import Channel, Connection, Frame, FrameKind, TransferRecord
from mlfabric.channels.progress import Progress
from mlfabric.dialling import Dialled
from mlfabric.errors import FabricError, TransferError
from mlfabric.fail_stop import Failed, Tasks
from mlfabric.protocol import Dropped, DropReason, Fetch, ModelVersion, Outcome, Send
from mlfabric.v1 import data_pb2
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.observing import Observer, Transferred

__all__ = ["GivenUpError", "Growth", "Parcel", "Transfers"]


WITH_OFFER_BYTES = 16 * 1024


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
        connection: Connection | None = None
        try:
            connection = await self._dialled.take(plan.address)
            outcome = await self._push(connection, plan, parcel)
        except asyncio.CancelledError:
            self._dialled.discard(plan.address, connection)
            raise
        except GivenUpError as error:
            self._take_in(act.OutcomeReceived(update=plan.update, outcome=error.outcome))
        except (FabricError, DecodeError) as error:
            self._dialled.discard(plan.address, connection)
            self._take_in(act.SendBroken(update=plan.update, ticket=plan.ticket, detail=str(error)))
        else:
            self._dialled.keep(plan.address, connection)
            if isinstance(outcome, str):
                self._take_in(act.SendBroken(update=plan.update, ticket=plan.ticket, detail=outcome))
            else:
                self._take_in(act.OutcomeReceived(update=plan.update, outcome=outcome))

    async def _push(self, connection: Connection, plan: Send, parcel: Parcel) -> Outcome | str:
        """Offer, send when granted, and return the outcome, or why the server refuses."""
        image = b"".join(parcel.pieces) if parcel.size_bytes <= WITH_OFFER_BYTES else b""
        if not parcel.is_unchanged() or (parcel.growth is not None and not parcel.growth.progress.is_complete):
            image = b""  # offered all the same: it is taken back once it is granted, so that the server waits no more
        offer = data_pb2.OfferMeta(
            transfer=wire.to_transfer_id(plan.update), size_bytes=parcel.size_bytes, host=self._host, image=image
        )
        await connection.send(
            Frame(kind=FrameKind.OFFER, ticket=plan.ticket, digest=parcel.digest, meta=offer.SerializeToString())
        )
        answer = await connection.receive()
        if answer.kind is FrameKind.GRANT:
            await self._payload(connection, plan, parcel)
            answer = await connection.receive()
        if answer.kind is FrameKind.REFUSE:
            return data_pb2.RefuseMeta.FromString(answer.meta).reason
        if answer.kind is not FrameKind.OUTCOME:
            raise TransferError(f"a {answer.kind.name} frame came; wanted OUTCOME")
        outcomes = wire.from_outcomes(data_pb2.OutcomeMeta.FromString(answer.meta))
        if plan.update not in outcomes:
            raise TransferError(f"an outcome came without that of {plan.update}")
        return outcomes[plan.update]

    async def _payload(self, connection: Connection, plan: Send, parcel: Parcel) -> None:
        frame = Frame(kind=FrameKind.PAYLOAD, ticket=plan.ticket, length=parcel.size_bytes, digest=parcel.digest)
        if parcel.is_unchanged():
            record = await self._bytes(connection, frame, plan, parcel)
            if record is not None:
                self._recorded(record, plan.receiver)
            self._observe(plan, record)
        if parcel.is_unchanged():
            await connection.send(Frame(kind=FrameKind.PAYLOAD, ticket=plan.ticket, digest=parcel.digest))
            return
        meta = data_pb2.RefuseMeta(reason=DropReason.CHANGED.value).SerializeToString()
        await connection.send(Frame(kind=FrameKind.REFUSE, ticket=plan.ticket, meta=meta))
        self._dialled.drop(plan.address, connection)  # nobody waits for what the receiver says to that
        raise GivenUpError(DropReason.CHANGED, "hand over tensors that nothing writes to any more")

    async def _bytes(self, connection: Connection, frame: Frame, plan: Send, parcel: Parcel) -> TransferRecord | None:
        """Send the image, as it grows if it is not complete."""
        growth = parcel.growth
        if growth is None or growth.progress.is_complete:
            return await connection.send(frame, parcel.pieces, plan.rate_bps)
        return await connection.send_stream(frame, growth, plan.rate_bps)

    async def _fetch(self, plan: Fetch, buffers: Sequence[memoryview], digest: int) -> None:
        connection: Connection | None = None
        try:
            connection = await self._dialled.take(plan.address)
            version = await self._model(connection, plan, buffers, digest)
        except asyncio.CancelledError:
            self._dialled.discard(plan.address, connection)
            raise
        except (FabricError, DecodeError) as error:
            self._dialled.discard(plan.address, connection)
            self._take_in(act.FetchBroken(get=plan.get, ticket=plan.ticket, detail=str(error)))
        else:
            self._dialled.keep(plan.address, connection)
            if isinstance(version, str):
                self._take_in(act.FetchBroken(get=plan.get, ticket=plan.ticket, detail=version))
            else:
                self._take_in(act.ModelReceived(get=plan.get, version=version))

    async def _model(
        self, connection: Connection, plan: Fetch, buffers: Sequence[memoryview], digest: int
    ) -> ModelVersion | str:
        """Say that buffers and slot are here, receive the model and return its version, or why the server refuses."""
        want = data_pb2.WantMeta(get=wire.to_get_id(plan.get), host=self._host)
        await connection.send(Frame(kind=FrameKind.WANT, ticket=plan.ticket, meta=want.SerializeToString()))
        frame = await connection.receive()
        if frame.kind is FrameKind.REFUSE:
            return data_pb2.RefuseMeta.FromString(frame.meta).reason
        wanted = sum(buffer.nbytes for buffer in buffers)
        if frame.kind is not FrameKind.MODEL or frame.length != wanted or frame.digest != digest:
            raise TransferError(f"{frame.kind.name} of {frame.length} bytes came; wanted MODEL of {wanted}")
        meta = data_pb2.ModelMeta.FromString(frame.meta)
        record = await connection.receive_through(buffers, lambda: None)
        self._recorded(record, meta.host)
        self._observe(plan, record)
        return wire.from_version(meta.version)

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
