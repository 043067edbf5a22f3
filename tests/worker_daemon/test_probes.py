"""Probes between workers over real sockets: they come, are timed and thrown away; what fails keeps nothing waiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mlfabric.channels import Connection, Frame, FrameKind, TcpChannel, TcpOptions
from mlfabric.errors import TransferError
from mlfabric.protocol import Peer, Probe, RoundId
from mlfabric.worker_daemon.probes import Look, Probes, cut_off_bps, rate_bps
from mlfabric.worker_daemon.round_lines import RoundLines
from tests.channels.filling import filled_by

ROUND = RoundId(1, 7)
UP_BPS = 16_000_000
SIZE = 240 * 1024
"""About 120 ms over a way up of an emulated card; over loopback alone all of it is there at once."""
SLOT_NS = 150_000_000
NEVER_NS = 10**13
TICKETS = [bytes(15) + bytes([n]) for n in range(3)]


class Worker:
    """A worker that only probes."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[Any] = asyncio.Queue()
        self.channel = TcpChannel(TcpOptions(up_bps=UP_BPS))
        self.lines = RoundLines(self.channel)
        self.probes = Probes(self.lines, self.came.put_nowait)
        self.address = ""

    async def __aenter__(self) -> Worker:
        self.address = await self.channel.listen(self.lines.serve)
        return self

    async def __aexit__(self, *unused: object) -> None:
        await self.probes.close()
        await self.channel.close()

    async def told(self) -> tuple[str, RoundId]:
        """Return who sent the next probe that came, and after which round."""
        ended = await asyncio.wait_for(self.came.get(), 15)
        assert ended.model == "net"
        assert ended.bps > 0
        return ended.source, ended.round


def plan(
    *,
    targets: tuple[Peer, ...] = (),
    sources: tuple[Peer, ...] = (),
    after: RoundId = ROUND,
    size: int = SIZE,
    slot_ns: int = SLOT_NS,
) -> Probe:
    return Probe(
        to="w", model="net", round=after, size_bytes=size, targets=targets, sources=sources, slot_ns=slot_ns, reason=""
    )


async def all_over(*workers: Worker) -> None:
    """Wait until nothing is sent or expected any more."""
    for task in [task for worker in workers for task in worker.probes._tasks._running]:
        await asyncio.wait_for(asyncio.shield(task), 15)


