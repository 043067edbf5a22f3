"""``mlfabric up --with-prometheus``: a real Prometheus that scrapes every service and has the alerts."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Command, Start, wait_until

pytestmark = pytest.mark.processes


def asked(prometheus: str, path: str) -> Any:
    try:
        with urllib.request.urlopen(f"{prometheus}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:  # it begins
        return {}


def up_jobs(prometheus: str) -> list[str]:
    targets = asked(prometheus, "targets").get("activeTargets", [])
    return sorted(target["labels"]["job"] for target in targets if target["health"] == "up")


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="on Debian: apt install prometheus")
def test_every_service_is_scraped_and_the_alerts_are_there(
    start: Start, free_port: int, tmp_path: Path, has_tls: bool
) -> None:
    tls = ("--tls", "certificates") if has_tls else ()
    if has_tls:
        start("certs", "certificates").finish()
    ports = ("--port", str(free_port), "--metrics-port", str(free_port + 1), "--aggregators", "1")
    fabric = start("up", "--with-prometheus", "--history", "kept", "--log-level", "error", *ports, *tls)
    prometheus = fabric.read_until("prometheus  http").split()[-1]
    services = ["mlfabric-aggregator", "mlfabric-monitor", "mlfabric-scheduler", "mlfabric-server"]
    wait_until(lambda: up_jobs(prometheus) == services, f"all are up at {prometheus}")
    alerts = [rule["name"] for group in asked(prometheus, "rules")["groups"] for rule in group["rules"]]
    assert "MlfabricSchedulerAway" in alerts
    _ends_with_all(fabric)
    assert list((tmp_path / "kept" / "prometheus" / "data").iterdir())


def _ends_with_all(fabric: Command) -> None:
    fabric.signal(signal.SIGINT)
    fabric.finish()
    fabric.wait_until_nothing_is_left()


def test_without_one_it_says_how_to_get_it(start: Start, free_port: int) -> None:
    ports = ("--port", str(free_port), "--metrics-port", str(free_port + 1))
    code, out = start("up", "--with-prometheus", *ports, PATH="/nowhere").finish()
    assert code == 2
    assert "there is no program 'prometheus' here; install it" in " ".join(out.split())


def test_it_must_know_where_the_metrics_are(start: Start) -> None:
    code, out = start("up", "--with-prometheus", "--metrics-port", "0").finish()
    assert code == 2
    assert "metrics_port=0; allowed: a port, as 9400" in " ".join(out.split())
