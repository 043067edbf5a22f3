"""Data connections under TLS: who is let in, what both ends are told, and that nobody waits for the silent."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mlfabric.channels import Connection, Frame, FrameKind, TcpChannel, TcpOptions
from mlfabric.channels.tls import RECORD_BYTES, joined
from mlfabric.errors import TransferError, UnavailableError
from mlfabric.security import Certificate, Identity, Security
from mlfabric.security.authority import certify

HELLO = Frame(kind=FrameKind.GRANT, ticket=bytes(16), meta=b"hello")
Said = Callable[[], list[str]]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """Return what is logged as refused."""
    caplog.set_level(logging.WARNING, "mlfabric.channels.tcp")
    return lambda: [record.getMessage() for record in caplog.records]


def channel(folder: Path | None, role: str = "worker", **options: object) -> TcpChannel:
    return TcpChannel(TcpOptions(security=Security.of(folder, role), **options))  # type: ignore[arg-type]


@asynccontextmanager
async def listening(at: TcpChannel) -> AsyncIterator[tuple[str, asyncio.Queue[Frame | Exception]]]:
    """Give an endpoint's address, and the frames that come in there, or what ended a connection."""
    came: asyncio.Queue[Frame | Exception] = asyncio.Queue()

    async def take(connection: Connection) -> None:
        try:
            while True:
                await came.put(await connection.receive())
        except TransferError as error:
            await came.put(error)

    try:
        yield await at.listen(take), came
    finally:
        await at.close()


async def first_byte(host: str, port: int, context: ssl.SSLContext) -> bytes:
    """Connect and wait for what the other end says first."""
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="")
    try:
        return await reader.read(1)
    finally:
        writer.transport.abort()


async def logged(said: Said, text: str) -> None:
    """Wait until something with this text has been logged."""
    async with asyncio.timeout(30):
        while not any(text in line for line in said()):
            await asyncio.sleep(0.01)


