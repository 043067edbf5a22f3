"""Buffers that are sent while they are being filled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from mlfabric.channels.progress import Progress


@dataclass
class Buffer:
    """A buffer of which nothing is ready yet."""

    payload: memoryview
    progress: Progress = field(init=False)
    filling: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.progress = Progress(len(self.payload))


def content(n: int) -> bytes:
    return (bytes(i % 251 for i in range(997)) * (n // 997 + 1))[:n]


def filled(n: int, ready: int) -> Buffer:
    """Return a buffer whose first ``ready`` bytes are."""
    buffer = Buffer(memoryview(bytearray(content(n))))
    buffer.progress.advance(ready)
    return buffer


def filled_by(pieces: AsyncIterator[bytes | memoryview], size: int) -> Buffer:
    """Return a buffer that a task fills piece by piece; it fails with what ``pieces`` raises."""
    buffer = Buffer(memoryview(bytearray(size)))

    async def fill() -> None:
        at = 0
        try:
            async for piece in pieces:
                buffer.payload[at : at + len(piece)] = piece
                at += len(piece)
                buffer.progress.advance(at)
        except Exception as error:
            buffer.progress.fail(error)

    buffer.filling = asyncio.create_task(fill())
    return buffer
