"""What a server sends to another one: offer, grant, bytes, seal; what a primary hands on to its replica in a chain.

What is handed on leaves from the buffer that it came to. Whoever gives that buffer away, or adds to it, ends the
sending first; what was sent of it then has no seal, so it counts for nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from google.protobuf.message import DecodeError

from mlfabric import wire
from mlfabric.channels import Channel, Connection, Frame, FrameKind, TransferRecord
from mlfabric.errors import FabricError, TransferError
from mlfabric.fail_stop import Failed, Tasks
from mlfabric.protocol import Replicate, Seed, TransferId
from mlfabric.server import actions as act
from mlfabric.server.stores import Stores
from mlfabric.v1 import data_pb2

__all__ = ["PAUSE_S", "HandOns", "deliver"]

log = logging.getLogger("mlfabric.server")
PAUSE_S = 0.2
WITH_OFFER_BYTES = 16 * 1024


async def deliver(
    connection: Connection, meta: data_pb2.OfferMeta, ticket: bytes, digest: int, payload: memoryview, rate_bps: int
) -> TransferRecord | None:
    """Offer a payload, send it once it is granted; return the record of its transfer, None if it went with the offer.

    Args:
        meta: of the offer.
        digest: of the model's layout.
        rate_bps: 0 means unpaced.

    Raises:
        TransferError: the other end refuses it, or breaks the rules.
        FabricError: the connection broke.
    """
    if payload.nbytes <= WITH_OFFER_BYTES:
        meta.image = bytes(payload)
    offer = Frame(kind=FrameKind.OFFER, ticket=ticket, digest=digest, meta=meta.SerializeToString())
    await connection.send(offer)
    answer, record = await connection.receive(), None
    if answer.kind is FrameKind.GRANT:
        frame = Frame(kind=FrameKind.PAYLOAD, ticket=ticket, length=payload.nbytes, digest=digest)
        record = await connection.send(frame, (payload,), rate_bps)
        await connection.send(Frame(kind=FrameKind.PAYLOAD, ticket=ticket, digest=digest))
        answer = await connection.receive()
    if answer.kind is FrameKind.REFUSE:
        raise TransferError(data_pb2.RefuseMeta.FromString(answer.meta).reason)
    if answer.kind is not FrameKind.OUTCOME:
        raise TransferError(f"a {answer.kind.name} frame came; wanted OUTCOME")
    return record


class HandOns:
    """What one primary hands on.

    Args:
        stores: where the buffers are.
        channel: the server's data channel.
        host: the server's.
        take_in: of the server's driver.
        recorded: told of every finished transfer and the member it went to.
    """

    def __init__(
        self,
        stores: Stores,
        channel: Channel,
        host: str,
        take_in: Callable[[Failed], None],
        recorded: Callable[[TransferRecord, str], None],
    ) -> None:
        self._tasks = Tasks(take_in)
        self._stores = stores
        self._channel = channel
        self._host = host
        self._recorded = recorded
        self._seeds: dict[str, Seed] = {}
        self._sends: dict[TransferId, tuple[Replicate, asyncio.Task[None]]] = {}

    def seeded(self, order: Seed) -> None:
        """Note where a model's replica is."""
        self._seeds[order.model] = order

    def send(self, action: act.HandOn) -> None:
        """Begin to hand on a transfer, unless that is under way with this ticket."""
        order, seed = action.order, self._seeds.get(action.order.model)
        former = self._sends.get(order.transfer)
        if seed is None or seed.term != order.term or (former is not None and former[0].ticket == order.ticket):
            return
        self.end(order.transfer)
        payload = self._stores.buffer(order.transfer)
        self._sends[order.transfer] = order, self._tasks.spawn(self._send(order, seed, payload))

    def end(self, transfer: TransferId) -> None:
        """Stop handing on a transfer, if it still is: its buffer is about to be used otherwise."""
        if (found := self._sends.pop(transfer, None)) is not None:
            found[1].cancel()

    async def close(self) -> None:
        """Stop everything."""
        await self._tasks.close()

    async def _send(self, order: Replicate, seed: Seed, payload: memoryview) -> None:
        """Send until the replica has it."""
        while True:
            connection: Connection | None = None
            try:
                connection = await self._channel.connect(seed.address)
                await self._offer(connection, order, seed, payload)
            except (FabricError, DecodeError) as error:
                log.info("handing on %s to %s broke: %s", order.transfer, seed.receiver, error)
                await asyncio.sleep(PAUSE_S)
            else:
                return
            finally:
                if connection is not None:
                    connection.close()

    async def _offer(self, connection: Connection, order: Replicate, seed: Seed, payload: memoryview) -> None:
        meta = data_pb2.OfferMeta(
            transfer=wire.to_transfer_id(order.transfer), size_bytes=payload.nbytes, host=self._host
        )
        digest = self._stores.store(order.model).spec.layout.digest
        record = await deliver(connection, meta, order.ticket, digest, payload, order.rate_bps)
        if record is not None:
            self._recorded(record, seed.receiver)
