"""How many may connect to an endpoint, and how long without a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from mlfabric.channels import Connection, TcpChannel, TcpOptions
from mlfabric.channels.frames import encode_header
from mlfabric.errors import TransferError

from .conftest import GRANT

HEADER = encode_header(GRANT, paced=False)
FRAME = HEADER + GRANT.meta


class Endpoint:
    """An endpoint that counts the frames that come, and plain connections to it."""

    def __init__(self) -> None:
        self.address = ""
        self.heard = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, connection: Connection) -> None:
        """Take frames until the connection ends."""
        with suppress(TransferError):
            while await connection.receive():
                self.heard += 1

    async def dial(self, says: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a plain connection and say something."""
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        self.writers.append(writer)
        writer.write(says)
        return reader, writer


@asynccontextmanager
async def endpoint(**limits: float) -> AsyncIterator[Endpoint]:
    channel, found = TcpChannel(TcpOptions(**limits)), Endpoint()  # type: ignore[arg-type]
    found.address = await channel.listen(found.serve)
    try:
        yield found
    finally:
        await channel.close()
        for writer in found.writers:
            writer.close()


async def is_cut_off(reader: asyncio.StreamReader) -> bool:
    """Wait for the end of a connection."""
    with suppress(ConnectionResetError):
        async with asyncio.timeout(10):
            return await reader.read(1) == b""
    return True


async def until_heard(at: Endpoint, frames: int) -> None:
    async with asyncio.timeout(10):
        while at.heard < frames:
            await asyncio.sleep(0)


async def test_who_comes_when_all_places_are_taken_is_cut_off_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with endpoint(most_connections=2) as at:
        _, first = await at.dial(FRAME)
        second_reader, second = await at.dial(FRAME)
        await until_heard(at, 2)
        for _ in range(9):
            assert await is_cut_off((await at.dial())[0])
        assert sum("turned" in record.message for record in caplog.records) == 4, "the 1st, 2nd, 4th and 8th"
        first.write(FRAME)
        await until_heard(at, 3)
        second.close()
        assert await is_cut_off(second_reader)
        async with asyncio.timeout(10):
            while at.heard < 4:  # its place is free as soon as its end was noticed
                await at.dial(FRAME)
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("sent", [b"", HEADER[:10], HEADER, HEADER + GRANT.meta[:1]])
async def test_a_connection_without_a_whole_frame_is_closed_after_a_while(sent: bytes) -> None:
    async with endpoint(silent_s=0.05) as at:
        reader, _ = await at.dial(sent)
        assert await is_cut_off(reader)
        assert at.heard == 0


async def test_a_connection_that_has_said_something_may_be_idle() -> None:
    async with endpoint(silent_s=0.05) as at:
        reader, writer = await at.dial(FRAME)
        silent, _ = await at.dial()
        await until_heard(at, 1)
        assert await is_cut_off(silent)
        writer.write(FRAME)
        await until_heard(at, 2)
        assert not reader.at_eof()


async def test_those_who_say_nothing_make_room_for_one_another_and_not_for_want_of_those_who_do() -> None:
    async with endpoint(most_silent=3, most_connections=100, silent_s=1000) as at:
        _, speaker = await at.dial(FRAME)
        await until_heard(at, 1)
        silent = [(await at.dial())[0] for _ in range(5)]
        assert await is_cut_off(silent[0])
        assert await is_cut_off(silent[1])
        newcomer, _ = await at.dial(FRAME)
        await until_heard(at, 2)
        speaker.write(FRAME)
        await until_heard(at, 3)
        assert not newcomer.at_eof()