@asynccontextmanager
async def slowly_sent(address: str, ticket: bytes) -> AsyncIterator[Connection]:
    """Send a probe that takes several slots."""
    channel, over = TcpChannel(), asyncio.Event()

    async def pieces() -> AsyncIterator[memoryview]:
        for _ in range(24):
            if over.is_set():
                return
            yield memoryview(bytes(SIZE // 24))
            await asyncio.sleep(0.02)

    connection = await channel.connect(address)
    frame = Frame(kind=FrameKind.PAYLOAD, ticket=ticket, length=SIZE)
    sending = asyncio.create_task(connection.send_stream(frame, filled_by(pieces(), SIZE)))
    try:
        yield connection
    finally:
        over.set()
        await asyncio.gather(sending, return_exceptions=True)
        await channel.close()


async def test_each_of_two_probes_in_turn_comes_and_is_told_of_once() -> None:
    async with Worker() as a, Worker() as b, Worker() as c:
        b.probes.start(plan(sources=(Peer("a", "", TICKETS[0]),)))
        c.probes.start(plan(sources=(Peer("a", "", TICKETS[1]),)))
        a.probes.start(plan(targets=(Peer("b", b.address, TICKETS[0]), Peer("c", c.address, TICKETS[1]))))
        assert await b.told() == await c.told() == ("a", ROUND)
        await all_over(a)
        assert b.came.empty()
        assert c.came.empty()


async def test_one_that_takes_longer_than_its_slot_is_told_of_and_cut_off() -> None:
    async with Worker() as b:
        b.probes.start(plan(sources=(Peer("a", "", TICKETS[0]),), slot_ns=SLOT_NS))
        async with slowly_sent(b.address, TICKETS[0]) as connection:
            assert await b.told() == ("a", ROUND)
            with pytest.raises(TransferError):
                await connection.receive()
        assert b.came.empty()


async def test_its_sender_cuts_it_off_too() -> None:
    """Its receiver may not be able to say that in time."""
    came, over = bytearray(), asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(64 * 1024):
                came.extend(data)
        writer.close()
        over.set()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server, Worker() as a:
        host, port = server.sockets[0].getsockname()
        a.probes.start(plan(targets=(Peer("b", f"{host}:{port}", TICKETS[0]),), size=100 * SIZE))
        await all_over(a)
        await asyncio.wait_for(over.wait(), 15)
    assert 0 < len(came) < 100 * SIZE


async def test_one_that_its_sender_cuts_off_is_told_of_if_enough_was_seen() -> None:
    async with Worker() as b:
        b.probes.start(plan(sources=(Peer("a", "", TICKETS[0]),), slot_ns=4 * SLOT_NS))
        async with slowly_sent(b.address, TICKETS[0]) as connection:
            await asyncio.sleep(2.5 * SLOT_NS / 1e9)
            connection.close()
            assert await b.told() == ("a", ROUND)
        b.probes.start(plan(sources=(Peer("a", "", TICKETS[1]),), slot_ns=NEVER_NS))
        async with slowly_sent(b.address, TICKETS[1]) as connection:
            while b.lines._expected:
                await asyncio.sleep(0.001)
            connection.close()
            await all_over(b)
        assert b.came.empty()


async def test_one_of_another_length_is_refused_and_does_not_hold_up_the_others() -> None:
    async with Worker() as a, Worker() as b, Worker() as c:
        b.probes.start(plan(sources=(Peer("a", "", TICKETS[0]), Peer("c", "", TICKETS[1]))))
        a.probes.start(plan(targets=(Peer("b", b.address, TICKETS[0]),), size=SIZE + 1))
        await all_over(a)
        c.probes.start(plan(targets=(Peer("b", b.address, TICKETS[1]),)))
        await all_over(b, c)
        assert await b.told() == ("c", ROUND)
        assert b.came.empty()


async def test_one_that_cannot_be_sent_does_not_hold_up_the_next(free_port) -> None:
    async with Worker() as a, Worker() as b:
        b.probes.start(plan(sources=(Peer("a", "", TICKETS[0]),)))
        nobody = Peer("gone", f"127.0.0.1:{free_port}", TICKETS[1])
        a.probes.start(plan(targets=(nobody, Peer("b", b.address, TICKETS[0]))))
        assert await b.told() == ("a", ROUND)
        await all_over(a)


async def test_a_new_plan_voids_what_is_still_expected_of_the_old_one() -> None:
    later = RoundId(1, 8)
    async with Worker() as b, Worker() as c:
        b.probes.start(plan(sources=(Peer("a", "", TICKETS[0]),), slot_ns=NEVER_NS))
        async with slowly_sent(b.address, TICKETS[0]) as connection:
            while b.lines._expected:
                await asyncio.sleep(0.001)
            b.probes.start(plan(sources=(Peer("c", "", TICKETS[1]),), after=later))
            c.probes.start(plan(targets=(Peer("b", b.address, TICKETS[1]),), after=later))
            with pytest.raises(TransferError):
                await connection.receive()
        assert await b.told() == ("c", later)
        await all_over(b, c)
        assert b.came.empty()


async def test_a_new_plan_voids_what_is_still_sent_of_the_old_one() -> None:
    later = RoundId(1, 8)
    async with Worker() as a, Worker() as b:
        a.probes.start(plan(targets=(Peer("b", b.address, TICKETS[0]), Peer("b", b.address, TICKETS[1]))))
        await asyncio.sleep(0.02)
        b.probes.start(plan(sources=(Peer("a", "", TICKETS[1]), Peer("a", "", TICKETS[2])), after=later))
        a.probes.start(plan(targets=(Peer("b", b.address, TICKETS[2]),), after=later))
        assert await b.told() == ("a", later)
        await all_over(a)
        assert b.came.empty()


async def test_closing_leaves_nothing_of_probes_that_nobody_expects_or_sends() -> None:
    before = asyncio.all_tasks()
    async with Worker() as a, Worker() as b:
        nobody = Peer("b", b.address, TICKETS[0])
        a.probes.start(plan(targets=(nobody, nobody), sources=(Peer("b", "", TICKETS[1]),), slot_ns=NEVER_NS))
        await asyncio.sleep(0.01)
        await a.probes.close()
        assert not a.probes._tasks._running
    assert asyncio.all_tasks() == before
    assert a.came.empty()


S = 10**9
WHOLE = 900


@pytest.mark.parametrize(
    ("looks", "bps"),
    [
        ([(0, 0), (1, 450), (2, 500), (4, 750)], 800),
        ([(0, 200), (1, 449), (2, 450), (4, 750)], 1200),
        ([(0, 450), (3, 750), (4, 900), (50, 900)], 800),
        ([(0, 450), (9, 675)], 200),
    ],
)
def test_the_rate_is_that_of_what_came_after_the_first_half_and_before_the_end(
    looks: list[tuple[int, int]], bps: int
) -> None:
    assert rate_bps([Look(at_s * S, came) for at_s, came in looks], WHOLE) == bps


@pytest.mark.parametrize(
    "looks",
    [
        [],
        [(0, 900), (1, 900), (2, 900)],
        [(0, 100), (1, 200), (2, 900)],
        [(0, 449), (1, 899), (2, 900)],
        [(0, 450), (9, 674)],
        [(5, 450), (5, 700)],
    ],
)
def test_of_what_was_not_seen_to_come_nothing_is_told(looks: list[tuple[int, int]]) -> None:
    assert rate_bps([Look(at_s * S, came) for at_s, came in looks], WHOLE) == 0


@pytest.mark.parametrize(
    ("looks", "bps"),
    [
        ([(0, 0), (1, 600), (4, 620), (6, 640), (8, 700)], 160),
        ([(5, 100), (13, 200)], 100),
        ([(0, 0), (1, 600), (4, 700)], 0),
        ([(0, 0)], 0),
    ],
)
def test_the_rate_of_one_that_was_cut_off_is_that_of_what_came_after_the_first_half_of_its_time(
    looks: list[tuple[int, int]], bps: int
) -> None:
    assert cut_off_bps([Look(at_s * S, came) for at_s, came in looks], 9 * S) == bps
