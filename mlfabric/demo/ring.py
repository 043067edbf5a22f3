"""A plain ring all-reduce, the baseline of the comparison: over the data channels that mlfabric's workers use.

It is the algorithm that torch.distributed has with gloo. The vector is cut into N pieces. In N-1 steps each rank sends
a piece to the next rank and adds the piece of the rank before it; in N-1 more steps the sums go around. Each step waits
for the slowest link. gloo itself is not used: its traffic cannot be slowed down without root.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from mlfabric.channels import TICKET_BYTES, ChannelOptions, Connection, Frame, FrameKind, channel_of

__all__ = ["Ring"]

TICKET = bytes(TICKET_BYTES)
LOOK_S = 0.01
DIAL_WITHIN_S = 60.0


class Ring:
    """One rank's place in the ring; a context manager, which connects it.

    Args:
        rank: 0 to size - 1.
        size: how many ranks there are, >= 2.
        options: of the data channel; its rates emulate the rank's network card.
        folder: where ranks find one another's addresses; all give the same one.
    """

    def __init__(self, rank: int, size: int, options: ChannelOptions, folder: Path) -> None:
        self._rank, self._size, self._folder = rank, size, folder
        self._channel = channel_of(options)
        self._runner = asyncio.Runner()
        self._to_next: Connection
        self._from_previous: Connection

    def __enter__(self) -> Self:
        self._runner.run(self._connect())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._channel.close())
        self._runner.close()

    def average(self, vector: torch.Tensor) -> None:
        """Replace a vector by the mean of all ranks' vectors, in place; every rank calls this.

        Args:
            vector: float32, contiguous, one dimension, of the same length at all ranks.

        Raises:
            TransferError: a neighbour has left.
        """
        self._runner.run(self._sum(vector))
        vector /= self._size

    async def _connect(self) -> None:
        accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

        async def keep(connection: Connection) -> None:
            accepted.set_result(connection)
            await asyncio.get_running_loop().create_future()

        own = await self._channel.listen(keep)
        written = self._address(self._rank).with_suffix(".new")
        written.write_text(own, encoding="utf-8")
        written.rename(self._address(self._rank))
        following = self._address((self._rank + 1) % self._size)
        async with asyncio.timeout(DIAL_WITHIN_S):
            while not following.exists():
                await asyncio.sleep(LOOK_S)
            self._to_next = await self._channel.connect(following.read_text(encoding="utf-8"))
            self._from_previous = await accepted

    def _address(self, rank: int) -> Path:
        return self._folder / f"ring-{rank}.address"

    async def _sum(self, vector: torch.Tensor) -> None:
        pieces = list(vector.tensor_split(self._size))
        received = torch.empty_like(pieces[0])
        for step in range(self._size - 1):
            added = pieces[(self._rank - step - 1) % self._size]
            room = received[: len(added)]
            await self._pass_on(pieces[(self._rank - step) % self._size], room)
            added += room
        for step in range(self._size - 1):
            await self._pass_on(pieces[(self._rank - step + 1) % self._size], pieces[(self._rank - step) % self._size])

    async def _pass_on(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        """Send a piece to the next rank, and receive one from the rank before at the same time."""
        sending = asyncio.create_task(self._send(_bytes_of(sent)))
        try:
            await self._receive(_bytes_of(received))
            await sending
        finally:
            sending.cancel()

    async def _send(self, piece: memoryview) -> None:
        await self._to_next.send(Frame(kind=FrameKind.PAYLOAD, ticket=TICKET, length=len(piece)), [piece])

    async def _receive(self, room: memoryview) -> None:
        await self._from_previous.receive()
        await self._from_previous.receive_into(room, len(room))


def _bytes_of(piece: torch.Tensor) -> memoryview:
    return memoryview(piece.numpy().data).cast("B")
