"""The data connections that others open to an aggregator: frames in, frames out. Decides nothing.

One reader per connection turns frames into events; the state machine's actions send frames by the connection's number.
To whoever sends, an aggregator is a server: the same frames in the same order, and an input counts only once its sender
has sealed it. Its bytes are added to the sum as they arrive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mlfabric.aggregator import actions as act
from mlfabric.aggregator.buffers import Buffers
from mlfabric.channels import Frame, FrameKind, TransferRecord
from mlfabric.errors import FabricError, TransferError
from mlfabric.fail_stop import Failed
from mlfabric.protocol import DropReason
from mlfabric.telemetry.forwarding_log import note_forwarding
from mlfabric.transfer.exchange import reason_of
from mlfabric.transfer.offers import LineEvent, PayloadReceived, TransferBroken
from mlfabric.transfer.running_sum import NotFiniteError
from mlfabric.transfer.served_connections import Line, Lines, Recorded

__all__ = ["Connections"]

log = logging.getLogger("mlfabric.aggregator")


class Connections(Lines[act.Grant]):
    """Every data connection that was opened to this aggregator.

    Args:
        buffers: where sums and models are.
        host, take_in, recorded, failed: see ``Lines``.
    """

    def __init__(
        self,
        buffers: Buffers,
        host: str,
        take_in: Callable[[act.InputUnusable | LineEvent | Failed], None],
        recorded: Recorded,
        failed: Callable[[], None],
    ) -> None:
        super().__init__(log, host, take_in, recorded, failed)
        self._buffers = buffers
        self._tell_unusable: Callable[[act.InputUnusable], None] = take_in

    async def _payload(self, line: Line[act.Grant], frame: Frame, granted: act.Grant) -> None:
        try:
            record = await self._buffers.sum(granted.sum).receive(line.connection, granted.index, frame.length)
        except NotFiniteError as error:
            self._not_finite(line, granted, error)
            await self._skip(line)
            return
        seal = await line.connection.receive()
        if seal.kind is FrameKind.REFUSE:
            self._unusable(line, granted, DropReason.CHANGED, reason_of(seal))
            return
        if seal.kind is not FrameKind.PAYLOAD or seal.length:
            raise TransferError(f"a {seal.kind.name} frame of {seal.length} bytes came; wanted a seal")
        self._recorded(record, line.peer_host)
        note_forwarding(line.peer_host, self._host, record.bytes, record.started_ns, record.ended_ns)
        self._take_in(PayloadReceived(transfer=granted.transfer, connection=line.number))

    def _not_finite(self, line: Line[act.Grant], grant: act.Grant, error: NotFiniteError) -> None:
        if error.input_index != grant.index:
            raise TransferError(f"its sum was torn: {error}") from error
        detail = f"{error.tensor} has NaN or Inf"
        self._unusable(line, grant, DropReason.NOT_FINITE, detail)

    async def _skip(self, line: Line[act.Grant]) -> None:
        """Throw away what is left of a payload that was answered, so that its sender lives to read the answer."""
        await line.connection.discard(line.connection.unread_bytes)
        await line.connection.receive()

    def _taken_back(self, line: Line[act.Grant], reason: str) -> None:
        if line.granted is None:
            raise TransferError(f"the sender takes back what was not granted: {reason}")
        self._unusable(line, line.granted, DropReason.CHANGED, reason)
        line.granted = None

    def _unusable(self, line: Line[act.Grant], grant: act.Grant, cause: DropReason, detail: str) -> None:
        event = act.InputUnusable(transfer=grant.transfer, connection=line.number, cause=cause, detail=detail)
        self._tell_unusable(event)

    # Actions

    def grant(self, action: act.Grant) -> None:
        """Let an input's bytes come, or add those that came with its offer."""
        line = self._lines.get(action.connection)
        if line is None:
            return
        if line.image:
            image, line.image = line.image, b""
            self._spawn(line, self._add(line, action, image))
        else:
            line.granted = action
            self._send(line, FrameKind.GRANT)

    async def _add(self, line: Line[act.Grant], grant: act.Grant, image: bytes) -> None:
        try:
            await self._buffers.sum(grant.sum).add(grant.index, (memoryview(image),))
        except NotFiniteError as error:
            if error.input_index == grant.index:
                self._not_finite(line, grant, error)
        except FabricError as error:
            self._take_in(TransferBroken(transfer=grant.transfer, connection=line.number, detail=str(error)))
        else:
            self._take_in(PayloadReceived(transfer=grant.transfer, connection=line.number))

    def hand_on(self, action: act.HandModelOn) -> None:
        """Send a model as it arrives."""

        async def sending(line: Line[act.Grant]) -> TransferRecord | None:
            relay = self._buffers.model(action.source)
            frame = self._model_frame(line, action.version, relay.progress.size_bytes, action.digest)
            if not relay.progress.is_complete:
                return await line.connection.send_stream(frame, relay, action.rate_bps)
            return await line.connection.send(frame, (relay.payload,), action.rate_bps)

        self._send_model(action.connection, action.get, sending)
