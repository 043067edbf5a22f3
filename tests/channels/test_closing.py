"""What closing a TCP connection in the middle of a payload means to both ends. Its sender is a plain socket here."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from mlfabric.channels import Connection, Frame, FrameKind, TcpChannel, TcpOptions
from mlfabric.channels.frames import encode_header
from mlfabric.errors import TransferError

MB = 1_000_000
PATIENCE_S = 20.0


@asynccontextmanager
async def sent_to(options: TcpOptions, length: int) -> AsyncIterator[tuple[socket.socket, Connection]]:
    """A plain socket that has announced a payload, and the connection that has received no more than that."""
    accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    async def keep(connection: Connection) -> None:
        accepted.set_result(connection)
        await connection.wait_closed()

    channel = TcpChannel(options)
    host, _, port = (await channel.listen(keep)).rpartition(":")
    try:
        with socket.create_connection((host, int(port))) as sender:
            sender.setblocking(False)
            frame = Frame(kind=FrameKind.PAYLOAD, ticket=bytes(16), length=length)
            await asyncio.get_running_loop().sock_sendall(sender, encode_header(frame, paced=False))
            connection = await accepted
            await connection.receive()
            yield sender, connection
    finally:
        await channel.close()


def fill(sender: socket.socket) -> None:
    """Send until there is no room any more, neither here nor at the receiver."""
    with suppress(BlockingIOError):
        while True:
            sender.send(bytes(MB))


async def test_a_sender_that_waits_for_room_hears_at_once_that_its_receiver_has_closed() -> None:
    async with sent_to(TcpOptions(down_bps=10_000_000), 100 * MB) as (sender, connection):
        receiving = asyncio.create_task(connection.discard(100 * MB))
        await asyncio.sleep(0)
        fill(sender)
        connection.close()
        with pytest.raises(TransferError, match="closed at this end"):
            await receiving
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.get_running_loop().sock_sendall(sender, bytes(100 * MB))


async def test_closing_in_the_middle_of_a_payload_resets_its_sender_though_every_byte_so_far_was_read() -> None:
    async with sent_to(TcpOptions(), 20_000) as (sender, connection):
        await asyncio.get_running_loop().sock_sendall(sender, bytes(10_000))
        await connection.discard(10_000)
        connection.close()
        await connection.wait_closed()
        with pytest.raises(ConnectionError):
            sender.send(bytes(1))


async def test_a_payload_that_waits_for_its_turn_is_not_received_after_closing_though_it_is_here() -> None:
    async with sent_to(TcpOptions(down_bps=80_000), 20_000) as (sender, connection):
        await asyncio.get_running_loop().sock_sendall(sender, bytes(20_000))
        receiving = asyncio.create_task(connection.discard(20_000))
        await asyncio.sleep(0)
        connection.close()
        with pytest.raises(TransferError, match="closed at this end"):
            await receiving


async def test_a_port_is_free_again_though_another_process_has_inherited_it() -> None:
    async def serve(connection: Connection) -> None:
        await connection.wait_closed()

    channel = TcpChannel()
    port = int((await channel.listen(serve)).rpartition(":")[2])
    assert channel._listener is not None
    with channel._listener.dup():  # as a process has it that was forked from this one
        await channel.close()
        again = TcpChannel(TcpOptions(ports=(port, port)))
        await again.listen(serve)
        await again.close()
