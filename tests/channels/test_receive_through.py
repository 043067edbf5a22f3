"""Receiving piece by piece: who takes a piece sees all of it and nothing after it, on every channel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlfabric.channels import TcpChannel, TcpOptions
from mlfabric.errors import TransferError, UsageError
from tests.channels.conftest import GRANT, MB, MakeChannel, connected, payload
from tests.channels.filling import content, filled_by


@pytest.fixture(params=[0, 4_000_000_000], ids=["tcp", "tcp with an emulated card"])
def make(request: pytest.FixtureRequest) -> MakeChannel:
    return lambda: TcpChannel(TcpOptions(down_bps=request.param))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from([1, 7, 4096, 70_000]), min_size=1, max_size=8),
    waits=st.sets(st.integers(0, 7)),
    rest=st.sampled_from([0, 1, 5000]),
)
async def test_every_piece_is_taken_when_it_is_full_and_before_the_next_one_is_begun(
    make: MakeChannel, sizes: list[int], waits: set[int], rest: int
) -> None:
    whole, buffer, taken = content(sum(sizes) + rest), memoryview(bytearray(max(sizes))), list[bytes]()

    async def linger(seen: bytes) -> None:
        await asyncio.sleep(0)
        assert buffer[: len(seen)] == seen, "the next piece was begun meanwhile"

    def took() -> Awaitable[None] | None:
        taken.append(bytes(buffer[: sizes[len(taken)]]))
        return linger(taken[-1]) if len(taken) - 1 in waits else None

    async with connected(make) as (near, far), asyncio.TaskGroup() as group:
        sending = group.create_task(near.send(payload(len(whole)), [memoryview(whole)]))
        await far.receive()
        record = await far.receive_through([buffer[:size] for size in sizes], took)
        assert (record.bytes, far.unread_bytes) == (sum(sizes), rest)
        assert record.started_ns <= record.ended_ns
        await far.discard(rest)
        await sending
        await near.send(GRANT)
        assert await far.receive() == GRANT
    assert b"".join(taken) == whole[: sum(sizes)]


@pytest.mark.parametrize("at_once", [True, False])
async def test_an_error_of_who_takes_a_piece_is_raised_and_the_rest_can_still_be_had(
    make: MakeChannel, at_once: bool
) -> None:
    buffers = [memoryview(bytearray(MB)) for _ in range(3)]
    whole, taken = content(3 * MB), list[int]()

    async def fail_later() -> None:
        await asyncio.sleep(0)
        raise ConnectionResetError("not this connection's")

    def took() -> Awaitable[None] | None:
        taken.append(1)
        if len(taken) < 2:
            return None
        if at_once:
            raise ConnectionResetError("not this connection's")
        return fail_later()

    async with connected(make) as (near, far), asyncio.TaskGroup() as group:
        group.create_task(near.send(payload(len(whole)), [memoryview(whole)]))
        await far.receive()
        with pytest.raises(ConnectionResetError, match="not this connection's"):
            await far.receive_through(buffers, took)
        assert (len(taken), far.unread_bytes) == (2, MB)
        await far.receive_into(buffers[2], MB)
    assert b"".join(buffers) == whole


async def test_a_payload_that_is_torn_is_not_taken_for_whole(make: MakeChannel) -> None:
    taken, pieces = list[int](), [memoryview(bytearray(1000)) for _ in range(3)]
    second_is_full = asyncio.Event()

    async def torn():
        yield memoryview(bytes(2500))
        await second_is_full.wait()
        near.close()
        yield memoryview(bytes(500))

    def took() -> None:
        taken.append(1)
        if len(taken) == 2:
            second_is_full.set()

    async def send() -> None:
        with pytest.raises(TransferError):
            await near.send_stream(payload(3000), filled_by(torn(), 3000))

    async with connected(make) as (near, far), asyncio.TaskGroup() as group:
        group.create_task(send())
        await far.receive()
        with pytest.raises(TransferError):
            await far.receive_through(pieces, took)
    assert len(taken) == 2


async def test_a_receiver_that_is_closed_or_cancelled_between_pieces_says_so(make: MakeChannel) -> None:
    async with connected(make) as (near, far):
        sending = asyncio.create_task(near.send(payload(2 * MB), [memoryview(bytes(2 * MB))]))
        await far.receive()
        waiting = asyncio.Event()

        async def for_ever() -> None:
            waiting.set()
            await asyncio.Event().wait()

        pieces = [memoryview(bytearray(MB)) for _ in range(2)]
        receiving = asyncio.create_task(far.receive_through(pieces, for_ever))
        await waiting.wait()
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        assert far.unread_bytes == MB
        await far.receive_through([pieces[1]], far.close)
        with pytest.raises(TransferError, match="closed at this end"):
            await far.receive()
        await asyncio.wait([sending])
        assert sending.exception() is None or isinstance(sending.exception(), TransferError)


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([bytearray(6), bytes(4)], "read-only or empty"),
        ([bytearray(6), bytearray()], "read-only or empty"),
        ([], "read-only or empty"),
        ([bytearray(6), bytearray(5)], "asked for 11 payload bytes; 10 are announced"),
    ],
)
async def test_pieces_that_do_not_fit_are_refused_and_the_payload_can_still_be_had(
    make: MakeChannel, pieces: list[bytes | bytearray], says: str
) -> None:
    async with connected(make) as (near, far), asyncio.TaskGroup() as group:
        group.create_task(near.send(payload(10), [memoryview(b"0123456789")]))
        await far.receive()
        with pytest.raises(UsageError, match=says):
            await far.receive_through([memoryview(piece) for piece in pieces], lambda: None)
        right = bytearray(10)
        await far.receive_into(memoryview(right), 10)
        assert right == b"0123456789"
