"""Relays over real links: what they pass on tells which link is slow, if they are held up by it, and nothing if not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain

import pytest

from benchmarks.testbed.hosts import Host, Testbed
from benchmarks.testbed.namespaces import entered
from mlfabric.channels import Connection, Direction, TcpChannel, TcpOptions, TransferRecord
from mlfabric.channels.progress import Filling
from mlfabric.monitor.estimate import Link, LinkEstimator, Transfer
from mlfabric.security import Security
from mlfabric.transfer.relay import Relay
from mlfabric.twin.settings import Direction as Way
from tests.channels.conftest import payload

FULL_BPS = 40_000_000
SLOW_BPS = 4_000_000
SIZE_BYTES = 1_500_000
JUDGED_S = 10.0
AGED = 0.5
"""How far off an estimate may be: it has aged while the last transfers ended, towards ten times as much."""
SEVERAL = pytest.mark.parametrize("slow", [("h2", Way.DOWN), ("h1", Way.UP)], ids=["a taker's", "the relay's own"])


@asynccontextmanager
async def line(sender: Host, receiver: Host) -> AsyncIterator[tuple[Connection, Connection]]:
    """A connection between two hosts; its sockets stay where they were made."""
    accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    async def keep(connection: Connection) -> None:
        accepted.set_result(connection)
        await connection.wait_closed()

    open_to_all = Security(insecure=True)
    server, client = (TcpChannel(TcpOptions(bind=host.address, security=open_to_all)) for host in (receiver, sender))
    try:
        with entered(receiver.namespace):
            address = await server.listen(keep)
        with entered(sender.namespace):
            near = await client.connect(address)
        yield near, await accepted
    finally:
        await client.close()
        await server.close()


def seen(record: TransferRecord, sender: str, receiver: str) -> Transfer:
    return Transfer(
        from_host=sender,
        to_host=receiver,
        bytes=record.bytes,
        started_s=record.started_ns / 1e9,
        ended_s=record.ended_ns / 1e9,
        paced=record.paced,
        busy_bytes=record.busy_bytes,
        busy_s=record.busy_ns / 1e9,
    )


async def passed_on(bed: Testbed) -> list[Transfer]:
    """Send a model from h0 to h1, which passes it on to h2 and h3 while it comes; return all that members report."""
    h0, h1, h2, h3 = bed.hosts
    relay = Relay(memoryview(bytearray(SIZE_BYTES)))

    async def give(ends: tuple[Connection, Connection], taker: Host) -> list[Transfer]:
        async def take() -> TransferRecord:
            frame = await ends[1].receive()
            return await ends[1].receive_into(memoryview(bytearray(SIZE_BYTES)), frame.length)

        filling: Filling = relay
        records = await asyncio.gather(ends[0].send_stream(payload(SIZE_BYTES), filling), take())
        told = (record for record in records if record.direction is Direction.IN or record.busy_bytes)
        return [seen(record, h1.name, taker.name) for record in told]

    async def fill(ends: tuple[Connection, Connection]) -> list[Transfer]:
        async def take() -> TransferRecord:
            return await relay.receive(ends[1], (await ends[1].receive()).length)

        whole = [memoryview(bytearray(SIZE_BYTES))]
        _, record = await asyncio.gather(ends[0].send(payload(SIZE_BYTES), whole), take())
        return [seen(record, h0.name, h1.name)]

    async with line(h0, h1) as first, line(h1, h2) as second, line(h1, h3) as third:
        found = await asyncio.gather(fill(first), give(second, h2), give(third, h3))
    return list(chain.from_iterable(found))


def judged(bed: Testbed, transfers: list[Transfer]) -> dict[Link, float]:
    """Return what a monitor makes of it that knows what the links carry at best."""
    estimator = LinkEstimator()
    for host in bed.hosts:
        estimator.set_nominal(host.name, FULL_BPS, FULL_BPS)
    ended_s = max(transfer.ended_s for transfer in transfers)
    for transfer in sorted(transfers, key=lambda t: t.ended_s):
        estimator.observe([transfer], transfer.ended_s)
    estimator.observe([], ended_s + JUDGED_S)
    found = {link: estimator.estimate(link, ended_s) for link in estimator.links}
    return {link: estimate.bps for link, estimate in found.items() if estimate is not None}


@pytest.mark.root
@SEVERAL
async def test_a_slow_link_behind_a_relay_is_found_and_no_other_taken_for_slow(
    four_hosts: Testbed, slow: tuple[str, Way]
) -> None:
    four_hosts.set_rates({slow: SLOW_BPS})
    rates = judged(four_hosts, await passed_on(four_hosts))
    culprit = Link(slow[0], slow[1] is Way.UP)
    assert rates[culprit] == pytest.approx(SLOW_BPS, rel=AGED)
    behind = {Link("h1", True), Link("h2", False), Link("h3", False)} - {culprit}
    assert min(rates[link] for link in behind) > FULL_BPS / 2


@pytest.mark.root
async def test_a_relay_that_waits_for_what_it_passes_on_takes_no_link_behind_it_for_slow(four_hosts: Testbed) -> None:
    four_hosts.set_rates({("h0", Way.UP): SLOW_BPS})
    rates = judged(four_hosts, await passed_on(four_hosts))
    assert min(rates[Link("h0", True)], rates[Link("h1", False)]) == pytest.approx(SLOW_BPS, rel=AGED)
    assert min(rates[link] for link in (Link("h1", True), Link("h2", False), Link("h3", False))) > FULL_BPS / 3
