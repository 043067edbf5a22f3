"""The emulated network: shares of links, times, order, cuts, resets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

import pytest

from mlfabric.channels.memory import MemoryStream
from mlfabric.lab.links import Links, Way
from mlfabric.lab.loop import VirtualLoop
from mlfabric.lab.processes import Process
from mlfabric.lab.shares import NO_LINK, Shares

MBIT = 1e6
LATENCY_S = 0.001


class Net:
    """Three hosts of 8 Mbit/s, so that a megabyte takes a second, and a process on each."""

    def __init__(self) -> None:
        self.loop = VirtualLoop(random.Random(1))
        self.links = Links(self.loop, random.Random(1), (LATENCY_S, LATENCY_S))
        self.processes = {name: Process(self.loop, name, name) for name in "abc"}
        for host in "abc":
            for direction in ("up", "down"):
                self.links.set_rate(host, direction, 8 * MBIT)

    def run(self, coroutine: Coroutine[Any, Any, Any], process: str = "a") -> Any:
        return self.loop.run_until_complete(self.processes[process].spawn(coroutine))

    async def connected(self, source: str, destination: str) -> tuple[MemoryStream, MemoryStream]:
        """Return both ends of a connection between two hosts."""
        accepted: asyncio.Future[MemoryStream] = self.loop.create_future()

        async def listen() -> str:
            return self.links.listen(destination, accepted.set_result)

        address = await self.processes[destination].spawn(listen())
        near = await self.processes[source].spawn(self.links.dial(source, address))
        return near, await accepted

    async def moved(self, source: str, destination: str, size_bytes: int) -> float:
        """Return how long it takes until so much has come."""
        near, far = await self.connected(source, destination)
        began_s = self.loop.time()
        sending = asyncio.ensure_future(near.write([memoryview(bytes(size_bytes))]))
        room = memoryview(bytearray(size_bytes))
        assert await far.read_into(room, size_bytes) == size_bytes
        await sending
        return self.loop.time() - began_s


@pytest.fixture
def net() -> Iterator[Net]:
    made = Net()
    yield made
    made.loop.close()


def test_shares_are_max_min_fair_and_what_one_cannot_use_others_get() -> None:
    a_up, b_down, c_down = range(3)
    to_b, to_c = ((a_up, b_down), 99.0), ((a_up, c_down), 99.0)
    assert shared(to_b, to_c) == [5.0, 5.0]
    assert shared(to_b, to_b, to_c) == [3.0, 3.0, 4.0]
    assert shared((to_b[0], 2.0), to_c) == [2.0, 8.0]
    assert shared(((NO_LINK, NO_LINK), 7.0)) == [7.0]


def shared(*streams: tuple[tuple[int, int], float]) -> list[float]:
    """Return the rates of streams with these links and limits."""
    shares = Shares[int]()
    for link, bps in enumerate((10.0, 6.0, 100.0)):
        shares.set_rate(link, bps)
    for number, (ends, limit_bps) in enumerate(streams):
        shares.enter(number, ends, 1.0, limit_bps)
    shares.share_out()
    return shares.rates_bps()


def test_what_arrives_is_acknowledged_over_the_other_way() -> None:
    a_up, a_down, b_up, b_down = range(4)
    shares = Shares[str](acknowledged=0.1)
    for link, bps in enumerate((10.0, 100.0, 100.0, 100.0)):
        shares.set_rate(link, bps)
    shares.enter("from a", (a_up, b_down), 1.0, 99.0, back=(b_up, a_down))
    shares.share_out()
    assert shares.rates_bps() == pytest.approx([11.0])  # nothing is to be acknowledged over a's way up
    shares.enter("to a", (b_up, a_down), 1.0, 50.0, back=(a_up, b_down))
    shares.share_out()
    assert shares.rates_bps() == pytest.approx([11.0 - 0.1 * 50.0, 50.0])
    shares.leave(0)
    shares.share_out()
    assert shares.rates_bps() == pytest.approx([50.0])


def test_a_stream_takes_what_its_links_take_and_two_share_them(net: Net) -> None:
    assert net.run(net.moved("a", "b", 1_000_000)) == pytest.approx(1.0, abs=0.01)

    async def two() -> list[float]:
        return list(await asyncio.gather(net.moved("a", "c", 500_000), net.moved("b", "c", 500_000)))

    assert net.run(two()) == pytest.approx([1.0, 1.0], abs=0.02)


def test_a_link_that_slows_down_slows_down_what_is_on_its_way(net) -> None:
    net.loop.call_later(0.5, net.links.set_rate, "b", "down", 2 * MBIT)
    assert net.run(net.moved("a", "b", 1_000_000)) == pytest.approx(2.5, abs=0.02)


def test_what_is_cut_off_waits_and_goes_on(net) -> None:
    net.loop.call_later(0.5, net.links.cut, [("a", "b")])
    net.loop.call_later(3.5, net.links.heal, [("a", "b")])
    assert net.run(net.moved("a", "b", 1_000_000)) == pytest.approx(4.0, abs=0.02)


def test_the_connections_of_who_has_died_are_reset(net) -> None:
    async def reading() -> None:
        near, _ = await net.connected("a", "b")
        net.processes["b"].kill()
        net.links.died(net.processes["b"])
        await near.read_into(memoryview(bytearray(1)), 1)

    with pytest.raises(ConnectionResetError):
        net.run(reading())
    with pytest.raises(ConnectionRefusedError):
        net.run(net.links.dial("a", "b:7000"))


def test_messages_keep_their_order_wait_for_a_cut_to_heal_and_are_lost_with_their_way(net) -> None:
    way, came = Way(net.links, "a", "b"), list[int]()

    async def send() -> None:
        for number in range(3):
            way.send(partial(came.append, number))
        await asyncio.sleep(1.0)
        net.links.cut([("a", "b")])
        for number in range(3, 6):
            way.send(partial(came.append, number))
        await asyncio.sleep(1.0)
        assert came == [0, 1, 2]
        net.links.heal([("a", "b")])
        assert came == [0, 1, 2, 3, 4, 5]
        way.send(lambda: came.append(6))
        way.break_off()
        await asyncio.sleep(1.0)

    net.run(send())
    assert came == [0, 1, 2, 3, 4, 5]
