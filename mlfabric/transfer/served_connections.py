"""The data connections that others open to a member that takes transfers in: frames in, frames out. Decides nothing.

Shell-level, shared by servers, replicas and aggregators. One reader per connection turns frames into what the member
does about them; what it answers goes out by the connection's number. A connection carries one transfer at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from mlfabric import wire
from mlfabric.channels import TICKET_BYTES, Connection, ConnectionClosedError, Frame, FrameKind, TransferRecord
from mlfabric.errors import FabricError, TransferError
from mlfabric.fail_stop import Failed, Tasks
from mlfabric.protocol import GetId, ModelVersion, TransferId
from mlfabric.transfer.exchange import LONGEST_REASON, reason_of
from mlfabric.transfer.offers import (
    Abandon,
    Answer,
    GetBroken,
    GetServed,
    LineEvent,
    Offered,
    Refuse,
    SeedOffered,
    TransferBroken,
    Wanted,
)
from mlfabric.v1 import data_pb2

__all__ = ["Line", "Lines", "Recorded"]

Recorded: TypeAlias = Callable[[TransferRecord, str], None]
"""Takes the record of a transfer and its other end."""


GrantedT = TypeVar("GrantedT")


@dataclass(slots=True)
class Line(Generic[GrantedT]):
    """One connection and the transfer that it carries now.

    Args:
        number: what the state machine calls it.
        connection: its frames.
        ticket: of the transfer that was begun last.
        peer_host: the host at the other end, as it says.
        transfer: what is offered or on its way in; None if nothing is.
        get: what is wanted or on its way out; None if nothing is.
        image: the bytes that came with an offer and wait for their slot.
        granted: where the bytes go that may come now.
        abandoned: closed from this end.
        running: tasks that send on it.
    """

    number: int
    connection: Connection
    ticket: bytes = bytes(TICKET_BYTES)
    peer_host: str = ""
    transfer: TransferId | None = None
    get: GetId | None = None
    image: bytes = b""
    granted: GrantedT | None = None
    abandoned: bool = False
    running: set[asyncio.Task[None]] = field(default_factory=set)


class Lines(ABC, Generic[GrantedT]):
    """Every data connection that was opened to one member.

    Args:
        log: the member's log.
        host: the member's.
        take_in: where events for the state machine go.
        recorded: told of every finished transfer of bytes, and the host at its other end.
        failed: told of every connection that broke, or whose other end broke the rules.
    """

    def __init__(
        self,
        log: logging.Logger,
        host: str,
        take_in: Callable[[LineEvent | Failed], None],
        recorded: Recorded,
        failed: Callable[[], None],
    ) -> None:
        self._tasks = Tasks(take_in)
        self._log = log
        self._host = host
        self._take_in = take_in
        self._recorded = recorded
        self._failed = failed
        self._lines: dict[int, Line[GrantedT]] = {}
        self._numbers = itertools.count(1)

    # Frames in

    async def serve(self, connection: Connection) -> None:
        """Read one connection until it ends."""
        await self._tasks.spawn(self._serve(connection))

    async def _serve(self, connection: Connection) -> None:
        line = Line[GrantedT](next(self._numbers), connection)
        self._lines[line.number] = line
        detail = "it was closed"
        try:
            while True:
                await self._read(line)
        except ConnectionClosedError:
            pass
        except (FabricError, DecodeError) as error:
            detail = str(error)
            if not line.abandoned:
                self._failed()
                self._log.info("data connection from %s: %s", connection.peer, error)
        finally:
            del self._lines[line.number]
            connection.close()
            self._broke(line, detail)

    async def _read(self, line: Line[GrantedT]) -> None:
        frame = await line.connection.receive()
        if line.running and frame.kind in (FrameKind.OFFER, FrameKind.WANT):
            await asyncio.wait(line.running)  # who does not take in an answer is asked for nothing more
        match frame.kind:
            case FrameKind.OFFER:
                self._begin_offer(line, frame)
            case FrameKind.WANT:
                self._begin_want(line, frame)
            case FrameKind.PAYLOAD:
                granted, line.granted = line.granted, None
                if granted is None or frame.ticket != line.ticket:
                    raise TransferError("a payload came that was not granted")
                await self._payload(line, frame, granted)
            case FrameKind.REFUSE:
                self._taken_back(line, reason_of(frame))
            case _:
                raise TransferError(f"a {frame.kind.name} frame came; allowed: OFFER, PAYLOAD, REFUSE, WANT")

    def _begin_offer(self, line: Line[GrantedT], frame: Frame) -> None:
        meta = data_pb2.OfferMeta.FromString(frame.meta)
        _must_be_idle(line)
        if meta.image and len(meta.image) != meta.size_bytes:
            raise TransferError(f"an offer of {meta.size_bytes} bytes came with {len(meta.image)} of them")
        line.transfer, line.ticket, line.peer_host = wire.from_transfer_id(meta.transfer), frame.ticket, meta.host
        line.image = meta.image
        self._take_in(
            Offered(
                connection=line.number,
                transfer=line.transfer,
                ticket=line.ticket,
                length=meta.size_bytes,
                digest=frame.digest,
                seed=_seed_of(meta),
            )
        )

    def _begin_want(self, line: Line[GrantedT], frame: Frame) -> None:
        meta = data_pb2.WantMeta.FromString(frame.meta)
        _must_be_idle(line)
        line.get, line.ticket, line.peer_host = wire.from_get_id(meta.get), frame.ticket, meta.host
        self._take_in(Wanted(connection=line.number, get=line.get, ticket=line.ticket))

    @abstractmethod
    async def _payload(self, line: Line[GrantedT], frame: Frame, granted: GrantedT) -> None:
        """Receive the bytes that a frame announces, and their seal."""

    @abstractmethod
    def _taken_back(self, line: Line[GrantedT], reason: str) -> None:
        """Do something about a sender that takes back what it offered."""

    def _broke(self, line: Line[GrantedT], detail: str) -> None:
        """Tell of what a connection carried when it ended."""
        if line.transfer is not None:
            self._take_in(TransferBroken(transfer=line.transfer, connection=line.number, detail=detail))
        if line.get is not None:
            self._take_in(GetBroken(get=line.get, connection=line.number, detail=detail))

    # Frames out

    def refuse(self, action: Refuse) -> None:
        """Tell the other end that this transfer will not be."""
        meta = data_pb2.RefuseMeta(reason=action.reason[:LONGEST_REASON])
        self._end(action.connection, FrameKind.REFUSE, meta.SerializeToString())

    def abandon(self, action: Abandon) -> None:
        """Close a connection in the middle of its transfer."""
        line = self._lines.get(action.connection)
        if line is not None:
            line.transfer = line.get = None
            line.abandoned = True
            line.connection.close()

    def answer(self, action: Answer) -> None:
        """Tell a sender what became of its updates."""
        self._end(action.connection, FrameKind.OUTCOME, wire.to_outcomes(dict(action.outcomes)).SerializeToString())

    def _end(self, connection: int, kind: FrameKind, meta: bytes) -> None:
        line = self._lines.get(connection)
        if line is not None:
            line.transfer = line.get = line.granted = None
            line.image = b""
            self._send(line, kind, meta)

    def _send(self, line: Line[GrantedT], kind: FrameKind, meta: bytes = b"") -> None:
        self._spawn(line, self._send_frame(line, Frame(kind=kind, ticket=line.ticket, meta=meta)))

    async def _send_frame(self, line: Line[GrantedT], frame: Frame) -> None:
        try:
            await line.connection.send(frame)
        except TransferError as error:
            self._log.debug("cannot answer %s: %s", line.connection.peer, error)

    def _send_model(
        self, connection: int, get: GetId, sending: Callable[[Line[GrantedT]], Awaitable[TransferRecord | None]]
    ) -> bool:
        """Send a model and tell how that ended; tell whether the connection is there."""
        line = self._lines.get(connection)
        if line is None:
            self._take_in(GetBroken(get=get, connection=connection, detail="the connection is gone"))
            return False
        # From here on the task that sends reports the end; the worker may begin anew before it does.
        line.get = None
        self._spawn(line, self._sent_model(line, get, sending(line)))
        return True

    async def _sent_model(self, line: Line[GrantedT], get: GetId, sending: Awaitable[TransferRecord | None]) -> None:
        ended: GetServed | GetBroken
        try:
            record = await sending
        except FabricError as error:
            ended = GetBroken(get=get, connection=line.number, detail=str(error))
            line.connection.close()
        else:
            ended = GetServed(get=get, connection=line.number)
            if record is not None:
                self._recorded(record, line.peer_host)
        self._take_in(ended)

    def _model_frame(self, line: Line[GrantedT], version: ModelVersion, length: int, digest: int) -> Frame:
        meta = data_pb2.ModelMeta(version=wire.to_version(version), host=self._host).SerializeToString()
        return Frame(kind=FrameKind.MODEL, ticket=line.ticket, length=length, digest=digest, meta=meta)

    def _spawn(self, line: Line[GrantedT], coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.spawn(coroutine)
        line.running.add(task)
        task.add_done_callback(line.running.discard)


def _seed_of(meta: data_pb2.OfferMeta) -> SeedOffered | None:
    if not meta.HasField("seed"):
        return None
    return SeedOffered(holds=wire.from_server_holds(meta.seed, meta.seed.server), steps=meta.steps)


def _must_be_idle(line: Line[GrantedT]) -> None:
    if line.transfer is not None or line.get is not None:
        raise TransferError(f"a second transfer was begun on one connection while {line.transfer or line.get} runs")