async def test_frames_pass_between_members_of_one_authority_and_cannot_be_read_in_between(certificates: Path) -> None:
    wire = bytearray()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        there, out = await asyncio.open_connection("127.0.0.1", port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                wire.extend(data)
                sink.write(data)
            sink.close()

        try:
            await asyncio.gather(pump(reader, out), pump(there, writer))
        finally:
            for end in (out, writer):
                end.transport.abort()

    near = channel(certificates)
    async with listening(channel(certificates, "server")) as (address, came):
        port = int(address.rpartition(":")[2])
        between = await asyncio.start_server(lambda r, w: relay(r, w, port), "127.0.0.1", 0)
        connection = await near.connect(f"127.0.0.1:{between.sockets[0].getsockname()[1]}")
        await connection.send(HELLO)
        assert await came.get() == HELLO
        await near.close()
        between.close()
    assert wire
    assert HELLO.meta not in wire
    assert b"MLFB" not in wire


async def test_one_of_another_authority_is_refused_on_either_side(
    certificates: Path, foreign: Path, said: Said
) -> None:
    near = channel(foreign)
    async with listening(channel(certificates, "server")) as (address, came):
        with pytest.raises(UnavailableError, match="another authority made it than the one in ca"):
            await near.connect(address)
        await logged(said, "the other end does not know the authority that made this member's certificate")
        assert came.empty()
    await near.close()


@pytest.mark.parametrize(
    ("bad", "told", "noted"),
    [
        ("foreign", "TLSV1_ALERT_UNKNOWN_CA", "another authority made it than the one in ca.pem"),
        ("expired", "SSLV3_ALERT_CERTIFICATE_EXPIRED", "it has expired"),
        (None, "TLSV13_ALERT_CERTIFICATE_REQUIRED", "the other end has shown no certificate"),
    ],
)
async def test_a_caller_that_trusts_us_and_has_no_good_certificate_is_told_why(
    certificates: Path, bad: str | None, told: str, noted: str, said: Said, request: pytest.FixtureRequest
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(certificates / "ca.pem")
    if bad is not None:
        own = request.getfixturevalue(bad) / "worker"
        context.load_cert_chain(own / "cert.pem", own / "key.pem")
    async with listening(channel(certificates, "server")) as (address, came):
        host, _, port = address.rpartition(":")
        with pytest.raises(ssl.SSLError) as refused:
            await first_byte(host, int(port), context)
        await logged(said, noted)
        assert refused.value.reason == told
        assert came.empty()


async def test_a_plain_caller_is_refused_and_both_ends_say_tls(certificates: Path, said: Said) -> None:
    plain = channel(None)
    async with listening(channel(certificates, "server")) as (address, came):
        connection = await plain.connect(address)
        await connection.send(HELLO)
        with pytest.raises(TransferError, match="the peer speaks TLS, and this end does not; give both ends --tls"):
            await connection.receive()
        await logged(said, "the other end does not speak TLS; give both ends --tls, or none")
        assert came.empty()
    await plain.close()


async def test_a_caller_under_tls_is_refused_by_a_plain_one_and_both_ends_say_tls(certificates: Path) -> None:
    near = channel(certificates)
    async with listening(channel(None)) as (address, came):
        with pytest.raises(UnavailableError, match=r"does not speak TLS|reset by peer"):
            await near.connect(address)
        assert "the peer speaks TLS, and this end does not" in str(await came.get())
    await near.close()


@pytest.mark.parametrize("accepts", ["one", "other"])
async def test_workers_of_different_jobs_are_no_peers(certificates: Path, accepts: str, said: Said) -> None:
    folders = {job: certify(certificates, Identity(role="worker", job=job), days=1) for job in ("one", "other")}
    dials = ({*folders} - {accepts}).pop()
    near = channel(folders[dials])
    async with listening(channel(folders[accepts])) as (address, came):
        with pytest.raises(UnavailableError, match=f"of job '{accepts}', and this member's of job '{dials}'"):
            await near.connect(address)
        assert came.empty()
    await near.close()


async def test_who_moves_no_tensors_is_told_so_by_the_other_end(certificates: Path, said: Said) -> None:
    near = channel(certificates, "client")
    async with listening(channel(certificates, "server")) as (address, came):
        with pytest.raises(UnavailableError, match="it refuses: the other end's certificate is that of a client"):
            await near.connect(address)
        await logged(said, "refused a data connection from 127.0.0.1:")
        assert came.empty()
    await near.close()


async def test_who_says_nothing_in_the_handshake_keeps_nobody_else_waiting_and_is_let_go(
    certificates: Path, said: Said
) -> None:
    near = channel(certificates)
    async with listening(channel(certificates, "server", connect_timeout_s=1.0)) as (address, came):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as silent:
            await (await near.connect(address)).send(HELLO)
            assert await came.get() == HELLO
            await logged(said, "no TLS handshake within 1.0 s")
            silent.settimeout(30)
            assert silent.recv(1) == b""
    await near.close()


async def test_closing_leaves_no_handshake_and_no_descriptor(certificates: Path) -> None:
    before = asyncio.all_tasks()
    at = channel(certificates, "server")
    async with listening(at) as (address, _):
        host, _, port = address.rpartition(":")
        silent = socket.create_connection((host, int(port)))
        while len(asyncio.all_tasks()) == len(before):  # it has not been accepted yet
            await asyncio.sleep(0.01)
    assert asyncio.all_tasks() <= before
    silent.settimeout(30)
    assert silent.recv(1) == b""
    silent.close()


async def test_a_connection_that_was_closed_here_hands_out_nothing_that_is_still_encrypted(certificates: Path) -> None:
    near, got = channel(certificates), asyncio.get_running_loop().create_future()

    async def take(connection: Connection) -> None:
        frame = await connection.receive()
        buffer = bytearray(frame.length)
        receiving = asyncio.create_task(connection.receive_into(memoryview(buffer), frame.length))
        await asyncio.sleep(0)
        connection.close()
        await asyncio.wait([receiving])
        got.set_result((receiving.exception(), buffer))

    at = channel(certificates, "server")
    connection = await near.connect(await at.listen(take))
    data = bytes(200_000)
    frame = Frame(kind=FrameKind.PAYLOAD, ticket=bytes(16), length=2 * len(data))
    sending = asyncio.create_task(connection.send(frame, [memoryview(data), memoryview(data)]))
    error, buffer = await got
    assert isinstance(error, TransferError)
    assert not any(buffer)
    await asyncio.wait([sending])
    await near.close()
    await at.close()


def test_short_pieces_share_a_record_and_long_ones_stay_where_they_are() -> None:
    long = memoryview(bytes(RECORD_BYTES))
    pieces = [memoryview(bytes([n]) * n) for n in (3, 0, 2)]
    blocks = list(joined([*pieces, long, *pieces, memoryview(bytes(RECORD_BYTES - 3))]))
    assert [len(block) for block in blocks] == [5, RECORD_BYTES, 5, RECORD_BYTES - 3]
    assert blocks[1] is long
    assert bytes(blocks[0]) == b"\x03\x03\x03\x02\x02"


def test_every_connection_is_of_tls_1_3(certificates: Path) -> None:
    own = Certificate.load(certificates, "server")
    assert own.accepting.minimum_version is own.dialling.minimum_version is ssl.TLSVersion.TLSv1_3
    assert own.accepting.verify_mode is own.dialling.verify_mode is ssl.CERT_REQUIRED
