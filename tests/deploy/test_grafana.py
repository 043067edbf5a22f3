"""The dashboards: as their generator makes them, in Grafana's form, and with lines in every panel."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Start

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/grafana"
SCHEMA = ROOT / ".cache/grafana-schema"
PATIENCE_S = 100.0
TRAINS = """
    import sys
    import time

    import torch

    import mlfabric

    method = sys.argv[1]
    model = torch.nn.Linear(512, 512)
    options = {"tau_max": 0} if method == "asynchronous" else {}
    optimizer = mlfabric.wrap(
        torch.optim.SGD(model.parameters(), lr=0.001), model, method=method, model_name=method, **options
    )
    while True:
        time.sleep(0.02)
        optimizer.zero_grad()
        model(torch.randn(4, 512)).square().mean().backward()
        optimizer.step()
"""


def _panels(path: Path) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = json.loads(path.read_text())["panels"]
    return panels


def test_the_files_are_what_the_generator_makes() -> None:
    generator = pytest.importorskip("deploy.grafana.generate", reason="grafana-foundation-sdk is not installed")
    made = dict(generator.generated())
    assert {path: path.read_text() for path in FOLDER.glob("*.json")} == made


def test_they_have_the_form_of_grafanas_own_schema(tmp_path: Path) -> None:
    compiler = SCHEMA / "node_modules/.bin/tsc"
    if not compiler.exists():
        pytest.skip("Grafana's schema is not here; scripts/fetch_grafana_schema fetches it with npm")
    for path in FOLDER.glob("*.json"):
        (tmp_path / f"{path.stem}.ts").write_text(_checked(path.read_text().strip()))
    wrong = (FOLDER / "overview.json").read_text().replace('"w": 12', '"w": "wide"', 1)
    (tmp_path / "wrong.ts").write_text(_checked(wrong.strip()))
    (tmp_path / "node_modules").symlink_to(SCHEMA / "node_modules")
    options = ["--noEmit", "--strict", "--skipLibCheck", "--moduleResolution", "bundler", "--module", "esnext"]
    files = sorted(str(path) for path in tmp_path.glob("*.ts"))
    done = subprocess.run(
        [compiler, *options, *files], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    faults = [line for line in done.stdout.splitlines() if ": error" in line]
    assert faults, "a wrong dashboard is found"
    assert all(line.startswith("wrong.ts") for line in faults), done.stdout


def _checked(text: str) -> str:
    """Return TypeScript that compiles if this JSON is a dashboard."""
    return f"import type {{ Dashboard }} from '@grafana/schema';\nexport default {text} satisfies Dashboard;"


@contextmanager
def _prometheus(folder: Path, ports: list[int], port: int) -> Iterator[str]:
    """Run a real Prometheus that scrapes these ports; gives its address."""
    if (program := shutil.which("prometheus")) is None:
        pytest.skip("prometheus is missing; on Debian it is in the package prometheus")
    targets = [f"127.0.0.1:{each}" for each in ports]
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "mlfabric", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    command = [
        program,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _has_series(prometheus: str, ask: str) -> bool:
    query = urllib.parse.urlencode({"query": ask.replace("$model", ".*")})
    try:
        with urllib.request.urlopen(f"{prometheus}/api/v1/query?{query}", timeout=10) as answer:
            return bool(json.load(answer)["data"]["result"])
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{ask}: {error.read().decode()}") from error
    except urllib.error.URLError:
        return False  # it begins


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_every_query_of_every_panel_finds_something_in_a_running_fabric(
    start: Start, free_port: int, tmp_path: Path
) -> None:
    first = free_port + 1
    options = ("--aggregators", "1", "--replica-div-max-updates", "50", "--replica-div-max", "1000")
    ports = ("--port", str(free_port), "--metrics-port", str(first))
    fabric = start("up", *ports, "--log-level", "error", *options)
    fabric.read_until("train with")
    told = {"MLFABRIC_SCHEDULER": f"127.0.0.1:{free_port}"}
    for method in ("asynchronous", "elastic"):
        for rank in range(2):
            name = f"{method}-{rank}"  # each on a host of its own, so that there are links
            start("SCRIPT", method, script=TRAINS, MLFABRIC_NAME=name, MLFABRIC_HOST=f"host-{name}", **told)
    asks = {
        target["expr"]: f"{path.stem}: {panel['title']}"
        for path in sorted(FOLDER.glob("*.json"))
        for panel in _panels(path)
        for target in panel["targets"]
    }
    assert len(asks) > 20
    with _prometheus(tmp_path, [first + place for place in range(6)], first + 20) as prometheus:
        until, empty = time.monotonic() + PATIENCE_S, dict(asks)
        while empty and time.monotonic() < until:
            time.sleep(1)
            empty = {ask: where for ask, where in empty.items() if not _has_series(prometheus, ask)}
    assert not empty
