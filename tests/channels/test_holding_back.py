"""How much a stream that is held back has on its way, over real sockets whose receiver does not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mlfabric.channels import sockets, tcpstream
from mlfabric.channels.tcpstream import LEAST_HELD_BYTES, MOST_HELD_BYTES, PACKET_BYTES, TcpStream
from tests.channels.conftest import MB, MakeChannel, connected, payload
from tests.channels.filling import content, filled

RATE_BPS = 2 * MB
HELD_BYTES = RATE_BPS * 30 // 8000
FAST_BPS = 1000 * MB


@asynccontextmanager
async def stream() -> AsyncIterator[tuple[TcpStream, socket.socket]]:
    """A stream, and the plain socket at the other end."""
    with sockets.bind_listener("127.0.0.1", (0, 0), 0) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with socket.create_connection(listener.getsockname()) as dialling:
            accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
            sockets.prepare(dialling, 0)
            with accepted:
                yield TcpStream(dialling), accepted


async def on_its_way(filled_up: TcpStream, data: memoryview) -> int:
    """Write until there has been no room for a while; return how much of it is not acknowledged."""
    at = idle = 0
    while idle < 10:
        taken_bytes = filled_up.write_now(data[at:])
        at += taken_bytes
        idle = 0 if taken_bytes else idle + 1
        await asyncio.sleep(0.01)
    assert at < len(data), "all of it had room"
    return filled_up.unacknowledged_bytes()


async def take(receiver: socket.socket, n_bytes: int) -> bytes:
    got = bytearray()
    while len(got) < n_bytes:
        got += await asyncio.get_running_loop().sock_recv(receiver, n_bytes - len(got))
    return bytes(got)


@pytest.mark.parametrize(("rate_bps", "held_bytes"), [(RATE_BPS, HELD_BYTES), (1, LEAST_HELD_BYTES)])
async def test_little_more_is_on_its_way_than_the_rate_carries_in_a_round_trip(rate_bps: int, held_bytes: int) -> None:
    async with stream() as (held, _):
        held.hold_back(rate_bps)
        waiting_bytes = await on_its_way(held, memoryview(content(MB)))
    assert PACKET_BYTES <= waiting_bytes <= 2 * held_bytes + PACKET_BYTES


async def test_what_is_held_back_no_longer_has_as_much_on_its_way_as_before() -> None:
    data = memoryview(content(20 * MB))
    async with stream() as (lifted, receiver):
        lifted.hold_back(RATE_BPS)
        lifted.hold_back(0)
        assert await on_its_way(lifted, data) > MOST_HELD_BYTES
    async with stream() as (lifted, receiver), asyncio.TaskGroup() as group:
        receiver.setblocking(False)
        lifted.hold_back(RATE_BPS)
        reading = group.create_task(take(receiver, MB))
        await lifted.write([data[:MB]])
        assert await reading == data[:MB]
        lifted.hold_back(0)
        assert await on_its_way(lifted, data) > MOST_HELD_BYTES


async def test_of_a_fast_stream_nothing_is_held_back() -> None:
    async with stream() as (fast, _):
        fast.hold_back(RATE_BPS)
        fast.hold_back(FAST_BPS)
        assert await on_its_way(fast, memoryview(content(20 * MB))) > MOST_HELD_BYTES


async def test_a_kernel_that_would_not_look_after_the_buffer_again_holds_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcpstream, "SO_BUF_LOCK", 9999)
    async with stream() as (held, _):
        held.hold_back(RATE_BPS)
        assert await on_its_way(held, memoryview(content(20 * MB))) > MOST_HELD_BYTES


@pytest.mark.parametrize("rates", [(RATE_BPS,), (1,), (RATE_BPS, 0), (RATE_BPS, FAST_BPS), (FAST_BPS, RATE_BPS)])
async def test_all_of_it_arrives_however_it_is_held_back(make: MakeChannel, rates: tuple[int, ...]) -> None:
    data, got = memoryview(content(MB)), bytearray(MB)
    async with connected(make) as (near, far):
        for rate_bps in rates:
            near.hold_back(rate_bps)
            async with asyncio.TaskGroup() as group:
                group.create_task(near.send(payload(MB), [data[:999], data[999:]]))
                frame = await far.receive()
                await far.receive_into(memoryview(got), frame.length)
            assert got == data
            async with asyncio.TaskGroup() as group:
                group.create_task(near.send_stream(payload(MB), filled(MB, MB)))
                await far.discard((await far.receive()).length)
