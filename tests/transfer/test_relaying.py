"""A node of a distribution tree: what comes in goes on at once, to any number of others."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from mlfabric.channels import Frame, FrameKind
from mlfabric.errors import LayoutError, TransferError, UsageError
from mlfabric.model.chunking import chunk_bytes
from mlfabric.transfer.relay import Relay
from tests.channels.filling import filled_by
from tests.transfer.conftest import Connect

TICKET = bytes(16)
SIZE = 3_000_000


def model(n: int = SIZE) -> Frame:
    return Frame(kind=FrameKind.MODEL, ticket=TICKET, length=n)


async def test_the_first_chunk_of_a_small_model_goes_on_before_the_second_comes_in(connect: Connect):
    small = 200_000
    chunk, data = chunk_bytes(small), np.random.default_rng(1).bytes(small)
    assert chunk < small // 40
    near, far = await connect()
    out, end = await connect()
    relay, got, is_on = Relay(memoryview(bytearray(small))), bytearray(small), asyncio.Event()

    async def source():
        yield memoryview(data)[:chunk]
        await is_on.wait()
        yield memoryview(data)[chunk:]

    async def receive() -> None:
        await end.receive()
        await end.receive_into(memoryview(got), chunk)
        is_on.set()
        await end.receive_into(memoryview(got)[chunk:], small - chunk)

    async with asyncio.TaskGroup() as group:
        group.create_task(near.send_stream(model(small), filled_by(source(), small)))
        group.create_task(out.send_stream(model(small), relay))
        group.create_task(receive())
        await far.receive()
        await relay.receive(far, small)
    assert got == data


async def test_giving_the_reception_up_fails_the_relay_and_ends_its_sender(connect: Connect):
    near, far = await connect()
    big = 50_000_000
    relay = Relay(memoryview(bytearray(big)))
    sending = asyncio.create_task(near.send(model(big), [memoryview(bytes(big))]))
    await far.receive()
    receiving = asyncio.create_task(relay.receive(far, big))
    await relay.progress.reached(1)
    receiving.cancel()
    with pytest.raises(TransferError, match="given up"):
        await relay.progress.reached(big)
    with pytest.raises(TransferError):
        await sending


async def test_a_wrong_length_or_a_second_filling_is_refused_and_nothing_is_received(connect: Connect):
    near, far = await connect()
    relay = Relay(memoryview(bytearray(10)))
    await near.send(model(11), [memoryview(bytes(11))])
    await far.receive()
    with pytest.raises(LayoutError, match="11 bytes for a relay; allowed: 10"):
        await relay.receive(far, 11)
    await far.discard(11)
    await near.send(model(10), [memoryview(b"0123456789")])
    await far.receive()
    await relay.receive(far, 10)
    with pytest.raises(UsageError, match="filled before"):
        await relay.receive(far, 10)
    assert bytes(relay.payload) == b"0123456789"


@pytest.mark.parametrize("buffer", [memoryview(b"fixed"), memoryview(bytearray())])
def test_a_buffer_that_cannot_be_filled_is_refused(buffer: memoryview):
    with pytest.raises(UsageError, match="give a writable one"):
        Relay(buffer)
