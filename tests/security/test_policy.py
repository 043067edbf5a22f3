"""Nothing leaves the machine without TLS, unless somebody says so: every place that listens or dials."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

import mlfabric
from mlfabric.channels import TcpChannel, TcpOptions
from mlfabric.cli.app import app
from mlfabric.config import WorkerSettings
from mlfabric.errors import ConfigError, UnavailableError
from mlfabric.launch.fabric_services import FabricOptions, services
from mlfabric.launch.scheduler_status import StatusReader
from mlfabric.launch.workers import JobOptions, worker_environment
from mlfabric.monitor.service import MonitorConfig, MonitorService
from mlfabric.scheduler.runner import SchedulerOptions, SchedulerRunner
from mlfabric.security import LOOPBACK, Security, is_loopback
from mlfabric.shell.reporting import TransferReporter
from mlfabric.telemetry import MetricsPage
from tests.fabric.harness import small_model

ELSEWHERE = "192.0.2.1"
BOTH_WAYS_OUT = r"no TLS; give --tls DIR .*or --insecure"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_addresses_are_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", ELSEWHERE, "fe80::1%lo", "no-such-host.invalid"])
def test_all_others_are_not_and_a_name_that_nobody_knows_neither(host: str) -> None:
    assert not is_loopback(host)


async def a_scheduler() -> None:
    options = SchedulerOptions(bind=ELSEWHERE, port=0)
    await SchedulerRunner(options).run(asyncio.Event(), lambda _: None)


async def a_monitor() -> None:
    await MonitorService(MonitorConfig(scheduler="127.0.0.1:1", bind=ELSEWHERE)).start()


async def a_data_channel() -> None:
    await TcpChannel(TcpOptions(bind=ELSEWHERE)).listen(lambda connection: connection.wait_closed())


async def a_metrics_page() -> None:
    MetricsPage(CollectorRegistry(), ELSEWHERE).start()


async def a_server_s_session() -> None:
    options = mlfabric.ServerOptions(scheduler=f"{ELSEWHERE}:1")
    await asyncio.to_thread(mlfabric.register_as_server, options)


async def a_worker_s_session() -> None:
    await asyncio.to_thread(mlfabric.register_as_worker, small_model(), scheduler=f"{ELSEWHERE}:1")


async def a_question() -> None:
    async with StatusReader(f"{ELSEWHERE}:1"):
        pass


PLACES = [
    a_scheduler,
    a_monitor,
    a_data_channel,
    a_metrics_page,
    a_server_s_session,
    a_worker_s_session,
    a_question,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
async def test_another_machine_s_address_is_refused_with_both_ways_out(place: Any) -> None:
    with pytest.raises(ConfigError, match=BOTH_WAYS_OUT):
        await place()


async def test_a_data_connection_to_another_machine_is_refused_with_both_ways_out() -> None:
    with pytest.raises(UnavailableError, match=BOTH_WAYS_OUT):
        await TcpChannel().connect(f"{ELSEWHERE}:1")


async def test_a_monitor_elsewhere_is_not_reported_to() -> None:
    reporter = TransferReporter("w0")
    reporter.set_monitor(f"{ELSEWHERE}:1", b"token")
    with pytest.raises(ConfigError, match=BOTH_WAYS_OUT):
        await reporter._stub()
    await reporter.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ("scheduler", "--bind", "0.0.0.0", "--advertise", "head", "--port", "0"),
        ("server", "--bind", "0.0.0.0", "--advertise", "big", "--scheduler", "127.0.0.1:1"),
        ("aggregator", "--scheduler", f"{ELSEWHERE}:1"),
        ("monitor", "--bind", "0.0.0.0", "--advertise", "big"),
        ("up", "--bind", "0.0.0.0", "--advertise", "head", "--port", "0"),
        ("run", "--scheduler", f"{ELSEWHERE}:1", "train.py"),
        ("status", "--scheduler", f"{ELSEWHERE}:1"),
        ("doctor", "--scheduler", f"{ELSEWHERE}:1"),
        ("record", "trace.jsonl", "--scheduler", f"{ELSEWHERE}:1"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_command_says_both_ways_out(arguments: tuple[str, ...]) -> None:
    error = CliRunner().invoke(app, arguments).exception
    with pytest.raises(ConfigError, match=BOTH_WAYS_OUT):
        raise error if error is not None else AssertionError("it was let through")


@pytest.mark.parametrize("host", ["0.0.0.0", ELSEWHERE])
def test_who_says_insecure_or_has_a_certificate_may(certificates: Path, host: str) -> None:
    Security(insecure=True).check(host, "--bind")
    Security.of(certificates, "server").check(host, "--bind")
    with pytest.raises(ConfigError, match=BOTH_WAYS_OUT):
        LOOPBACK.check(host, "--bind")


def test_tls_and_insecure_exclude_each_other(certificates: Path) -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        Security.of(certificates, "server", insecure=True)


def test_a_worker_reads_them_from_its_environment(certificates: Path) -> None:
    security = WorkerSettings.from_environment({"MLFABRIC_TLS": str(certificates)}).tcp.security
    assert security.certificate is not None
    assert security.certificate.identity.role == "worker"
    assert WorkerSettings.from_environment({"MLFABRIC_INSECURE": "1"}).tcp.security == Security(insecure=True)
    assert WorkerSettings.from_environment({"MLFABRIC_INSECURE": "0"}).tcp.security == LOOPBACK
    with pytest.raises(ConfigError, match="MLFABRIC_INSECURE='perhaps'; allowed: 1 for yes"):
        WorkerSettings.from_environment({"MLFABRIC_INSECURE": "perhaps"})


def test_a_fabric_and_a_job_pass_them_on(certificates: Path) -> None:
    plain = FabricOptions(replica_div_max_updates="8", aggregators=1)
    for wanted, options in (
        (f"--tls {certificates}", replace(plain, tls=certificates)),
        ("--insecure", replace(plain, insecure=True)),
    ):
        for service in services(options, 1):
            assert wanted in " ".join(service.arguments)
    job = JobOptions(command=("x.py",), workers=1, scheduler="127.0.0.1:1", tls=certificates)
    assert worker_environment(job, 0, 1, {})["MLFABRIC_TLS"] == str(certificates)
