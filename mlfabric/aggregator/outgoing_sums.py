"""The data connections that an aggregator opens: sums to their receivers, models from their sources. Decides nothing.

Connections are kept and used again, one transfer at a time. An errand ends with an event for the state machine, unless
the state machine gave it up; only a connection whose framing is whole goes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from mlfabric import wire
from mlfabric.aggregator import actions as act
from mlfabric.aggregator.buffers import Buffers
from mlfabric.channels import Connection, Frame, FrameKind, TcpChannel
from mlfabric.errors import FabricError, TransferError
from mlfabric.fail_stop import Failed, Tasks
from mlfabric.protocol import GetId, Sum, SumId
from mlfabric.transfer import exchange
from mlfabric.transfer.dialling import Dialled
from mlfabric.transfer.running_sum import Accumulator
from mlfabric.transfer.served_connections import Recorded
from mlfabric.v1 import data_pb2

__all__ = ["Outgoing"]


@dataclass(slots=True)
class _Errand:
    """A task, and the permission to seal what it sends."""

    task: asyncio.Task[None]
    may_seal: asyncio.Event


class Outgoing:
    """Errands under way.

    Args:
        channel: the aggregator's data channel.
        host: this aggregator's host.
        buffers: where sums and models are.
        take_in: where events for the state machine go.
        recorded: told of every finished transfer and its other end: the host it came from, or the member it went to.
    """

    def __init__(
        self,
        channel: TcpChannel,
        host: str,
        buffers: Buffers,
        take_in: Callable[[act.AggregatorEvent | Failed], None],
        recorded: Recorded,
    ) -> None:
        self._host = host
        self._buffers = buffers
        self._take_in = take_in
        self._recorded = recorded
        self._dialled = Dialled(channel)
        self._tasks = Tasks(take_in)
        self._errands: dict[SumId | GetId, _Errand] = {}

    def offer(self, order: act.OfferSum) -> None:
        """Begin to offer a sum and to send it."""
        plan, may_seal = order.plan, asyncio.Event()

        def failed(detail: str) -> act.AggregatorEvent:
            return act.SumFailed(sum=plan.sum, detail=detail)

        work = self._run(plan.sum, plan.address, lambda line: self._deliver(line, order, may_seal), failed)
        self._errands[plan.sum] = _Errand(self._tasks.spawn(work), may_seal)

    def seal(self, which: SumId) -> None:
        """Let a sum be sealed as soon as it is sent."""
        if which in self._errands:
            self._errands[which].may_seal.set()

    def fetch(self, order: act.StartFetch) -> None:
        """Begin to fetch a model into a buffer that is reserved now."""
        plan = order.plan

        def failed(detail: str) -> act.AggregatorEvent:
            return act.FetchFailed(get=plan.get, detail=detail)

        self._buffers.reserve_model(plan.get, order.spec)
        work = self._run(plan.get, plan.address, lambda line: self._model(line, order), failed)
        self._errands[plan.get] = _Errand(self._tasks.spawn(work), asyncio.Event())

    def give_up(self, which: SumId | GetId) -> None:
        """End an errand at once, and its connection with it."""
        errand = self._errands.pop(which, None)
        if errand is not None:
            errand.task.cancel()

    def break_off(self, address: str) -> None:
        """Let every errand to an address fail: its other end does not answer any more."""
        self._dialled.break_off(address)

    async def close(self) -> None:
        """Cancel every errand."""
        await self._tasks.close()

    # Sums

    async def _deliver(
        self, connection: Connection, order: act.OfferSum, may_seal: asyncio.Event
    ) -> act.AggregatorEvent:
        """Offer a sum, send it when granted, and return what its receiver says."""
        plan, accumulator = order.plan, self._buffers.sum(order.plan.sum)
        meta = data_pb2.OfferMeta(
            transfer=wire.to_transfer_id(plan.sum),
            size_bytes=len(accumulator.payload),
            host=self._host,
            image=bytes(accumulator.payload) if order.whole else b"",
        )

        async def send(frame: Frame) -> Frame:
            return await self._send_watching(connection, self._payload(connection, plan, frame, accumulator, may_seal))

        payload = await exchange.offer(connection, meta, plan.ticket, order.spec.layout.digest)
        if order.whole:
            self._take_in(act.SumSealed(sum=plan.sum))
        outcomes = await exchange.answer_to(connection, payload, send)
        return act.OutcomesReceived(sum=plan.sum, outcomes=tuple(outcomes.items()))

    @staticmethod
    async def _send_watching(connection: Connection, sending: Coroutine[Any, Any, None]) -> Frame:
        """Send, and return the answer; whoever answers before the seal wants no more of it."""
        answer, sent = asyncio.create_task(connection.receive()), asyncio.create_task(sending)
        try:
            await asyncio.wait({answer, sent}, return_when=asyncio.FIRST_COMPLETED)
            if not sent.done():
                frame = answer.result()
                given = exchange.reason_of(frame) if frame.kind is FrameKind.REFUSE else ""
                raise TransferError(given or f"a {frame.kind.name} frame came before the sum was sealed")
            sent.result()
            return await answer
        finally:
            answer.cancel()
            sent.cancel()
            await asyncio.gather(answer, sent, return_exceptions=True)

    async def _payload(
        self, connection: Connection, plan: Sum, frame: Frame, accumulator: Accumulator, may_seal: asyncio.Event
    ) -> None:
        if accumulator.progress.is_complete:
            record = await connection.send(frame, (accumulator.payload,), plan.rate_bps)
        else:
            record = await connection.send_stream(frame, accumulator, plan.rate_bps)
        assert record is not None, "a sum has bytes"
        self._recorded(record, plan.receiver)
        await may_seal.wait()
        await connection.send(exchange.seal_of(frame))
        self._take_in(act.SumSealed(sum=plan.sum))

    # Models

    async def _model(self, connection: Connection, order: act.StartFetch) -> act.AggregatorEvent:
        """Say that buffer and slot are here and receive the model."""
        plan, layout = order.plan, order.spec.layout
        relay = self._buffers.model(plan.get)
        length = layout.size_bytes
        meta = await exchange.want(connection, plan.get, plan.ticket, self._host, length, layout.digest)
        self._take_in(act.ModelComes(get=plan.get, version=wire.from_version(meta.version)))
        self._recorded(await relay.receive(connection, length), meta.host)
        return act.ModelArrived(get=plan.get)

    # Errands

    async def _run(
        self,
        which: SumId | GetId,
        address: str,
        work: Callable[[Connection], Awaitable[act.AggregatorEvent]],
        failed: Callable[[str], act.AggregatorEvent],
    ) -> None:
        """Do work over a connection and take in how it ended."""
        try:
            async with self._dialled.line(address) as connection:
                ended = await work(connection)
        except (FabricError, DecodeError) as error:
            ended = failed(str(error))
        # Ended by itself: what follows must not find it to be given up.
        self._errands.pop(which, None)
        self._take_in(ended)
