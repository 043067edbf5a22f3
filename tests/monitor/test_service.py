"""The monitor joins a scheduler over real gRPC, takes records and reports what it makes of them."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from mlfabric.channels import Direction, TransferRecord
from mlfabric.errors import ConfigError, RefusedError, UsageError
from mlfabric.monitor.service import MonitorConfig, MonitorService
from mlfabric.security.tokens import token_at
from mlfabric.shell.reporting import TransferReporter
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc, monitor_pb2, monitor_pb2_grpc, session_pb2

GBPS = 10**9
MB = 10**6
TOKEN = b"token"
WITHIN_S = 20.0
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Scheduler(fabric_pb2_grpc.FabricServiceServicer):
    """As much of a scheduler as a monitor meets; ``refusal`` refuses registrations."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.members: asyncio.Queue[fabric_pb2.RegisterAsMonitorRequest] = asyncio.Queue()
        self.sessions: asyncio.Queue[fabric_pb2.SessionRequest] = asyncio.Queue()
        self.farewells: asyncio.Queue[session_pb2.MemberLeft] = asyncio.Queue()
        self.reports: asyncio.Queue[session_pb2.LinksReported] = asyncio.Queue()

    async def RegisterAsMonitor(
        self, request: fabric_pb2.RegisterAsMonitorRequest, context: Context
    ) -> fabric_pb2.RegisterAsMonitorResponse:
        if self.refusal:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, self.refusal)
        self.members.put_nowait(request)
        return fabric_pb2.RegisterAsMonitorResponse(admission=fabric_pb2.Admission(term=1, session_token=TOKEN))

    async def Session(
        self, request_iterator: AsyncIterator[fabric_pb2.SessionRequest], context: Context
    ) -> AsyncIterator[fabric_pb2.SessionResponse]:
        self.sessions.put_nowait(await anext(request_iterator))
        async for request in request_iterator:
            for event in request.events:
                if event.HasField("links_reported"):
                    self.reports.put_nowait(event.links_reported)
                    continue
                self.farewells.put_nowait(event.member_left)
                return
        yield fabric_pb2.SessionResponse()

    async def rate(self, host: str, up: bool, below_bps: float = float("inf")) -> int:
        """Return the next reported rate of a link that is below a bound."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                for rate in (await self.reports.get()).rates:
                    if (rate.host, rate.up) == (host, up) and rate.bps < below_bps:
                        return rate.bps


def a_scheduler(refusal: str = "") -> Scheduler:
    return Scheduler(refusal)  # type: ignore[abstract]


@asynccontextmanager
async def listening(scheduler: Scheduler, port: int) -> AsyncIterator[str]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    fabric_pb2_grpc.add_FabricServiceServicer_to_server(scheduler, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@asynccontextmanager
async def monitoring(config: MonitorConfig) -> AsyncIterator[MonitorService]:
    """Run a monitor that takes reports with tokens of ``TOKEN``, also where no scheduler has admitted it."""
    service = MonitorService(config)
    await service.start()
    assert service._session is not None
    service._session.token = TOKEN
    try:
        yield service
    finally:
        await service.close()


def config_for(address: str) -> MonitorConfig:
    return MonitorConfig(scheduler=address, report_interval_s=0.02)


def push(worker: str, seconds: float, ended_ago_s: float) -> monitor_pb2.TransferRecord:
    return monitor_pb2.TransferRecord(
        from_host=worker, to_host="server", bytes=10 * MB, seconds=seconds, ended_ago_s=ended_ago_s
    )


async def hand_in(address: str, *requests: monitor_pb2.RecordTransfersRequest) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = monitor_pb2_grpc.MonitorServiceStub(channel)
        for request in requests:
            request.token = token_at(TOKEN, request.member)
            await stub.RecordTransfers(request)


def four_pushes() -> monitor_pb2.RecordTransfersRequest:
    """Return pushes at 1 Gbit/s but for w3's, at a tenth."""
    records = [push(f"w{i}", 0.8 if i == 3 else 0.08, 10.0 - 2.0 * i) for i in range(4)]
    return monitor_pb2.RecordTransfersRequest(
        member="server-0", host="server", up_bps=GBPS, down_bps=GBPS, records=records
    )


async def test_it_registers_with_its_address_and_shows_its_token_on_the_session(free_port: int) -> None:
    scheduler = a_scheduler()
    async with listening(scheduler, free_port) as address, monitoring(config_for(address)) as monitor:
        async with asyncio.timeout(WITHIN_S):
            member = (await scheduler.members.get()).member
            hello = await scheduler.sessions.get()
        assert (member.name, member.host, member.address) == ("monitor-0", "localhost", monitor.address)
        assert (hello.member, hello.incarnation, hello.session_token) == ("monitor-0", member.incarnation, TOKEN)


