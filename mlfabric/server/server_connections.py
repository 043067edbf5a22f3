"""The data connections of a server: frames in, frames out. Decides nothing.

One reader per connection turns frames into events; the state machine's actions send frames by the connection's number.
After a transfer's bytes its sender sends a seal: an empty payload if they are whole (a worker's tensors stayed as they
were, an aggregator's inputs all came), a refusal if not. Only what is sealed is complete. What is small comes with its
offer and waits for its slot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mlfabric.channels import Frame, FrameKind, TransferRecord
from mlfabric.errors import TransferError
from mlfabric.fail_stop import Failed
from mlfabric.server import actions as act
from mlfabric.server.store import Held
from mlfabric.server.stores import Stores
from mlfabric.transfer.offers import LineEvent, PayloadReceived
from mlfabric.transfer.served_connections import Line, Lines, Recorded

__all__ = ["Connections"]

log = logging.getLogger("mlfabric.server")


class Connections(Lines[memoryview]):
    """Every data connection to this server.

    Args:
        stores: where buffers and models are.
        host, take_in, recorded, failed: see ``Lines``.
    """

    def __init__(
        self,
        stores: Stores,
        host: str,
        take_in: Callable[[LineEvent | Failed], None],
        recorded: Recorded,
        failed: Callable[[], None],
    ) -> None:
        super().__init__(log, host, take_in, recorded, failed)
        self._stores = stores

    async def _payload(self, line: Line[memoryview], frame: Frame, granted: memoryview) -> None:
        if line.transfer is None:
            raise TransferError("a payload came of what was answered")
        if frame.length != granted.nbytes:
            raise TransferError(f"{frame.length} bytes came; {granted.nbytes} were granted")
        record = await line.connection.receive_into(granted, frame.length)
        seal = await line.connection.receive()
        if seal.kind is not FrameKind.PAYLOAD or seal.length:
            raise TransferError("what was sent is not to be used: it came without its seal")
        self._recorded(record, line.peer_host)
        self._take_in(PayloadReceived(transfer=line.transfer, connection=line.number))

    def _taken_back(self, line: Line[memoryview], reason: str) -> None:
        raise TransferError(f"the sender takes it back: {reason}")

    # Actions

    def grant(self, action: act.Grant) -> None:
        """Reserve the buffer and let the bytes come."""
        line = self._lines.get(action.connection)
        if line is not None:
            buffer = self._stores.reserve(action.transfer, action.size_bytes)
            if line.image:
                buffer[:] = line.image
                line.image = b""
                self._take_in(PayloadReceived(transfer=action.transfer, connection=line.number))
            else:
                line.granted = buffer
                self._send(line, FrameKind.GRANT)

    def serve_model(self, action: act.ServeModel) -> Held | None:
        """Send what is pinned for the get, or pin the current version now and send it; return it.

        It stays pinned until the event loop goes on at least; None: the connection is gone.
        """
        store, held = self._stores.store(action.model), self._stores.acquire(action.model, action.get)
        assert held.version == action.version.number, f"{action} but the store is at {held.version}"

        async def sending(line: Line[memoryview]) -> TransferRecord | None:
            frame = self._model_frame(line, action.version, held.image.nbytes, store.spec.layout.digest)
            try:
                return await line.connection.send(frame, (held.image,), action.rate_bps)
            finally:
                store.release(held)

        if self._send_model(action.connection, action.get, sending):
            return held
        store.release(held)
        return None
