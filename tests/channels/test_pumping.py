"""Sending a buffer while it is being filled: everything arrives, whatever comes when, and failures come through."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.channels import ConnectionClosedError, TcpChannel, frame_sender
from mlfabric.channels import pump as pumping
from mlfabric.channels.backlog import Path
from mlfabric.channels.pump import Pump
from mlfabric.channels.tcpstream import TcpStream
from mlfabric.errors import TransferError, UsageError
from tests.channels.conftest import GRANT, MB, MakeChannel, connected, payload
from tests.channels.filling import Buffer, content, filled


class Rooms(TcpStream):
    """A stream without a socket that has had so much room at the first, at the second, ... wait for it."""

    def __init__(self, rooms: Iterator[int]) -> None:
        self.got = bytearray()
        self.waits = 0
        self.open = asyncio.Event()
        self.open.set()
        self._rooms = rooms
        self._room = 0
        self.unacknowledged = 0

    def path(self) -> Path:
        return Path(0, 0)

    def unacknowledged_bytes(self) -> int:
        return self.unacknowledged

    def write_now(self, piece: memoryview) -> int:
        assert len(piece), "told to write nothing"
        n = min(self._room, len(piece))
        self._room -= n
        self.got += piece[:n]
        return n

    async def writable(self) -> None:
        self.waits += 1
        await asyncio.sleep(0)
        await self.open.wait()
        self._room = next(self._rooms)


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now_ns = 1

    def monotonic_ns(self) -> int:
        return self.now_ns


@given(
    steps=st.lists(st.tuples(st.integers(0, 1_500_000), st.integers(0, 3)), min_size=1, max_size=8),
    rooms=st.lists(st.integers(1, 2_000_000), min_size=1, max_size=5),
)
async def test_everything_arrives_whatever_is_ready_when_and_however_much_room_there_is(
    steps: list[tuple[int, int]], rooms: list[int]
) -> None:
    size = sum(n for n, _ in steps) + 1
    whole, buffer, sink = content(size), Buffer(memoryview(bytearray(size))), Rooms(cycle(r + 50_000 for r in rooms))
    pumping_on = asyncio.create_task(Pump(sink, buffer).run())
    at = 0
    for n, turns in [*steps, (1, 0)]:
        for _ in range(turns):
            await asyncio.sleep(0)
        buffer.payload[at : at + n] = whole[at : at + n]
        at += n
        buffer.progress.advance(at)
        assert len(sink.got) <= at
    await pumping_on
    assert sink.got == whole


async def test_what_becomes_ready_is_sent_before_any_task_runs() -> None:
    buffer, sink = filled(10, 0), Rooms(cycle([100]))
    await sink.writable()
    sending = asyncio.create_task(Pump(sink, buffer).run())
    await asyncio.sleep(0)
    for n in (1, 4, 10):
        buffer.progress.advance(n)
        assert sink.got == content(10)[:n]
    await sending
    assert sink.waits == 1  # the test's own


async def test_a_buffer_that_fails_after_its_last_byte_was_sent_fails_the_sending_all_the_same() -> None:
    buffer, sink = filled(10, 5), Rooms(cycle([100]))
    await sink.writable()
    sending = asyncio.create_task(Pump(sink, buffer).run())
    await asyncio.sleep(0)
    buffer.progress.advance(10)
    assert len(sink.got) == 10
    buffer.progress.fail(TransferError("void"))
    with pytest.raises(TransferError, match="void"):
        await sending


async def test_a_buffer_that_fails_while_there_is_no_room_fails_the_sending_when_there_is() -> None:
    buffer, sink = filled(10, 10), Rooms(cycle([3]))
    sink.open.clear()
    sending = asyncio.create_task(Pump(sink, buffer).run())
    await asyncio.sleep(0)
    buffer.progress.fail(TransferError("void"))
    sink.open.set()
    with pytest.raises(TransferError, match="void"):
        await sending
    assert not sink.got


async def test_who_is_cancelled_listens_no_longer() -> None:
    buffer, sink = filled(10, 0), Rooms(cycle([100]))
    await sink.writable()
    sending = asyncio.create_task(Pump(sink, buffer).run())
    await asyncio.sleep(0)
    sending.cancel()
    buffer.progress.advance(4)
    assert not sink.got
    with pytest.raises(asyncio.CancelledError):
        await sending
    buffer.progress.advance(10)
    assert not sink.got


async def test_only_what_leaves_while_earlier_bytes_are_on_their_way_counts_as_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(pumping, "clock", clock)
    buffer, sink = filled(100, 0), Rooms(cycle([100]))
    await sink.writable()
    pump = Pump(sink, buffer)
    sending = asyncio.create_task(pump.run())
    await asyncio.sleep(0)
    for ready, took_ns, unacknowledged in ((40, 10, 0), (60, 20, 30), (80, 30, 45), (100, 40, 50)):
        clock.now_ns += took_ns
        sink.unacknowledged = unacknowledged
        buffer.progress.advance(ready)
    await sending
    clock.now_ns += 50
    sink.unacknowledged = 15
    pump.look()
    delivered = [0, 40 - 30, 60 - 45, 80 - 50, 100 - 15]
    busy = delivered[4] - delivered[1]  # at 40 ready, all left over may be the last piece
    assert (pump.backlog.bytes, pump.backlog.ns) == (busy, 30 + 40 + 50)


# Through a connection


async def test_a_buffer_is_sent_while_it_is_filled(make: MakeChannel) -> None:
    buffer, got = filled(3 * MB, 0), bytearray(3 * MB)
    async with connected(make) as (near, far), asyncio.TaskGroup() as group:
        sending = group.create_task(near.send_stream(payload(3 * MB), buffer))
        frame, at = await far.receive(), 0
        for end in (1, 5000, 2 * MB, 3 * MB):
            buffer.progress.advance(end)
            await far.receive_into(memoryview(got)[at:end], end - at)
            at = end
        sent = await sending
        await near.send(GRANT)
        assert await far.receive() == GRANT
    assert (frame.length, sent.bytes, bytes(got)) == (3 * MB, 3 * MB, content(3 * MB))


@pytest.mark.parametrize(("starved_share", "paced"), [(0.0, True), (1.0, False)])
async def test_only_a_sender_that_starved_calls_its_record_paced(
    make: MakeChannel, monkeypatch: pytest.MonkeyPatch, starved_share: float, paced: bool
) -> None:
    monkeypatch.setattr(frame_sender, "STARVED_SHARE", starved_share)
    buffer = filled(10, 5)
    async with connected(make) as (near, far), asyncio.TaskGroup() as group:
        sending = group.create_task(near.send_stream(payload(10), buffer))
        await far.receive()
        await far.discard(5)
        buffer.progress.advance(10)
        await far.discard(5)
        assert (await sending).paced is paced


@pytest.mark.parametrize(("share", "busy_bytes"), [(1e9, MB), (1e-9, 0)], ids=["by the links", "by the spreading"])
async def test_the_sender_of_what_was_spread_out_says_what_the_links_carried_if_they_held_it_up(
    monkeypatch: pytest.MonkeyPatch, share: float, busy_bytes: int
) -> None:
    monkeypatch.setattr(frame_sender, "SPREAD_SHARE", share)
    async with connected(TcpChannel) as (near, far), asyncio.TaskGroup() as group:
        near.spread(10_000_000_000)
        sending = group.create_task(near.send(payload(MB), [memoryview(bytearray(MB))]))
        received = await far.discard((await far.receive()).length)
        sent = await sending
    assert sent is not None
    assert received.paced
    assert (sent.busy_bytes > 0, sent.busy_bytes <= busy_bytes, sent.busy_ns > 0) == (
        busy_bytes > 0,
        True,
        busy_bytes > 0,
    )


async def test_a_buffer_of_another_length_than_announced_is_not_sent(make: MakeChannel) -> None:
    async with connected(make) as (near, far):
        with pytest.raises(UsageError, match="announces 10 payload bytes; the buffer has 9"):
            await near.send_stream(payload(10), filled(9, 9))
        with pytest.raises(UsageError, match="use send"):
            await near.send_stream(GRANT, filled(0, 0))
        await near.send(GRANT)
        assert await far.receive() == GRANT


async def test_a_buffer_needs_a_free_direction(make: MakeChannel) -> None:
    buffer = filled(4, 0)
    async with connected(make) as (near, far):
        sending = asyncio.create_task(near.send_stream(payload(4), buffer))
        await far.receive()
        with pytest.raises(UsageError, match="another task"):
            await near.send_stream(payload(4), filled(4, 4))
        buffer.progress.advance(4)
        await far.discard(4)
        await sending


async def test_a_sender_cancelled_while_it_waits_for_bytes_is_cancelled(make: MakeChannel) -> None:
    async with connected(make) as (near, far):
        sending = asyncio.create_task(near.send_stream(payload(10), filled(10, 4)))
        await far.receive()
        await far.discard(4)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        with pytest.raises(TransferError):
            await far.discard(6)


@pytest.mark.parametrize("ready", [4, 50 * MB])
async def test_closing_wakes_who_sends_a_buffer_also_while_there_is_no_room(make: MakeChannel, ready: int) -> None:
    async with connected(make) as (near, far):
        sending = asyncio.create_task(near.send_stream(payload(50 * MB), filled(50 * MB, ready)))
        await far.receive()
        await far.discard(4)
        near.close()
        with pytest.raises(TransferError, match="closed at this end"):
            await sending
        await near.wait_closed()


@pytest.mark.parametrize("ready", [4, 50 * MB])
async def test_a_peer_that_closes_breaks_the_sending_of_a_buffer(make: MakeChannel, ready: int) -> None:
    buffer = filled(50 * MB, ready)
    async with connected(make) as (near, far):
        sending = asyncio.create_task(near.send_stream(payload(50 * MB), buffer))
        await far.receive()
        await far.discard(4)
        far.close()
        await far.wait_closed()
        buffer.progress.advance(50 * MB)
        with pytest.raises(TransferError):
            await sending


@pytest.mark.parametrize("rate_bps", [0, 1_000_000_000])
@pytest.mark.parametrize("error", [KeyError("a piece"), TransferError("an input broke")])
async def test_a_buffer_that_fails_tears_the_payload_at_its_receiver(
    make: MakeChannel, error: Exception, rate_bps: int
) -> None:
    buffer = filled(10, 4)
    async with connected(make) as (near, far):
        sending = asyncio.create_task(near.send_stream(payload(10), buffer, rate_bps))
        await far.receive()
        await far.discard(4)
        buffer.progress.fail(error)
        with pytest.raises(type(error)) as raised:
            await sending
        assert raised.value is error
        with pytest.raises(TransferError) as torn:
            await far.discard(6)
        assert not isinstance(torn.value, ConnectionClosedError)
        with pytest.raises(TransferError, match="closed at this end"):
            await near.send(GRANT)