async def test_it_waits_for_a_scheduler_that_is_not_there_yet_and_says_so(
    free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = a_scheduler()
    with caplog.at_level(logging.INFO):
        async with monitoring(config_for(f"127.0.0.1:{free_port}")):
            async with asyncio.timeout(WITHIN_S):
                while "waits for" not in caplog.text:
                    await asyncio.sleep(0)
            assert f"monitor-0 waits for the scheduler at 127.0.0.1:{free_port}" in caplog.text
            async with listening(scheduler, free_port), asyncio.timeout(WITHIN_S):
                await scheduler.sessions.get()


async def test_after_a_scheduler_s_restart_it_registers_again_and_reports_everything(free_port: int) -> None:
    first, second = a_scheduler(), a_scheduler()
    async with monitoring(config_for(f"127.0.0.1:{free_port}")) as monitor:
        async with listening(first, free_port):
            await hand_in(monitor.address, four_pushes())
            await first.rate("w3", True)
        async with listening(second, free_port):
            assert await second.rate("w3", True) < 0.9 * GBPS
            assert second.members.qsize() == 1


async def test_it_says_good_bye(free_port: int) -> None:
    scheduler = a_scheduler()
    async with listening(scheduler, free_port) as address:
        async with monitoring(config_for(address)) as monitor:
            await hand_in(monitor.address, four_pushes())
            await scheduler.rate("w3", True)
        assert await scheduler.farewells.get() == session_pb2.MemberLeft(detail="stopped")


async def test_a_refusal_for_good_ends_it_with_the_reason(free_port: int) -> None:
    scheduler = a_scheduler(refusal="another live member has this name")
    async with listening(scheduler, free_port) as address, monitoring(config_for(address)) as monitor:
        with pytest.raises(RefusedError, match="another live member has this name"):
            async with asyncio.timeout(WITHIN_S):
                await monitor.run_until(asyncio.Event())


async def test_it_stops_when_told_and_leaves_no_task(free_port: int) -> None:
    stop = asyncio.Event()
    async with monitoring(config_for(f"127.0.0.1:{free_port}")) as monitor:
        asyncio.get_running_loop().call_soon(stop.set)
        await monitor.run_until(stop)
        port = int(monitor.address.rpartition(":")[2])
    assert {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize(
    ("record", "story"),
    [
        (monitor_pb2.TransferRecord(to_host="b"), "TransferRecord.from_host=''"),
        (monitor_pb2.TransferRecord(from_host="a"), "TransferRecord.to_host=''"),
        (monitor_pb2.TransferRecord(from_host="a", to_host="b", seconds=-1), "TransferRecord.seconds=-1.0"),
        (monitor_pb2.TransferRecord(from_host="a", to_host="b", ended_ago_s=float("nan")), "ended_ago_s=nan"),
        (monitor_pb2.TransferRecord(from_host="a", to_host="b", busy_seconds=-1), "TransferRecord.busy_seconds=-1.0"),
        (monitor_pb2.TransferRecord(from_host="a", to_host="b", bytes=1, busy_bytes=2), "busy_bytes=2; .*bytes=1"),
    ],
)
async def test_a_malformed_record_is_refused_by_field(
    free_port: int, record: monitor_pb2.TransferRecord, story: str
) -> None:
    async with monitoring(config_for(f"127.0.0.1:{free_port}")) as monitor:
        with pytest.raises(grpc.aio.AioRpcError, match=story) as refusal:
            await hand_in(monitor.address, monitor_pb2.RecordTransfersRequest(records=[record]))
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("token", [b"", TOKEN, token_at(TOKEN, "w1")])
async def test_a_report_without_its_member_s_own_token_is_refused(free_port: int, token: bytes) -> None:
    async with monitoring(config_for(f"127.0.0.1:{free_port}")) as monitor:
        async with grpc.aio.insecure_channel(monitor.address) as channel:
            forged = monitor_pb2.RecordTransfersRequest(member="w0", host="w0", token=token)
            with pytest.raises(grpc.aio.AioRpcError, match="a report of 'w0' without the token") as refusal:
                await monitor_pb2_grpc.MonitorServiceStub(channel).RecordTransfers(forged)
        assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_report_that_cannot_be_taken_in_ends_it_and_the_scheduler_is_told(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = a_scheduler()
    async with listening(scheduler, free_port) as address, monitoring(config_for(address)) as monitor:
        await scheduler.sessions.get()

        def broken(*_: object) -> None:
            raise MemoryError("no room for an estimate")

        monkeypatch.setattr(monitor.estimator, "observe", broken)
        await hand_in(monitor.address, four_pushes())
        with pytest.raises(MemoryError, match="no room for an estimate"):
            async with asyncio.timeout(WITHIN_S):
                await monitor.run_until(asyncio.Event())
        left = await scheduler.farewells.get()
    assert (left.detail, left.failed) == ("MemoryError: no room for an estimate", True)


async def test_health_and_reflection_answer(free_port: int) -> None:
    config = config_for(f"127.0.0.1:{free_port}")
    async with monitoring(config) as monitor, grpc.aio.insecure_channel(monitor.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        check = await health.Check(health_pb2.HealthCheckRequest())
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        answers = reflection.ServerReflectionInfo(iter([asked]))
        found = [service.name async for answer in answers for service in answer.list_services_response.service]
    assert check.status == health_pb2.HealthCheckResponse.SERVING
    assert "mlfabric.v1.MonitorService" in found


async def test_its_page_shows_records_estimates_and_the_interface(free_port: int) -> None:
    config = MonitorConfig(scheduler=f"127.0.0.1:{free_port}", report_interval_s=0.02, metrics_port=0, interface="lo")

    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor.metrics_port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    async with monitoring(config) as monitor, asyncio.timeout(WITHIN_S):
        await hand_in(monitor.address, four_pushes())
        while 'host="w3"' not in (page := await asyncio.to_thread(read)):
            pass
    assert "mlfabric_transfer_records_total 4.0" in page
    assert 'mlfabric_link_estimate_bytes_per_second{direction="up",host="w3",source="transfers"}' in page
    assert 'mlfabric_nic_bytes_total{direction="up",interface="lo"}' in page


async def test_a_port_in_use_is_refused(free_port: int) -> None:
    monitor = MonitorService(MonitorConfig(scheduler="127.0.0.1:1", port=free_port))
    refusal = pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{free_port}")
    with socket.create_server(("127.0.0.1", free_port)), refusal:
        await monitor.start()


@pytest.mark.parametrize(
    ("settings", "story"),
    [
        ({"bind": "0.0.0.0"}, r"bind='0\.0\.0\.0' wants advertised"),
        ({"report_interval_s": 0.0}, "report_interval_s"),
        ({"port": 70000}, "port=70000"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], story: str) -> None:
    with pytest.raises(ConfigError, match=story):
        MonitorConfig(scheduler="127.0.0.1:1", **settings)  # type: ignore[arg-type]


def received(seconds: float) -> TransferRecord:
    now_ns = time.monotonic_ns()
    return TransferRecord(
        direction=Direction.IN,
        bytes=10 * MB,
        paced=False,
        started_ns=now_ns - round(seconds * 1e9),
        ended_ns=now_ns,
    )


async def test_a_member_s_reporter_and_the_monitor_understand_one_another(free_port: int) -> None:
    scheduler = a_scheduler()
    async with listening(scheduler, free_port) as address, monitoring(config_for(address)) as monitor:
        reporter = TransferReporter("server-0", "server", GBPS, GBPS)
        running = asyncio.create_task(reporter.run())
        reporter.set_monitor(monitor.address, token_at(TOKEN, "server-0"))
        reporter.record(received(0.8), "w3", "server")
        assert await scheduler.rate("w3", True) == pytest.approx(0.1 * GBPS, rel=0.05)
        running.cancel()
        await reporter.close()
    assert (reporter.sent, reporter.dropped) == (1, 0)


def relayed(to_peer: str) -> monitor_pb2.TransferRecord:
    """Return what w0 sent on, held up by the links for the last 0.8 of 1 s: 1 Gbit/s in that time."""
    return monitor_pb2.TransferRecord(
        from_host="w0",
        to_peer=to_peer,
        bytes=12 * MB,
        seconds=1.0,
        paced=True,
        busy_bytes=10 * MB,
        busy_seconds=0.8,
        ended_ago_s=2.0,
    )


@pytest.mark.parametrize("to_peer", ["daemon-1", "w1"])
async def test_a_sender_that_knows_only_whom_it_sent_to_is_understood(free_port: int, to_peer: str) -> None:
    scheduler = a_scheduler()
    async with listening(scheduler, free_port) as address, monitoring(config_for(address)) as monitor:
        known = monitor_pb2.RecordTransfersRequest(member="daemon-1", host="w1", up_bps=GBPS, down_bps=GBPS)
        sent = monitor_pb2.RecordTransfersRequest(member="daemon-0", host="w0", records=[relayed(to_peer)])
        await hand_in(monitor.address, known, sent)
        assert await scheduler.rate("w0", True) == pytest.approx(0.1 * GBPS, rel=0.05)


async def test_what_went_to_somebody_unknown_is_left_out(free_port: int) -> None:
    scheduler = a_scheduler()
    async with listening(scheduler, free_port) as address, monitoring(config_for(address)) as monitor:
        mixed = monitor_pb2.RecordTransfersRequest(
            member="w0", host="w0", records=[relayed("nobody"), *four_pushes().records]
        )
        await hand_in(monitor.address, mixed)
        async with asyncio.timeout(WITHIN_S):
            hosts = {rate.host for rate in (await scheduler.reports.get()).rates}
        assert "w3" in hosts
        assert "nobody" not in hosts
