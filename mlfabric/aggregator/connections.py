"""The data connections that others open to an aggregator: frames in, frames out. Decides nothing.

One reader per connection turns frames into events; the state machine's actions send frames by the connection's number.
To whoever sends, an aggregator is a server: the same frames in the same order, and an input counts only once its sender
has sealed it. Its bytes are added to the sum as they arrive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from mlfabric import wire
from mlfabric.aggregator import actions as act
from mlfabric.aggregator.buffers import Buffers
from mlfabric.channels import Frame, FrameKind, TransferRecord
from mlfabric.errors import FabricError, TransferError
from mlfabric.fail_stop import Failed
from mlfabric.lines import Line, Lines, Recorded, reason_of
from mlfabric.protocol import DropReason, GetId, TransferId
from mlfabric.streaming import NotFiniteError, Relay
from mlfabric.telemetry.forwarding import note_forwarding
from mlfabric.v1 import data_pb2

__all__ = ["Connections"]

log = logging.getLogger("mlfabric.aggregator")


@dataclass(slots=True)
class _Line(Line):
    """One connection, and the input of a sum that it was granted."""

    grant: act.Grant | None = None


class Connections(Lines[_Line]):
    """Every data connection that was opened to this aggregator.

    Args:
        buffers: where sums and models are.
        host: this aggregator's host.
        take_in: where events for the state machine go.
        recorded: told of every finished transfer of bytes, and the host at its other end.
        failed: told of every connection that broke, or whose other end broke the rules.
    """

    def __init__(
        self,
        buffers: Buffers,
        host: str,
        take_in: Callable[[act.AggregatorEvent | Failed], None],
        recorded: Recorded,
        failed: Callable[[], None],
    ) -> None:
        super().__init__(_Line, log, take_in, failed)
        self._buffers = buffers
        self._host = host
        self._take_in = take_in
        self._recorded = recorded

    def _offered(self, line: _Line, transfer: TransferId, meta: data_pb2.OfferMeta, digest: int) -> None:
        self._take_in(
            act.Offered(
                connection=line.number, transfer=transfer, ticket=line.ticket, length=meta.size_bytes, digest=digest
            )
        )

    def _wanted(self, line: _Line, get: GetId) -> None:
        self._take_in(act.Wanted(connection=line.number, get=get, ticket=line.ticket))

    async def _payload(self, line: _Line, frame: Frame) -> None:
        grant, line.grant = line.grant, None
        if grant is None or frame.ticket != line.ticket:
            raise TransferError("a payload came that was not granted")
        try:
            record = await self._buffers.sum(grant.sum).receive(line.connection, grant.index, frame.length)
        except NotFiniteError as error:
            self._not_finite(line, grant, error)
            await self._skip(line)
            return
        seal = await line.connection.receive()
        if seal.kind is FrameKind.REFUSE:
            self._take_back(line, grant, reason_of(seal))
            return
        if seal.kind is not FrameKind.PAYLOAD or seal.length:
            raise TransferError(f"a {seal.kind.name} frame of {seal.length} bytes came; wanted a seal")
        self._recorded(record, line.peer_host)
        note_forwarding(line.peer_host, self._host, record.bytes, record.started_ns, record.ended_ns)
        self._take_in(act.InputSealed(transfer=grant.transfer, connection=line.number))

    def _not_finite(self, line: _Line, grant: act.Grant, error: NotFiniteError) -> None:
        if error.input_index != grant.index:
            raise TransferError(f"its sum was torn: {error}") from error
        detail = f"{error.tensor} has NaN or Inf"
        self._unusable(line, grant, DropReason.NOT_FINITE, detail)

    async def _skip(self, line: _Line) -> None:
        """Throw away what is left of a payload that was answered, so that its sender lives to read the answer."""
        await line.connection.discard(line.connection.unread_bytes)
        await line.connection.receive()

    def _taken_back(self, line: _Line, reason: str) -> None:
        if line.grant is None:
            raise TransferError(f"the sender takes back what was not granted: {reason}")
        self._take_back(line, line.grant, reason)

    def _take_back(self, line: _Line, grant: act.Grant, reason: str) -> None:
        self._unusable(line, grant, DropReason.CHANGED, reason)

    def _unusable(self, line: _Line, grant: act.Grant, cause: DropReason, detail: str) -> None:
        line.grant = None
        self._take_in(act.InputUnusable(transfer=grant.transfer, connection=line.number, cause=cause, detail=detail))

    def _broke(self, line: _Line, detail: str) -> None:
        if line.transfer is not None:
            self._take_in(act.InputBroken(transfer=line.transfer, connection=line.number, detail=detail))
        if line.get is not None:
            self._take_in(act.TargetBroken(get=line.get, connection=line.number, detail=detail))

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
            line.grant = action
            self._send(line, FrameKind.GRANT)

    async def _add(self, line: _Line, grant: act.Grant, image: bytes) -> None:
        try:
            await self._buffers.sum(grant.sum).add(grant.index, (memoryview(image),))
        except NotFiniteError as error:
            if error.input_index == grant.index:
                self._not_finite(line, grant, error)
        except FabricError as error:
            self._take_in(act.InputBroken(transfer=grant.transfer, connection=line.number, detail=str(error)))
        else:
            self._take_in(act.InputSealed(transfer=grant.transfer, connection=line.number))

    def answer(self, action: act.Answer) -> None:
        """Tell a sender what became of its updates."""
        self._answer(action.connection, dict(action.outcomes), action.server_epoch)

    def hand_on(self, action: act.HandModelOn) -> None:
        """Send a model as it arrives."""
        line = self._lines.get(action.connection)
        if line is None:
            gone = "the connection is gone"
            self._take_in(act.TargetBroken(get=action.get, connection=action.connection, detail=gone))
        else:
            # From here on the task that sends reports the end; the worker may begin anew before it does.
            line.get = None
            self._spawn(line, self._send_model(line, action))

    async def _send_model(self, line: _Line, action: act.HandModelOn) -> None:
        ended: act.TargetServed | act.TargetBroken
        try:
            record = await self._stream(line, action, self._buffers.model(action.source))
        except FabricError as error:
            ended = act.TargetBroken(get=action.get, connection=line.number, detail=str(error))
            line.connection.close()
        else:
            self._recorded(record, line.peer_host)
            ended = act.TargetServed(get=action.get, connection=line.number)
        self._take_in(ended)

    async def _stream(self, line: _Line, action: act.HandModelOn, relay: Relay) -> TransferRecord:
        meta = data_pb2.ModelMeta(version=wire.to_version(action.version), host=self._host).SerializeToString()
        length = relay.progress.size_bytes
        frame = Frame(kind=FrameKind.MODEL, ticket=line.ticket, length=length, digest=action.digest, meta=meta)
        if not relay.progress.is_complete:
            return await line.connection.send_stream(frame, relay, action.rate_bps)
        record = await line.connection.send(frame, (relay.payload,), action.rate_bps)
        assert record is not None, "a model has bytes"
        return record

    def _end(self, connection: int, kind: FrameKind, meta: bytes) -> None:
        line = self._lines.get(connection)
        if line is not None:
            line.grant = None
        super()._end(connection, kind, meta)
