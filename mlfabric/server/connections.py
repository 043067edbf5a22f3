"""The data connections of a server: frames in, frames out. Decides nothing.

One reader per connection turns frames into events; the state machine's actions send frames by the connection's number.
After a transfer's bytes its sender sends a seal: an empty payload if they are whole (a worker's tensors stayed as they
were, an aggregator's inputs all came), a refusal if not. Only what is sealed is complete. What is small comes with its
offer and waits for its slot.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from mlfabric import wire
from mlfabric.channels import Connection, ConnectionClosedError, Frame, FrameKind, TransferRecord
from mlfabric.errors import TransferError, UsageError
from mlfabric.protocol import GetId, TransferId
from mlfabric.server import actions as act
from mlfabric.server.store import Held
from mlfabric.server.stores import Stores
from mlfabric.v1 import data_pb2

__all__ = ["Connections", "Recorded"]

log = logging.getLogger("mlfabric.server")

Recorded = Callable[[TransferRecord, str], None]
"""Takes the record of a transfer and the host at its other end."""


@dataclass(slots=True)
class _Line:
    """One connection and the transfer that it carries now."""

    number: int
    connection: Connection
    ticket: bytes = bytes(16)
    peer_host: str = ""
    transfer: TransferId | None = None
    get: GetId | None = None
    buffer: memoryview | None = None
    image: bytes = b""
    sending: set[asyncio.Task[None]] = field(default_factory=set)


class Connections:
    """Every data connection to this server.

    Args:
        stores: where buffers and models are.
        host: this server's host.
        take_in: where events for the state machine go.
        recorded: told of every finished transfer of bytes.
    """

    def __init__(
        self, stores: Stores, host: str, take_in: Callable[[act.ServerEvent], None], recorded: Recorded
    ) -> None:
        self._stores = stores
        self._host = host
        self._take_in = take_in
        self._recorded = recorded
        self._lines: dict[int, _Line] = {}
        self._numbers = itertools.count(1)

    async def serve(self, connection: Connection) -> None:
        """Read one connection until it ends."""
        line = _Line(next(self._numbers), connection)
        self._lines[line.number] = line
        detail = "it was closed"
        try:
            while True:
                await self._read(line)
        except ConnectionClosedError:
            pass
        except (TransferError, UsageError, DecodeError) as error:
            detail = str(error)
            log.info("data connection from %s: %s", connection.peer, error)
        finally:
            del self._lines[line.number]
            connection.close()
            self._broke(line, detail)

    async def _read(self, line: _Line) -> None:
        frame = await line.connection.receive()
        match frame.kind:
            case FrameKind.OFFER:
                self._offered(line, frame)
            case FrameKind.PAYLOAD:
                await self._payload(line, frame)
            case FrameKind.WANT:
                self._wanted(line, frame)
            case FrameKind.REFUSE:
                reason = data_pb2.RefuseMeta.FromString(frame.meta).reason
                raise TransferError(f"the sender takes it back: {reason}")
            case _:
                raise TransferError(f"a {frame.kind.name} frame came; allowed: OFFER, PAYLOAD, WANT")

    def _offered(self, line: _Line, frame: Frame) -> None:
        meta = data_pb2.OfferMeta.FromString(frame.meta)
        self._must_be_idle(line)
        line.transfer, line.ticket, line.peer_host = wire.from_transfer_id(meta.transfer), frame.ticket, meta.host
        if meta.image and len(meta.image) != meta.size_bytes:
            raise TransferError(f"an offer of {meta.size_bytes} bytes came with {len(meta.image)} of them")
        line.image = meta.image
        self._take_in(
            act.Offered(
                connection=line.number,
                transfer=line.transfer,
                ticket=frame.ticket,
                length=meta.size_bytes,
                digest=frame.digest,
                seed=_seed_of(meta),
            )
        )

    def _wanted(self, line: _Line, frame: Frame) -> None:
        meta = data_pb2.WantMeta.FromString(frame.meta)
        self._must_be_idle(line)
        line.get, line.ticket, line.peer_host = wire.from_get_id(meta.get), frame.ticket, meta.host
        self._take_in(act.Wanted(connection=line.number, get=line.get, ticket=frame.ticket))

    def _must_be_idle(self, line: _Line) -> None:
        if line.transfer is not None or line.get is not None:
            raise TransferError(f"a second transfer was begun on one connection while {line.transfer or line.get} runs")

    async def _payload(self, line: _Line, frame: Frame) -> None:
        if line.transfer is None or line.buffer is None or frame.ticket != line.ticket:
            raise TransferError("a payload came that was not granted")
        if frame.length != line.buffer.nbytes:
            raise TransferError(f"{frame.length} bytes came; {line.buffer.nbytes} were granted")
        record = await line.connection.receive_into(line.buffer, frame.length)
        seal = await line.connection.receive()
        if seal.kind is not FrameKind.PAYLOAD or seal.length:
            raise TransferError("what was sent is not to be used: it came without its seal")
        line.buffer = None
        self._recorded(record, line.peer_host)
        self._take_in(act.PayloadReceived(transfer=line.transfer, connection=line.number))

    def _broke(self, line: _Line, detail: str) -> None:
        line.buffer = None
        if line.transfer is not None:
            self._take_in(act.TransferBroken(transfer=line.transfer, connection=line.number, detail=detail))
        if line.get is not None:
            self._take_in(act.GetBroken(get=line.get, connection=line.number, detail=detail))

    # Actions

    def grant(self, action: act.Grant) -> None:
        """Reserve the buffer and let the bytes come."""
        line = self._lines.get(action.connection)
        if line is not None:
            buffer = self._stores.reserve(action.transfer, action.size_bytes)
            if line.image:
                buffer[:] = line.image
                line.image = b""
                self._take_in(act.PayloadReceived(transfer=action.transfer, connection=line.number))
            else:
                line.buffer = buffer
                self._send(line, FrameKind.GRANT)

    def answer(self, action: act.Answer, server_epoch: int) -> None:
        """Tell the sender the outcomes."""
        meta = wire.to_outcomes(dict(action.outcomes), server_epoch)
        self._end(action.connection, FrameKind.OUTCOME, meta.SerializeToString())

    def refuse(self, connection: int, reason: str) -> None:
        """Tell the other end that this transfer will not be."""
        self._end(connection, FrameKind.REFUSE, data_pb2.RefuseMeta(reason=reason).SerializeToString())

    def abandon(self, connection: int) -> None:
        """Close a connection whose transfer was voided."""
        line = self._lines.get(connection)
        if line is not None:
            line.transfer = None
            line.connection.close()

    def serve_model(self, action: act.ServeModel) -> None:
        """Pin the current version now and send it."""
        line = self._lines.get(action.connection)
        if line is None:
            self._take_in(act.GetBroken(get=action.get, connection=action.connection, detail="the connection is gone"))
        else:
            held = self._stores.acquire(action.model)
            assert held.version == action.version.number, f"{action} but the store is at {held.version}"
            # From here on the task that sends reports the end; the worker may begin anew before it does.
            line.get = None
            self._spawn(line, self._send_model(line, action, held))

    async def _send_model(self, line: _Line, action: act.ServeModel, held: Held) -> None:
        meta = data_pb2.ModelMeta(version=wire.to_version(action.version), host=self._host).SerializeToString()
        digest = self._stores.store(action.model).spec.layout.digest
        frame = Frame(kind=FrameKind.MODEL, ticket=line.ticket, length=held.image.nbytes, digest=digest, meta=meta)
        try:
            record = await line.connection.send(frame, (held.image,), action.rate_bps)
        except TransferError as error:
            self._stores.release(action.model, held)
            self._take_in(act.GetBroken(get=action.get, connection=line.number, detail=str(error)))
            line.connection.close()
        else:
            self._stores.release(action.model, held)
            if record is not None:
                self._recorded(record, line.peer_host)
            self._take_in(act.GetServed(get=action.get, connection=line.number))

    def _end(self, connection: int, kind: FrameKind, meta: bytes) -> None:
        line = self._lines.get(connection)
        if line is not None:
            line.transfer = line.get = None
            self._send(line, kind, meta)

    def _send(self, line: _Line, kind: FrameKind, meta: bytes = b"") -> None:
        self._spawn(line, self._send_frame(line, Frame(kind=kind, ticket=line.ticket, meta=meta)))

    async def _send_frame(self, line: _Line, frame: Frame) -> None:
        try:
            await line.connection.send(frame)
        except TransferError as error:
            log.debug("cannot answer %s: %s", line.connection.peer, error)

    def _spawn(self, line: _Line, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        line.sending.add(task)
        task.add_done_callback(line.sending.discard)


def _seed_of(meta: data_pb2.OfferMeta) -> act.SeedOffered | None:
    if not meta.HasField("seed"):
        return None
    return act.SeedOffered(holds=wire.from_server_holds(meta.seed, meta.seed.server), steps=meta.steps)
