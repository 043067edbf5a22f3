"""What only real sockets do: ports, garbage, killed peers, descriptors, an emulated network card."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mlfabric.channels import (
    Connection,
    ConnectionClosedError,
    TcpChannel,
    TcpOptions,
    TransferRecord,
    sockets,
)
from mlfabric.channels.frames import encode_header
from mlfabric.errors import ConfigError, TransferError, UnavailableError, UsageError
from mlfabric.security import Security
from tests.channels.conftest import GRANT, payload, served, until_closed, zeros

HOST = "127.0.0.1"
OPEN_TO_ALL = Security(insecure=True)
ROOT = Path(__file__).parents[2]

SENDER = """
import asyncio, sys
from mlfabric.channels import Frame, FrameKind, TcpChannel

async def main():
    connection = await TcpChannel().connect(sys.argv[1])
    frame = Frame(kind=FrameKind.PAYLOAD, ticket=bytes(16), length=10**8)
    await connection.send(frame, [memoryview(bytes(10**8))], rate_bps=80_000_000)

asyncio.run(main())
"""


class Server:
    """A listening channel whose handlers put what becomes of each connection into a queue."""

    def __init__(self, options: TcpOptions) -> None:
        self.channel = TcpChannel(options)
        self.outcomes: asyncio.Queue[TransferRecord | TransferError] = asyncio.Queue()
        self.begun = asyncio.Event()

    async def take(self, connection: Connection) -> None:
        try:
            while True:
                frame = await connection.receive()
                if frame.length:
                    self.begun.set()
                    self.outcomes.put_nowait(await connection.discard(frame.length))
                await connection.send(GRANT)
        except TransferError as error:
            self.outcomes.put_nowait(error)


@asynccontextmanager
async def serving(options: TcpOptions | None = None) -> AsyncIterator[tuple[Server, str]]:
    server = Server(options or TcpOptions())
    try:
        yield server, await server.channel.listen(server.take)
    finally:
        await server.channel.close()


@asynccontextmanager
async def dialled(options: TcpOptions | None = None) -> AsyncIterator[tuple[Server, Connection]]:
    """A server, and a connection to it."""
    async with serving(options) as (server, address):
        client = TcpChannel()
        yield server, await client.connect(address)
        await client.close()


async def check_it_serves(address: str) -> None:
    client = TcpChannel()
    connection = await client.connect(address)
    await connection.send(GRANT)
    assert await connection.receive() == GRANT
    await client.close()


@pytest.mark.processes
async def test_a_sender_killed_in_the_middle_is_a_transfer_error_and_others_go_on() -> None:
    async with serving() as (server, address):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen([sys.executable, "-c", SENDER, address], env=environment) as sender:
            await server.begun.wait()
            sender.kill()
            check_is_torn(await server.outcomes.get())
            await check_it_serves(address)


def check_is_torn(outcome: TransferRecord | TransferError) -> None:
    assert isinstance(outcome, TransferError)
    assert not isinstance(outcome, ConnectionClosedError)


@pytest.mark.parametrize(
    ("garbage", "says"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "starts with b'GET ', wanted b'MLFB'"),
        (b"\x16", "starts with b'\\\\x16', wanted b'MLFB'"),
        (b"MLFB\x00\x09" + bytes(100), "protocol version 9, wanted 2"),
        (encode_header(payload(5), paced=False)[:24] + b"\xff" * 20, "payload bytes, wanted at most|meta came"),
    ],
)
async def test_garbage_is_refused_at_once_with_its_story_and_others_go_on(garbage: bytes, says: str) -> None:
    async with serving() as (server, address):
        with socket.create_connection((HOST, int(address.rpartition(":")[2]))) as rude:
            rude.sendall(garbage)
            assert re.search(says, str(await server.outcomes.get()))
        await check_it_serves(address)


@pytest.mark.parametrize("sent_bytes", [1, 43, 44, 48])
async def test_an_end_in_the_middle_of_a_frame_is_not_clean(sent_bytes: int) -> None:
    async with serving() as (server, address):
        with socket.create_connection((HOST, int(address.rpartition(":")[2]))) as rude:
            rude.sendall((encode_header(payload(5), paced=False) + b"12345")[:sent_bytes])
        check_is_torn(await server.outcomes.get())


def taken(stack: ExitStack, n: int) -> list[int]:
    """Occupy ``n`` ports in a row."""
    for first in range(20000, 30000, n):
        with ExitStack() as attempt:
            try:
                for port in range(first, first + n):
                    attempt.enter_context(socket.create_server((HOST, port)))
            except OSError:
                continue
            stack.push(attempt.pop_all())
            return list(range(first, first + n))
    raise AssertionError(f"no {n} free ports in a row")


async def test_a_port_in_use_is_named_together_with_what_to_do() -> None:
    with ExitStack() as stack:
        (port,) = taken(stack, 1)
        with pytest.raises(UsageError, match=f"port {port} on {HOST} is in use; choose another port"):
            await TcpChannel(TcpOptions(ports=(port, port))).listen(until_closed)


async def test_a_range_all_in_use_is_named_and_with_one_free_port_that_one_is_taken() -> None:
    with ExitStack() as stack:
        lo, _, hi = taken(stack, 3)
        with pytest.raises(UsageError, match=f"all ports from {lo} to {hi} on {HOST} are in use"):
            await TcpChannel(TcpOptions(ports=(lo, hi))).listen(until_closed)
    with socket.create_server((HOST, lo)):
        async with serving(TcpOptions(ports=(lo, hi))) as (_, address):
            assert address == f"{HOST}:{lo + 1}"


async def test_a_port_is_free_again_though_its_connections_are_in_time_wait(free_port: int) -> None:
    async def answer(connection: Connection) -> None:
        await connection.send(GRANT)

    client = TcpChannel()
    for _ in range(2):
        server = TcpChannel(TcpOptions(ports=(free_port, free_port)))
        connection = await client.connect(await server.listen(answer))
        assert await connection.receive() == GRANT
        with pytest.raises(ConnectionClosedError):
            await connection.receive()
        await server.close()
    await client.close()


async def test_what_an_aborted_sender_has_left_in_its_kernel_is_not_sent_any_more() -> None:
    async with dialled(TcpOptions(down_bps=20_000_000)) as (server, connection):
        sending = asyncio.create_task(connection.send(*zeros(10**7)))
        await server.begun.wait()
        sending.cancel()
        assert "reset" in str(await server.outcomes.get())


async def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0"):
        await TcpChannel(TcpOptions(bind="192.0.2.1", security=OPEN_TO_ALL)).listen(until_closed)


async def test_a_wildcard_endpoint_is_reached_under_its_advertised_host() -> None:
    options = TcpOptions(bind="0.0.0.0", advertised_host="localhost", security=OPEN_TO_ALL)
    async with serving(options) as (_, address):
        assert address.startswith("localhost:")
        await check_it_serves(address)


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="the kernel has no IPv6")
async def test_a_host_that_was_reached_before_is_reached_while_the_process_exits(monkeypatch) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    known, other = TcpChannel(), TcpChannel()
    address = await known.listen(until_closed)
    (await known.connect(address)).close()
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", refused)
    (await known.connect(address)).close()
    with pytest.raises(UnavailableError, match="while the process exits"):
        await other.connect(address)
    await known.close()
    await other.close()


async def test_ipv6_addresses_are_written_in_brackets() -> None:
    async with serving(TcpOptions(bind="::1")) as (_, address):
        assert address.startswith("[::1]:")
        await check_it_serves(address)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"bind": "0.0.0.0"}, "give advertised_host"),
        ({"bind": "::", "advertised_host": "0.0.0.0"}, "cannot be dialled"),
        ({"ports": (10, 9)}, r"ports=\(10, 9\); allowed: 1 to 65535, lo <= hi"),
        ({"ports": (0, 9)}, "ports="),
        ({"ports": (1, 65536)}, "ports="),
        ({"up_bps": -1}, "up_bps=-1"),
        ({"down_bps": -1}, "down_bps=-1"),
        *(
            ({name: 0}, f"{name}=0; allowed: > 0")
            for name in ("max_payload_bytes", "connect_timeout_s", "most_connections", "most_silent", "silent_s")
        ),
    ],
)
def test_options_that_cannot_work_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TcpOptions(**fields)


def test_kernel_buffers_are_kept_small_only_under_emulation() -> None:
    assert TcpOptions().buffer_bytes == 0
    assert 0 < TcpOptions(down_bps=200_000_000).buffer_bytes <= 64 * 1024


@pytest.mark.parametrize("address", ["", "nohost", ":1", "a:0", "a:65536", "a:b", "a:-1"])
async def test_a_malformed_address_is_a_usage_error_that_shows_it(address: str) -> None:
    with pytest.raises(UsageError, match=r"allowed: HOST:PORT"):
        await TcpChannel().connect(address)


async def test_an_endpoint_that_does_not_answer_is_unavailable_after_the_timeout() -> None:
    with ExitStack() as stack:
        deaf = stack.enter_context(socket.create_server((HOST, 0), backlog=0))
        port = deaf.getsockname()[1]
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((HOST, port))
        with pytest.raises(UnavailableError, match=f"{HOST}:{port}: no answer within 0.05 s"):
            await TcpChannel(TcpOptions(connect_timeout_s=0.05)).connect(f"{HOST}:{port}")


async def test_no_descriptor_is_left_whatever_happened(free_port: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    client = TcpChannel()
    async with serving() as (server, address):
        for _ in range(5):
            whole, torn, closed = [await client.connect(address) for _ in range(3)]
            await whole.send(*zeros(10))
            sending = asyncio.create_task(torn.send(*zeros(10**7), rate_bps=10**6))
            await server.outcomes.get()
            sending.cancel()
            closed.close()
            with pytest.raises(UnavailableError):
                await client.connect(f"{HOST}:{free_port}")
        await client.close()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_an_endpoint_out_of_descriptors_accepts_again_when_there_are_some() -> None:
    refused = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            refused.set()

    logger, watch = logging.getLogger("mlfabric.channels.tcp"), Watch()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving() as (_, address):
        with socket.socket() as client:
            client.setblocking(False)
            logger.addHandler(watch)
            resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, limits[1]))
            try:
                with ExitStack() as filled:
                    while True:
                        try:
                            filled.callback(os.close, os.dup(client.fileno()))
                        except OSError:
                            break
                    await loop.sock_connect(client, (HOST, int(address.rpartition(":")[2])))
                    await refused.wait()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                logger.removeHandler(watch)
            frame = encode_header(GRANT, paced=False) + GRANT.meta
            await loop.sock_sendall(client, frame)
            assert await loop.sock_recv(client, len(frame)) == frame


@pytest.mark.parametrize(("up_bps", "down_bps"), [(100_000_000, 0), (0, 100_000_000), (400_000_000, 100_000_000)])
async def test_an_emulated_network_card_is_not_faster_than_nominal_however_many_share_it(
    up_bps: int, down_bps: int
) -> None:
    async with serving(TcpOptions(down_bps=down_bps)) as (server, address):
        client = TcpChannel(TcpOptions(up_bps=up_bps))
        connections = [await client.connect(address) for _ in range(3)]
        data = memoryview(bytes(250_000))
        sent = await asyncio.gather(*(c.send(payload(len(data)), [data]) for c in connections))
        received = [await server.outcomes.get() for _ in connections]
        await client.close()
    started_ns = min(r.started_ns for r in sent if r)
    ended_ns = max(r.ended_ns for r in received if isinstance(r, TransferRecord))
    assert 750_000 * 8e9 / (ended_ns - started_ns) <= 100_000_000


async def test_what_an_emulated_card_has_yet_to_let_through_is_not_waiting() -> None:
    seen: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

    async def look(connection: Connection) -> None:
        await connection.receive()
        while (waiting := connection._stream.raw.waiting_bytes()) < 1000:
            await asyncio.sleep(0)
        seen.set_result((waiting, connection.waiting_bytes))
        await connection.discard(1000)

    async with served(TcpChannel(TcpOptions(down_bps=20_000_000)), TcpChannel(), look) as (client, address):
        await (await client.connect(address)).send(*zeros(1000))
        assert await seen == (1000, 0)


async def test_the_senders_record_shows_a_slow_receiver_and_not_how_fast_the_kernel_takes_bytes() -> None:
    async with dialled(TcpOptions(down_bps=20_000_000)) as (_, connection):
        record = await connection.send(*zeros(200_000))
        assert record is not None
        assert record.rate_bps < 30_000_000


def test_sockets_do_not_delay_small_frames_and_notice_dead_hosts() -> None:
    with socket.socket() as sock:
        sockets.prepare(sock, buffer_bytes=0)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_it_runs_on_uvloop_too() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with serving() as (server, address):
            client = TcpChannel()
            connection = await client.connect(address)
            await connection.send(*zeros(10**7))
            assert await connection.receive() == GRANT
            whole = await server.outcomes.get()
            sending = asyncio.create_task(connection.send(*zeros(10**7), rate_bps=10**6))
            await asyncio.sleep(0)
            sending.cancel()
            torn = await server.outcomes.get()
            await client.close()
        assert isinstance(whole, TransferRecord)
        assert isinstance(torn, TransferError)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def test_what_is_spread_out_goes_at_about_that_rate_and_both_records_count_as_paced() -> None:
    async with dialled() as (server, connection):
        connection.spread(160_000_000)
        sent = await connection.send(*zeros(5_000_000))
        received = await server.outcomes.get()
    assert isinstance(received, TransferRecord)
    assert received.rate_bps < 320_000_000
    assert sent is not None
    assert (sent.paced, received.paced) == (True, True)


async def test_what_the_receiver_slowed_down_more_than_the_spreading_is_not_called_paced_by_its_sender() -> None:
    async with dialled(TcpOptions(down_bps=20_000_000)) as (_, connection):
        connection.spread(400_000_000)
        sent = await connection.send(*zeros(500_000))
    assert sent is not None
    assert not sent.paced


async def test_a_connection_that_is_no_longer_spread_out_sends_as_it_did_before() -> None:
    async with dialled() as (server, connection):
        connection.spread(1_000_000)
        connection.spread(0)
        await connection.send(*zeros(2_000_000))
        received = await server.outcomes.get()
    assert isinstance(received, TransferRecord)
    assert not received.paced
    assert received.rate_bps > 2_000_000
