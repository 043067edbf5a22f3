"""Transfer records reach the monitor, and never hold up whoever has none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import grpc
import pytest

from mlfabric.channels import Direction, TransferRecord
from mlfabric.shell import reporting as reporting_module
from mlfabric.shell.reporting import KEEP_RECORDS, TransferReporter
from mlfabric.v1 import monitor_pb2, monitor_pb2_grpc

WITHIN_S = 20.0
TOKEN = b"token"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Monitor(monitor_pb2_grpc.MonitorServiceServicer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[monitor_pb2.RecordTransfersRequest] = asyncio.Queue()

    async def RecordTransfers(
        self, request: monitor_pb2.RecordTransfersRequest, context: Context
    ) -> monitor_pb2.RecordTransfersResponse:
        self.requests.put_nowait(request)
        return monitor_pb2.RecordTransfersResponse()


@asynccontextmanager
async def listening(monitor: Monitor) -> AsyncIterator[str]:
    server = grpc.aio.server()
    monitor_pb2_grpc.add_MonitorServiceServicer_to_server(monitor, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@asynccontextmanager
async def reporting(reporter: TransferReporter) -> AsyncIterator[TransferReporter]:
    running = asyncio.create_task(reporter.run())
    yield reporter
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await reporter.close()


def moved(direction: Direction = Direction.IN, *, paced: bool = False) -> TransferRecord:
    return TransferRecord(
        direction=direction,
        bytes=1000,
        paced=paced,
        started_ns=1_000_000_000,
        ended_ns=3_000_000_000,
    )


async def settled(reporter: TransferReporter, count: int) -> None:
    """Wait until that many records were sent or dropped."""
    async with asyncio.timeout(WITHIN_S):
        while reporter.sent + reporter.dropped < count:
            await asyncio.sleep(0.001)


async def test_records_arrive_together_and_say_who_measured_what() -> None:
    monitor = Monitor()
    async with listening(monitor) as address, reporting(TransferReporter("w0", "node-0", 10, 20)) as reporter:
        reporter.set_monitor(address, TOKEN)
        reporter.record(moved(paced=True), "node-1", "node-0")
        reporter.record(moved(Direction.OUT), "node-0", "node-1")
        async with asyncio.timeout(WITHIN_S):
            request = await monitor.requests.get()
        await settled(reporter, 2)
    assert (request.member, request.host, request.up_bps, request.down_bps) == ("w0", "node-0", 10, 20)
    first, second = request.records
    assert (first.from_host, first.to_host, first.bytes, first.seconds) == ("node-1", "node-0", 1000, 2.0)
    assert (first.paced, second.paced) == (True, False)
    assert first.ended_ago_s == pytest.approx(second.ended_ago_s)
    assert first.ended_ago_s > 0
    assert (reporter.sent, reporter.dropped) == (2, 0)


async def test_a_record_of_what_was_sent_names_its_receiver_and_what_the_links_carried() -> None:
    monitor = Monitor()
    sent = replace(moved(Direction.OUT, paced=True), busy_bytes=800, busy_ns=500_000_000)
    async with listening(monitor) as address, reporting(TransferReporter("w0", "node-0")) as reporter:
        reporter.set_monitor(address, TOKEN)
        reporter.record(sent, "node-0", to_peer="w1")
        async with asyncio.timeout(WITHIN_S):
            request = await monitor.requests.get()
        await settled(reporter, 1)
    (record,) = request.records
    assert (record.from_host, record.to_host, record.to_peer) == ("node-0", "", "w1")
    assert (record.busy_bytes, record.busy_seconds) == (800, 0.5)


async def test_the_first_record_does_not_wait_for_more_but_what_follows_closely_is_gathered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monitor = Monitor()
    go_on = asyncio.Event()

    async def until_told(_: float) -> None:
        await go_on.wait()

    async with listening(monitor) as address:
        reporter = TransferReporter("w0", "node-0")
        reporter.set_monitor(address, TOKEN)
        with monkeypatch.context() as patched:
            patched.setattr(reporting_module, "_pause", until_told)
            async with reporting(reporter), asyncio.timeout(WITHIN_S):
                reporter.record(moved(), "node-1", "node-0")
                assert len((await monitor.requests.get()).records) == 1
                for _ in range(3):
                    reporter.record(moved(), "node-1", "node-0")
                go_on.set()
                assert len((await monitor.requests.get()).records) == 3


async def test_without_a_monitor_records_are_dropped_and_counted() -> None:
    async with reporting(TransferReporter("w0")) as reporter:
        reporter.record(moved(), "node-1", "node-0")
    assert (reporter.sent, reporter.dropped) == (0, 1)


async def test_a_monitor_that_is_away_costs_records_only_and_its_successor_gets_the_next(free_port: int) -> None:
    monitor = Monitor()
    async with listening(monitor) as address, reporting(TransferReporter("w0")) as reporter:
        reporter.set_monitor(f"127.0.0.1:{free_port}", TOKEN)
        reporter.record(moved(), "node-1", "node-0")
        await settled(reporter, 1)
        assert reporter.dropped == 1
        reporter.set_monitor(address, TOKEN)
        reporter.record(moved(), "node-1", "node-0")
        await settled(reporter, 2)
    assert (reporter.sent, reporter.dropped) == (1, 1)


async def test_a_monitor_that_goes_while_records_wait_costs_them() -> None:
    async with reporting(TransferReporter("w0")) as reporter:
        reporter.set_monitor("127.0.0.1:1", TOKEN)
        reporter.record(moved(), "node-1", "node-0")
        reporter.set_monitor("", b"")
        await settled(reporter, 1)
    assert (reporter.sent, reporter.dropped) == (0, 1)


async def test_records_do_not_pile_up() -> None:
    reporter = TransferReporter("w0")
    reporter.set_monitor("127.0.0.1:1", TOKEN)
    for _ in range(KEEP_RECORDS + 5):
        reporter.record(moved(), "node-1", "node-0")
    assert reporter.dropped == 5
    await reporter.close()
    assert reporter.dropped == KEEP_RECORDS + 5
