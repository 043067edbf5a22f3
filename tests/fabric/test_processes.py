"""The same fabric as processes of its own: what is killed, what is told to end, and what Prometheus reads there."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

import mlfabric
from mlfabric import Committed
from mlfabric.channels import TcpOptions
from mlfabric.config import WorkerSettings
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc
from tests.fabric.harness import PATIENCE_S, wait_until

pytestmark = pytest.mark.processes

SIZE = 100_000
TRAIN = """
    import sys
    import torch
    import mlfabric

    weights = {"w": torch.zeros(SIZE, requires_grad=True)}
    with mlfabric.register_as_worker(weights, rule=mlfabric.RuleSpec(lr=1.0), resume=True) as worker:
        for step in range(int(sys.argv[1])):
            worker.get()
            weights["w"].grad = torch.full((SIZE,), float(sys.argv[2]))
            worker.push()
            print("pushed", flush=True)
"""


_ports: set[int] = set()


def free_port() -> int:
    """Return a port that was free a moment ago, another one each time: services are started one after the other."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        if port not in _ports:
            _ports.add(port)
            return port


class Services:
    """Scheduler, server and monitor, each a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {name: free_port() for name in ("port", "scheduler", "server", "monitor")}
        self.address = f"127.0.0.1:{self.ports['port']}"
        self.script = folder / "train.py"
        self.script.write_text(textwrap.dedent(TRAIN).replace("SIZE", str(SIZE)))
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = ExitStack()

    def start(self, service: str, *arguments: str) -> None:
        metrics = ("--metrics-port", str(self.ports[service]))
        self.running[service] = self._popen(service, "-m", "mlfabric", service, *metrics, *arguments)

    def start_scheduler(self) -> None:
        self.start("scheduler", "--port", str(self.ports["port"]), "--silence", "1")

    def start_server(self, *arguments: str) -> None:
        checkpoints = ("--checkpoint-dir", str(self.folder / "checkpoints"), "--checkpoint-every", "0.1")
        self.start("server", "--scheduler", self.address, *checkpoints, *arguments)

    def train(self, steps: int, gradient: float, name: str, up: str = "0") -> subprocess.Popen[bytes]:
        environment = {"MLFABRIC_SCHEDULER": self.address, "MLFABRIC_NAME": name, "MLFABRIC_UP": up}
        return self._popen(name, str(self.script), str(steps), str(gradient), environment=environment)

    def _popen(self, name: str, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self.folder / f"{name}.log").open("ab"))
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd(), **(environment or {})},
            stdout=log,
            stderr=log,
        )
        self._stack.callback(self._reap, process)
        return process

    @staticmethod
    def _reap(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def status(self) -> Any:
        """Return the status, None while nobody answers."""
        with grpc.insecure_channel(self.address) as channel:
            try:
                return fabric_pb2_grpc.FabricServiceStub(channel).GetStatus(fabric_pb2.GetStatusRequest(), timeout=5)
            except grpc.RpcError:
                return None

    def has(self, role: str, state: str = "here") -> bool:
        status = self.status()
        return status is not None and any(m.role == role and m.state == state for m in status.members)

    def worker(self, name: str, **settings: Any) -> Any:
        weights = {"w": torch.zeros(SIZE, requires_grad=True)}
        surroundings = WorkerSettings(scheduler=self.address, name=name, tcp=TcpOptions())
        settings = {"settings": replace(surroundings, **settings)}
        worker = mlfabric.register_as_worker(weights, rule=mlfabric.RuleSpec(lr=1.0), resume=True, **settings)
        self._stack.callback(worker.leave)
        return worker

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = Services(tmp_path_factory.mktemp("services"))
    services.start_scheduler()
    services.start_server()
    services.start("monitor", "--scheduler", services.address)
    try:
        wait_until(lambda: services.has("server") and services.has("monitor"), "all services are there")
        yield services
    finally:
        services.close()


def step(worker: Any, gradient: float = -1.0) -> object:
    worker.get()
    worker._model["w"].grad = torch.full((SIZE,), gradient)
    return worker.push().result(PATIENCE_S)


def model_of(services: Services) -> Any:
    return wait_until(lambda: s.models[0] if (s := services.status()) and s.models else None, "a status")


def test_a_worker_killed_while_it_sends_leaves_nothing_half_applied(services: Services) -> None:
    steady = services.worker("steady")
    assert isinstance(step(steady), Committed)
    victim = services.train(1000, -1e6, "victim", up="1M")

    def is_sending() -> bool:
        status = services.status()
        return status is not None and any(m.name == "victim" and "sending" in m.activity for m in status.members)

    wait_until(is_sending, "the victim sends")
    victim.kill()
    victim.wait()
    before = model_of(services).version.number
    for _ in range(2):
        assert isinstance(step(steady), Committed)
    version = steady.get(min_version=before + 2)
    assert version.number == before + 2
    assert torch.equal(steady._model["w"].detach(), torch.full((SIZE,), float(version.number)))
    again = services.train(1, -1.0, "victim")
    assert again.wait(PATIENCE_S) == 0, services.log("victim")
    steady.leave()


def test_a_worker_told_to_end_finishes_what_it_has_pushed(services: Services) -> None:
    before = sum(model.committed for model in wait_until(services.status, "a status").models)
    process = services.train(1_000_000, -1.0, "told")
    wait_until(lambda: services.log("told").count("pushed") >= 3, "it trains")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    pushed = services.log("told").count("pushed")
    committed = wait_until(lambda: m.committed if (m := model_of(services)).in_flight == 0 else None, "all are settled")
    assert committed - before >= pushed
    assert any(m.name == "told" and m.state == "left" for m in services.status().members)


def test_training_goes_on_after_the_scheduler_was_killed(services: Services) -> None:
    worker = services.worker("survivor")
    before = step(worker)
    worker.get()
    services.running["scheduler"].kill()
    services.running["scheduler"].wait()
    worker._model["w"].grad = torch.ones(SIZE)
    handle = worker.push()
    services.start_scheduler()
    after = handle.result(PATIENCE_S)
    assert isinstance(before, Committed)
    assert isinstance(after, Committed)
    assert after.version.number == before.version.number + 1
    assert worker.get(min_version=after.version.number).number == after.version.number
    wait_until(lambda: services.has("server") and services.has("monitor"), "all are back")
    worker.leave()


def test_a_killed_server_goes_on_from_its_last_checkpoint(services: Services) -> None:
    worker = services.worker("patient")
    assert isinstance(step(worker), Committed)
    checkpoints = services.folder / "checkpoints"
    version = worker.get()
    wait_until(lambda: any(checkpoints.rglob(f"*-v{version.number:012d}.pt")), "a checkpoint of it")
    services.running["server"].kill()
    services.running["server"].wait()
    services.start_server("--resume")
    epoch = wait_until(lambda: e if (e := model_of(services).version.epoch) > version.epoch else 0, "it is back")
    outcome = step(worker)
    assert isinstance(outcome, Committed), outcome
    assert outcome.version == mlfabric.ModelVersion(epoch, version.number + 1)
    worker.leave()


def test_a_server_told_to_end_writes_a_checkpoint_and_says_good_bye(services: Services) -> None:
    worker = services.worker("last")
    outcome = step(worker)
    assert isinstance(outcome, Committed)
    process = services.running["server"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    assert services.has("server", "left")
    newest = max((services.folder / "checkpoints").rglob("*.pt"), key=lambda p: p.stat().st_mtime_ns)
    kept = torch.load(newest, weights_only=True)
    worker.leave()
    services.start_server("--resume")
    wait_until(lambda: services.has("server"), "it is back")
    again = services.worker("reader")
    again.get(min_version=outcome.version.number)
    assert torch.equal(kept["model"]["w"], again._model["w"])
    again.leave()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (package prometheus) is not installed")
def test_the_metrics_of_every_service_satisfy_promtool(services: Services) -> None:
    port = free_port()
    worker = services.worker("measured", metrics_port=port)
    assert isinstance(step(worker), Committed)
    pages = {**{n: services.ports[n] for n in ("scheduler", "server", "monitor")}, "worker": port}
    for name, at in pages.items():
        with urllib.request.urlopen(f"http://127.0.0.1:{at}/metrics", timeout=5) as answer:
            page = answer.read()
        assert b"mlfabric_" in page, name
        checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
        assert checked.returncode == 0, (name, checked.stderr.decode())
    worker.leave()
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_port_in_use_ends_the_process_with_one_line(services: Services) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "mlfabric", "scheduler", "--port", str(services.ports["port"])],
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert ended.returncode == 2
    assert ended.stderr.decode().splitlines()[-1].startswith("error: cannot listen on 127.0.0.1:")
