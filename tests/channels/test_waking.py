"""How often a TCP stream is woken for a payload, and what wakes it in any case. Its sender is a plain socket here."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest

from mlfabric.channels import sockets
from mlfabric.channels.tcpstream import TcpStream

PAYLOAD_BYTES = 200_000
PACKET_BYTES = 1448
HEADER_BYTES = 44


class CountingSocket(socket.socket):
    """One that counts what is read from it."""

    reads = 0

    def recv_into(self, *arguments) -> int:
        self.reads += 1
        return super().recv_into(*arguments)


@asynccontextmanager
async def stream_from(buffer_bytes: int = 0) -> AsyncIterator[tuple[socket.socket, CountingSocket, TcpStream]]:
    """A plain socket that sends at once whatever it is given, the socket at the other end, and the stream over it."""
    listener = sockets.bind_listener("127.0.0.1", (0, 0), 0)
    if buffer_bytes:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    with listener, socket.create_connection(listener.getsockname()) as sender:
        sockets.prepare(sender, 0)
        accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
        with CountingSocket(fileno=accepted.detach()) as counting:
            counting.setblocking(False)
            yield sender, counting, TcpStream(counting)


async def send_in_packets(sender: socket.socket, data: memoryview, packet_bytes: int) -> None:
    """Send, and let whoever waits for a packet see each of them alone."""
    for at in range(0, len(data), packet_bytes):
        await asyncio.get_running_loop().sock_sendall(sender, data[at : at + packet_bytes])
        await asyncio.sleep(0)


async def read_whole(stream: TcpStream, n_bytes: int) -> bytes:
    got = bytearray(n_bytes)
    assert await stream.read_into(memoryview(got), n_bytes) == n_bytes
    return bytes(got)


async def test_a_payload_in_many_packets_wakes_its_receiver_few_times() -> None:
    data = memoryview(bytes(range(200)) * 1000)
    async with stream_from() as (sender, counting, stream), asyncio.TaskGroup() as group:
        reading = group.create_task(read_whole(stream, len(data)))
        await send_in_packets(sender, data, PACKET_BYTES)
        assert await reading == data
    assert counting.reads < 20


@pytest.mark.parametrize("buffer_bytes", [1, 4096, 32 * 1024])
@pytest.mark.parametrize("packet_bytes", [100, PACKET_BYTES, PAYLOAD_BYTES])
async def test_a_receive_buffer_smaller_than_the_payload_does_not_hold_it_up(
    buffer_bytes: int, packet_bytes: int
) -> None:
    data = memoryview(bytes(range(200)) * (PAYLOAD_BYTES // 200))
    async with stream_from(buffer_bytes) as (sender, _, stream), asyncio.TaskGroup() as group:
        reading = group.create_task(read_whole(stream, len(data)))
        await send_in_packets(sender, data, packet_bytes)
        assert await reading == data


@pytest.mark.parametrize("is_reset", [False, True], ids=["its end", "a reset"])
@pytest.mark.parametrize("first_bytes", [0, 1, 150_000])
async def test_the_end_or_reset_of_a_stream_wakes_who_waits_for_much(first_bytes: int, is_reset: bool) -> None:
    async with stream_from() as (sender, _, stream):
        reading = asyncio.create_task(stream.read_into(memoryview(bytearray(PAYLOAD_BYTES)), PAYLOAD_BYTES))
        await send_in_packets(sender, memoryview(bytes(first_bytes)), PACKET_BYTES)
        if is_reset:
            sockets.forget_unsent(sender)
        sender.close()
        with pytest.raises(ConnectionResetError) if is_reset else nullcontext():
            assert await reading == first_bytes


@pytest.mark.parametrize("payload_bytes", [4096, PAYLOAD_BYTES, 3_000_000])
async def test_after_a_payload_a_single_byte_wakes_again(payload_bytes: int) -> None:
    async with stream_from() as (sender, _, stream), asyncio.TaskGroup() as group:
        reading = group.create_task(read_whole(stream, payload_bytes))
        await send_in_packets(sender, memoryview(bytes(payload_bytes)), payload_bytes // 4)
        await reading
        waiting = group.create_task(stream.read_into(memoryview(bytearray(HEADER_BYTES)), 1))
        await asyncio.sleep(0)
        await send_in_packets(sender, memoryview(b"x"), 1)
        assert await waiting == 1
