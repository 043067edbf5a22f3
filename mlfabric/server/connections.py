"""The data connections of a server: frames in, frames out. Decides nothing.

One reader per connection turns frames into events; the state machine's actions send frames by the connection's number.
After a transfer's bytes its sender sends a seal: an empty payload if they are whole (a worker's tensors stayed as they
were, an aggregator's inputs all came), a refusal if not. Only what is sealed is complete. What is small comes with its
offer and waits for its slot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from mlfabric import wire
from mlfabric.channels import Frame, FrameKind
from mlfabric.errors import TransferError
from mlfabric.fail_stop import Failed
from mlfabric.lines import Line, Lines, Recorded
from mlfabric.protocol import GetId, TransferId
from mlfabric.server import actions as act
from mlfabric.server.store import Held, ModelStore
from mlfabric.server.stores import Stores
from mlfabric.v1 import data_pb2

__all__ = ["Connections"]

log = logging.getLogger("mlfabric.server")


@dataclass(slots=True)
class _Line(Line):
    """One connection, and where the bytes go that it was granted."""

    buffer: memoryview | None = None


class Connections(Lines[_Line]):
    """Every data connection to this server.

    Args:
        stores: where buffers and models are.
        host: this server's host.
        take_in: where events for the state machine go.
        recorded: told of every finished transfer of bytes, and the host at its other end.
        failed: told of every connection that broke, or whose other end broke the rules.
    """

    def __init__(
        self,
        stores: Stores,
        host: str,
        take_in: Callable[[act.ServerEvent | Failed], None],
        recorded: Recorded,
        failed: Callable[[], None],
    ) -> None:
        super().__init__(_Line, log, take_in, failed)
        self._stores = stores
        self._host = host
        self._take_in = take_in
        self._recorded = recorded

    def _offered(self, line: _Line, transfer: TransferId, meta: data_pb2.OfferMeta, digest: int) -> None:
        self._take_in(
            act.Offered(
                connection=line.number,
                transfer=transfer,
                ticket=line.ticket,
                length=meta.size_bytes,
                digest=digest,
                seed=_seed_of(meta),
            )
        )

    def _wanted(self, line: _Line, get: GetId) -> None:
        self._take_in(act.Wanted(connection=line.number, get=get, ticket=line.ticket))

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

    def _taken_back(self, line: _Line, reason: str) -> None:
        raise TransferError(f"the sender takes it back: {reason}")

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
        self._answer(action.connection, dict(action.outcomes), server_epoch)

    def serve_model(self, action: act.ServeModel) -> Held | None:
        """Send what is pinned for the get, or pin the current version now and send it; return it.

        It stays pinned until the event loop goes on at least; None: the connection is gone.
        """
        line = self._lines.get(action.connection)
        if line is None:
            self._stores.unpin(action.get)
            self._take_in(act.GetBroken(get=action.get, connection=action.connection, detail="the connection is gone"))
            return None
        store, held = self._stores.store(action.model), self._stores.acquire(action.model, action.get)
        assert held.version == action.version.number, f"{action} but the store is at {held.version}"
        # From here on the task that sends reports the end; the worker may begin anew before it does.
        line.get = None
        self._spawn(line, self._send_model(line, action, store, held))
        return held

    async def _send_model(self, line: _Line, action: act.ServeModel, store: ModelStore, held: Held) -> None:
        meta = data_pb2.ModelMeta(version=wire.to_version(action.version), host=self._host).SerializeToString()
        digest = store.spec.layout.digest
        frame = Frame(kind=FrameKind.MODEL, ticket=line.ticket, length=held.image.nbytes, digest=digest, meta=meta)
        try:
            record = await line.connection.send(frame, (held.image,), action.rate_bps)
        except TransferError as error:
            store.release(held)
            self._take_in(act.GetBroken(get=action.get, connection=line.number, detail=str(error)))
            line.connection.close()
        else:
            store.release(held)
            if record is not None:
                self._recorded(record, line.peer_host)
            self._take_in(act.GetServed(get=action.get, connection=line.number))


def _seed_of(meta: data_pb2.OfferMeta) -> act.SeedOffered | None:
    if not meta.HasField("seed"):
        return None
    return act.SeedOffered(holds=wire.from_server_holds(meta.seed, meta.seed.server), steps=meta.steps)
