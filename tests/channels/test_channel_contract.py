"""What every channel promises, checked with and without TLS."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlfabric.channels import (
    Connection,
    ConnectionClosedError,
    Direction,
    Frame,
    FrameKind,
)
from mlfabric.errors import FabricClosedError, TransferError, UnavailableError, UsageError
from tests.channels.conftest import (
    GRANT,
    MB,
    TICKET,
    MakeChannel,
    connected,
    payload,
    served,
    until_closed,
    zeros,
)
from tests.channels.filling import filled


async def test_a_control_frame_arrives_as_it_was_sent_and_has_no_record(make: MakeChannel) -> None:
    async with connected(make) as (near, far):
        assert await near.send(GRANT) is None
        assert await far.receive() == GRANT


async def test_eight_megabytes_of_tensors_make_the_round_trip_unchanged(make: MakeChannel) -> None:
    data = np.random.default_rng(1).standard_normal(MB)
    back = np.zeros_like(data)
    async with connected(make) as (near, far):

        async def echo() -> None:
            frame = await far.receive()
            buffer = bytearray(frame.length)
            await far.receive_into(memoryview(buffer), frame.length)
            await far.send(Frame(kind=FrameKind.MODEL, ticket=TICKET, length=frame.length), [memoryview(buffer)])

        async with asyncio.TaskGroup() as group:
            group.create_task(echo())
            sent = await near.send(payload(data.nbytes), [data[:10].data, data[10:].data])
            frame = await near.receive()
            received = await near.receive_into(back.data, frame.length)
    assert (frame.kind, frame.length) == (FrameKind.MODEL, data.nbytes)
    assert np.array_equal(data, back)
    assert sent is not None
    assert (sent.direction, received.direction) == (Direction.OUT, Direction.IN)
    assert sent.bytes == received.bytes == data.nbytes
    assert sent.rate_bps > 0
    assert not sent.paced


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.binary(max_size=3000), max_size=30),
    takes=st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=10),
)
async def test_any_payload_can_be_received_or_discarded_in_any_parts(
    make: MakeChannel, parts: list[bytes], takes: list[tuple[int, bool]]
) -> None:
    whole = b"".join(parts)
    async with connected(make) as (near, far), asyncio.TaskGroup() as group:
        sending = group.create_task(near.send(payload(len(whole)), [memoryview(p) for p in parts]))
        at, left = 0, (await far.receive()).length
        for wanted, discard in [*takes, (len(whole), False)]:
            n = min(wanted, left)
            buffer = bytearray(n)
            await (far.discard(n) if discard else far.receive_into(memoryview(buffer), n))
            assert discard or buffer == whole[at : at + n]
            at, left = at + n, left - n
        await sending
        await near.send(GRANT)
        assert await far.receive() == GRANT


async def test_thousands_of_tiny_tensors_arrive_in_order(make: MakeChannel) -> None:
    parts = [i.to_bytes(4, "big") for i in range(5000)]
    buffer = bytearray(20000)
    async with connected(make) as (near, far), asyncio.TaskGroup() as group:
        group.create_task(near.send(payload(20000), [memoryview(p) for p in parts]))
        await far.receive_into(memoryview(buffer), (await far.receive()).length)
    assert buffer == b"".join(parts)


async def test_a_tensor_with_gaps_is_not_sent(make: MakeChannel) -> None:
    async with connected(make) as (near, far):
        with pytest.raises(UsageError, match=r"buffer 1 .* not contiguous"):
            await near.send(payload(65), [memoryview(b"a"), np.zeros((4, 4))[:, :2].data])
        await near.send(GRANT)
        assert await far.receive() == GRANT


@pytest.mark.parametrize("is_stream", [False, True], ids=["", "as it is filled"])
async def test_a_paced_transfer_is_not_faster_than_planned_and_both_records_say_so(
    make: MakeChannel, is_stream: bool
) -> None:
    size, rate_bps = 100_000, 20_000_000
    async with connected(make) as (near, far), asyncio.TaskGroup() as group:
        if not is_stream:
            sending = group.create_task(near.send(*zeros(size), rate_bps))
        else:
            sending = group.create_task(near.send_stream(payload(size), filled(size, size), rate_bps))
        await far.receive()
        received = await far.discard(size)
    sent = sending.result()
    assert sent is not None
    assert sent.paced
    assert received.paced
    assert sent.rate_bps <= rate_bps


async def test_what_has_come_and_was_not_read_is_waiting(make: MakeChannel) -> None:
    async with connected(make) as (near, far):
        assert far.waiting_bytes == 0
        await near.send(*zeros(1000))
        await far.receive()
        while far.waiting_bytes < 1000:
            await asyncio.sleep(0)
        await far.receive_into(memoryview(bytearray(400)), 400)
        assert (far.waiting_bytes, near.waiting_bytes) == (600, 0)
        await far.discard(599)
        assert far.waiting_bytes == 1
        far.close()
        assert far.waiting_bytes == 0


async def test_a_peer_that_closes_between_frames_is_told_apart_from_a_torn_frame(make: MakeChannel) -> None:
    async with connected(make) as (near, far):
        await near.send(GRANT)
        near.close()
        assert await far.receive() == GRANT
        with pytest.raises(ConnectionClosedError, match="between two frames"):
            await far.receive()


async def test_a_sender_cancelled_in_the_middle_tears_its_own_transfer_and_no_other(make: MakeChannel) -> None:
    async with connected(make) as (near, far), connected(make) as (other_near, other_far):
        sending = asyncio.create_task(near.send(*zeros(50 * MB)))
        await far.receive()
        await far.discard(MB)
        sending.cancel()
        with pytest.raises(TransferError) as torn:
            await far.discard(49 * MB)
        assert not isinstance(torn.value, ConnectionClosedError)
        with pytest.raises(TransferError, match="closed at this end"):
            await near.send(GRANT)
        await other_near.send(GRANT)
        assert await other_far.receive() == GRANT


async def test_a_receiver_cancelled_in_the_middle_ends_its_senders_transfer(make: MakeChannel) -> None:
    async with connected(make) as (near, far):
        sending = asyncio.create_task(near.send(*zeros(50 * MB)))
        await far.receive()
        await far.discard(MB)
        receiving = asyncio.create_task(far.discard(49 * MB))
        await asyncio.sleep(0)
        receiving.cancel()
        with pytest.raises(TransferError, match="broke"):
            await sending
        assert receiving.cancelled()


async def test_closing_wakes_whoever_waits_in_the_connection(make: MakeChannel) -> None:
    async with connected(make) as (near, far):
        waiting = asyncio.create_task(near.receive())
        await asyncio.sleep(0)
        near.close()
        with pytest.raises(TransferError, match="closed at this end"):
            await waiting
        await near.wait_closed()
        with pytest.raises(ConnectionClosedError):
            await far.receive()


async def test_closing_ends_a_sender_whose_receiver_does_not_read(make: MakeChannel) -> None:
    async with connected(make) as (near, far):
        sending = asyncio.create_task(near.send(*zeros(50 * MB)))
        await far.receive()
        near.close()
        with pytest.raises(TransferError, match="closed at this end"):
            await sending


async def test_closing_the_channel_ends_a_transfer_that_is_paced_to_hours(make: MakeChannel) -> None:
    async with connected(make) as (near, _far):
        sending = asyncio.create_task(near.send(*zeros(MB), rate_bps=1000))
        await asyncio.sleep(0)
    with pytest.raises(TransferError):
        await sending


async def test_a_payload_beyond_the_receivers_limit_is_refused_and_the_connection_closed(make: MakeChannel) -> None:
    async with connected(make) as (near, far):
        sending = asyncio.create_task(near.send(*zeros(101 * MB)))
        with pytest.raises(TransferError, match="announced 101000000 payload bytes, wanted at most 100000000"):
            await far.receive()
        with pytest.raises(TransferError):
            await sending


@pytest.mark.parametrize("given_bytes", [0, 9, 11])
async def test_a_payload_of_another_length_than_announced_is_not_sent(make: MakeChannel, given_bytes: int) -> None:
    async with connected(make) as (near, far):
        with pytest.raises(UsageError, match=f"announces 10 payload bytes, given {given_bytes}"):
            await near.send(payload(10), [memoryview(bytes(given_bytes))])
        await near.send(GRANT)
        assert await far.receive() == GRANT


@pytest.mark.parametrize(
    ("buffer", "length", "says"),
    [
        (bytearray(9), 10, "writable buffer of 9 bytes; wanted a writable one of 10"),
        (bytes(10), 10, "read-only buffer"),
        (bytearray(11), 11, "asked for 11 payload bytes; 10 are announced"),
    ],
)
async def test_a_buffer_that_does_not_fit_is_refused_and_the_payload_can_still_be_had(
    make: MakeChannel, buffer: bytes | bytearray, length: int, says: str
) -> None:
    async with connected(make) as (near, far), asyncio.TaskGroup() as group:
        group.create_task(near.send(payload(10), [memoryview(b"0123456789")]))
        await far.receive()
        with pytest.raises(UsageError, match=says):
            await far.receive_into(memoryview(buffer), length)
        with pytest.raises(UsageError, match="10 payload bytes are still to be received"):
            await far.receive()
        right = bytearray(10)
        await far.receive_into(memoryview(right), 10)
        assert right == b"0123456789"


async def test_a_second_task_in_the_same_direction_is_refused_and_the_first_goes_on(make: MakeChannel) -> None:
    async with connected(make) as (near, far):
        waiting = asyncio.create_task(far.receive())
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="another task"):
            await far.receive()
        await near.send(GRANT)
        assert await waiting == GRANT


async def test_an_address_where_nobody_listens_is_named_in_the_error(make: MakeChannel) -> None:
    server, client = make(), make()
    address = await server.listen(until_closed)
    await server.close()
    with pytest.raises(UnavailableError, match=address):
        await client.connect(address)
    await client.close()


async def test_a_closed_channel_can_neither_listen_nor_connect(make: MakeChannel) -> None:
    channel = make()
    await channel.close()
    with pytest.raises(FabricClosedError):
        await channel.listen(until_closed)
    with pytest.raises(FabricClosedError):
        await channel.connect("127.0.0.1:1")


async def test_an_endpoint_has_one_address_and_closing_it_twice_is_as_good_as_once(make: MakeChannel) -> None:
    channel = make()
    await channel.listen(until_closed)
    with pytest.raises(UsageError, match="listens already"):
        await channel.listen(until_closed)
    await channel.close()
    await channel.close()


async def test_the_connection_is_closed_when_its_handler_returns(make: MakeChannel) -> None:
    async def answer(connection: Connection) -> None:
        await connection.send(GRANT)

    async with served(make(), make(), answer) as (client, address):
        connection = await client.connect(address)
        assert await connection.receive() == GRANT
        with pytest.raises(ConnectionClosedError):
            await connection.receive()


async def test_a_fault_in_a_handler_reaches_the_loops_exception_handler(make: MakeChannel) -> None:
    faults: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.put_nowait(context))

    async def broken(_connection: Connection) -> None:
        raise AssertionError("an invariant broke")

    async with served(make(), make(), broken) as (client, address):
        await client.connect(address)
        assert str((await faults.get())["exception"]) == "an invariant broke"


async def test_what_a_peer_does_wrong_is_logged_and_the_next_one_is_served(
    make: MakeChannel, caplog: pytest.LogCaptureFixture
) -> None:
    async def greet(connection: Connection) -> None:
        if (await connection.receive()).kind is not FrameKind.WANT:
            raise TransferError("wanted WANT")
        await connection.send(GRANT)

    async with served(make(), make(), greet) as (client, address):
        rude = await client.connect(address)
        await rude.send(GRANT)
        with pytest.raises(ConnectionClosedError):
            await rude.receive()
        polite = await client.connect(address)
        await polite.send(Frame(kind=FrameKind.WANT, ticket=TICKET))
        assert await polite.receive() == GRANT
    assert "wanted WANT" in caplog.text


async def test_a_handler_may_close_its_own_channel(make: MakeChannel) -> None:
    done = asyncio.Event()
    server, client = make(), make()

    async def shut(_connection: Connection) -> None:
        await server.close()
        done.set()

    await client.connect(await server.listen(shut))
    await done.wait()
    await client.close()
