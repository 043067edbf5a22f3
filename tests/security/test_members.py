"""Under TLS: what members hand to the monitor, their pages, and AllReduce, where workers dial each other."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import grpc
import pytest
import torch
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

import mlfabric
from mlfabric.channels import Direction, TransferRecord
from mlfabric.model.specs import Method
from mlfabric.monitor.service import MonitorConfig, MonitorService
from mlfabric.security import Identity, Security
from mlfabric.security.authority import certify
from mlfabric.security.secure_grpc import open_channel
from mlfabric.security.tokens import token_at
from mlfabric.shell.reporting import TransferReporter
from mlfabric.telemetry import MetricsPage
from mlfabric.v1 import monitor_pb2, monitor_pb2_grpc
from tests.fabric.harness import Fabric
from tests.fabric.several import together
from tests.security.conftest import worker_settings

RECORD = TransferRecord(direction=Direction.OUT, bytes=10**6, paced=False, started_ns=0, ended_ns=10**7)


async def test_a_member_s_records_reach_the_monitor(secured: Fabric, certificates: Path) -> None:
    monitor = MonitorService(
        MonitorConfig(scheduler=secured.scheduler.address, security=Security.of(certificates, "monitor"))
    )
    await monitor.start()
    reporter = TransferReporter("server-0", "here", security=Security.of(certificates, "server"))
    async with asyncio.timeout(30):
        while monitor._session is None or not monitor._session.is_open:
            await asyncio.sleep(0.01)
    reporter.set_monitor(monitor.address, token_at(monitor._session.token, "server-0"))
    reporter.record(RECORD, "here", "there")
    running = asyncio.create_task(reporter.run())
    async with asyncio.timeout(30):
        while not reporter.sent + reporter.dropped:
            await asyncio.sleep(0.01)
    running.cancel()
    await reporter.close()
    await monitor.close()
    assert (reporter.sent, reporter.dropped) == (1, 0)


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (Identity(role="client"), "that of a client; it does not allow reports of 'server-0'"),
        (Identity(role="worker", name="w3"), "worker 'w3'; it does not allow reports of 'server-0'"),
        (Identity(role="server", name="spare"), "server 'spare'; it does not allow the name 'server-0'"),
    ],
)
async def test_nobody_reports_in_another_one_s_name(certificates: Path, identity: Identity, message: str) -> None:
    said = await said_of_reports(certificates, identity)
    assert said.startswith("PERMISSION_DENIED")
    assert message in said


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (Identity(role="server", name="heir"), ""),
        (Identity(role="server"), ""),
        (Identity(role="server", name="spare"), "server 'spare'; it does not allow the place of replica 'heir'"),
        (Identity(role="server", name="server-0"), "'server-0'; it does not allow the place of replica 'heir'"),
        (Identity(role="worker", name="heir"), "worker 'heir'; it does not allow reports of 'server-0'"),
        (Identity(role="worker"), "that of a worker; it does not allow reports of 'server-0'"),
    ],
)
async def test_in_its_server_s_name_a_replica_reports_that_has_taken_its_place(
    certificates: Path, identity: Identity, message: str
) -> None:
    said = await said_of_reports(certificates, identity, succeeds="heir")
    assert message in said
    assert said.startswith("PERMISSION_DENIED") == bool(message)


async def said_of_reports(certificates: Path, identity: Identity, succeeds: str = "") -> str:
    """Report as ``server-0`` with a certificate; return why that is refused, "" if it is not."""
    own = Security.of(certify(certificates, identity, days=1), identity.role)
    monitor = MonitorService(MonitorConfig(scheduler="127.0.0.1:1", security=Security.of(certificates, "monitor")))
    await monitor.start()
    assert monitor._session is not None
    monitor._session.token = b"token"
    report = monitor_pb2.RecordTransfersRequest(
        member="server-0", succeeds=succeeds, token=token_at(b"token", "server-0")
    )
    try:
        async with open_channel(monitor.address, "monitor", own) as channel:
            await monitor_pb2_grpc.MonitorServiceStub(channel).RecordTransfers(report)
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"
    finally:
        await monitor.close()
    return ""


def test_a_page_is_for_who_has_a_certificate_and_waits_for_nobody(certificates: Path) -> None:
    registry = CollectorRegistry()
    Counter("looks", "Looks.", registry=registry).inc()
    page = MetricsPage(registry, security=Security.of(certificates, "server"))
    port = page.start()
    url = f"https://localhost:{port}/metrics"
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    context.check_hostname = False
    try:
        with socket.create_connection(("127.0.0.1", port)), pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(url, context=context, timeout=10)
        with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as plain:
            plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            plain.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                assert b"looks" not in plain.recv(1000)
        context.load_cert_chain(certificates / "client" / "cert.pem", certificates / "client" / "key.pem")
        with urllib.request.urlopen(url, context=context, timeout=10) as answer:
            assert "looks_total 1.0" in answer.read().decode()
    finally:
        page.stop()


def test_workers_sum_their_tensors_under_tls(secured: Fabric, certificates: Path) -> None:
    sums: dict[str, torch.Tensor] = {}

    def work(name: str, value: float) -> None:
        model = {"w": torch.zeros(1, requires_grad=True)}
        settings = worker_settings(secured.scheduler.address, name, certificates)
        with mlfabric.register_as_worker(
            model, method=Method.ALL_REDUCE, workers=3, model_name="sums", settings=settings
        ) as worker:
            sums[name] = torch.full((300_000,), value)
            worker.all_reduce(sums[name])

    together(*(partial(work, f"adds-{i}", 10.0**i) for i in range(3)))
    assert [bool((total == 111.0).all()) for total in sums.values()] == [True] * 3


def test_further_pages_are_shown_to_browsers_without_a_certificate_and_metrics_are_not(certificates: Path) -> None:
    async def show(request: web.Request) -> web.Response:
        return web.Response(text="shown")

    def others(application: web.Application) -> None:
        application.router.add_get("/shown", show)

    page = MetricsPage(CollectorRegistry(), security=Security.of(certificates, "server"), others=others)
    port = page.start()
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    context.check_hostname = False
    try:
        with urllib.request.urlopen(f"https://localhost:{port}/shown", context=context, timeout=10) as answer:
            assert answer.read() == b"shown"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"https://localhost:{port}/metrics", context=context, timeout=10)
        context.load_cert_chain(certificates / "client" / "cert.pem", certificates / "client" / "key.pem")
        with urllib.request.urlopen(f"https://localhost:{port}/metrics", context=context, timeout=10) as answer:
            assert answer.status == 200
    finally:
        page.stop()
