"""A fabric for measurements: every member is a process of its own, as it would be on machines of their own."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import grpc

from mlfabric.channels import TcpOptions
from mlfabric.config import WorkerSettings, parse_rate
from mlfabric.launch.ports import free_port
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc

__all__ = ["FabricPlan", "Found", "Job", "Place", "Services", "run_fabric", "run_services", "wait_for_all"]

HOST = "127.0.0.1"
TIMEOUT_S = 600.0
JOIN_S = 120.0


@dataclass(frozen=True, kw_only=True)
class FabricPlan:
    """Which services run.

    Args:
        directory: where the server writes commit log and checkpoints; of several each in a directory of its own there.
        servers: how many, each on a host of its own.
        aggregators: how many, each on a host of its own.
        server_down: rate of each server's emulated network card, incoming, as in ``"50M"``; "" emulates none.
        aggregator_card: rate of each aggregator's emulated network card, both ways; "" emulates none.
        scheduler: more of its options, as on the command line.
    """

    directory: Path
    servers: int = 1
    aggregators: int = 0
    server_down: str = ""
    aggregator_card: str = ""
    scheduler: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a worker runs, and as which of how many; ``up`` is the rate of its emulated network card."""

    scheduler: str
    rank: int
    workers: int
    up: str = ""

    @property
    def settings(self) -> WorkerSettings:
        """What ``mlfabric.register_as_worker`` needs to know of it."""
        return WorkerSettings(
            scheduler=self.scheduler,
            name=f"worker-{self.rank}",
            host=f"host-{self.rank}",
            tcp=TcpOptions(up_bps=parse_rate(self.up or "0")),
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """What workers do.

    Args:
        work: called in each worker's process, with its place and ``arguments``; a function of a module.
        up: the rate of each worker's emulated network card; "" emulates none.
    """

    work: Callable[..., Any]
    up: Sequence[str]
    arguments: tuple[Any, ...] = field(default=())


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came of a job: what each worker's work returned, by rank; how many sums the servers have received."""

    answers: list[Any]
    sums: int


class Services(NamedTuple):
    """Services that run: the scheduler's address, and where it and the servers show their metrics."""

    scheduler: str
    scheduler_metrics_port: int
    server_metrics_ports: tuple[int, ...]

    def scheduler_metrics(self) -> str:
        """Return what the scheduler has counted so far, as the text that it shows."""
        return _metrics(self.scheduler_metrics_port)

    def server_metrics(self) -> str:
        """Return what the servers have counted so far, as the text that they show, one behind the other."""
        return "".join(map(_metrics, self.server_metrics_ports))


def run_fabric(plan: FabricPlan, job: Job) -> Found:
    """Run a job in a fabric of its own.

    Raises:
        RuntimeError: a process failed or was too slow.
    """
    with run_services(plan) as services:
        places = [
            Place(scheduler=services.scheduler, rank=i, workers=len(job.up), up=up) for i, up in enumerate(job.up)
        ]
        return Found(answers=_worked(job, places), sums=_sums(services.server_metrics()))


def _metrics(port: int) -> str:
    with urlopen(f"http://{HOST}:{port}/metrics", timeout=JOIN_S) as page:
        text: str = page.read().decode()
    return text


def _sums(metrics: str) -> int:
    lines = metrics.splitlines()
    counts = [line for line in lines if line.startswith("mlfabric_received_total{") and 'kind="sum"' in line]
    return sum(int(float(line.rsplit(maxsplit=1)[1])) for line in counts)


@contextmanager
def run_services(plan: FabricPlan) -> Iterator[Services]:
    """Run the services of a fabric until the context ends.

    Raises:
        RuntimeError: they have not joined in time.
    """
    port, scheduler_metrics_port, *server_metrics_ports = (free_port(HOST) for _ in range(2 + plan.servers))
    address = f"{HOST}:{port}"
    down = ("--down", plan.server_down) if plan.server_down else ()
    card = ("--up", plan.aggregator_card, "--down", plan.aggregator_card) if plan.aggregator_card else ()
    with ExitStack() as stack:
        stack.enter_context(
            _service("scheduler", "--port", str(port), "--metrics-port", str(scheduler_metrics_port), *plan.scheduler)
        )
        channel = stack.enter_context(grpc.insecure_channel(address))
        for i, metrics_port in enumerate(server_metrics_ports):
            name = f"server-{i}"
            own = (
                ("--name", name, "--host", f"host-{name}", *down)
                if plan.servers > 1
                else ("--host", "host-server", *down)
            )
            directory = plan.directory / name if plan.servers > 1 else plan.directory
            place = ("--checkpoint-dir", str(directory), "--metrics-port", str(metrics_port))
            stack.enter_context(_service("server", "--scheduler", address, *own, *place))
        for i in range(plan.aggregators):
            member = ("--scheduler", address, "--name", f"aggregator-{i}", "--host", f"aggregator-{i}")
            stack.enter_context(_service("aggregator", *member, *card))
        _wait_for(channel, plan.aggregators + plan.servers)
        yield Services(address, scheduler_metrics_port, tuple(server_metrics_ports))


@contextmanager
def _service(*arguments: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "mlfabric", *arguments, "--log-level", "warning"])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _wait_for(channel: grpc.Channel, members: int) -> None:
    stub, until_s = fabric_pb2_grpc.FabricServiceStub(channel), time.monotonic() + JOIN_S
    while len(stub.GetStatus(fabric_pb2.GetStatusRequest(), wait_for_ready=True, timeout=JOIN_S).members) < members:
        if time.monotonic() > until_s:
            raise RuntimeError(f"{members} services have not joined within {JOIN_S} s")
        time.sleep(0.05)


def wait_for_all(place: Place) -> None:
    """Wait until every worker of the job has joined."""
    with grpc.insecure_channel(place.scheduler) as channel:
        stub = fabric_pb2_grpc.FabricServiceStub(channel)
        while len(stub.GetStatus(fabric_pb2.GetStatusRequest()).workers) < place.workers:
            time.sleep(0.01)


def _worked(job: Job, places: Sequence[Place]) -> list[Any]:
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes: list[Pipe] = []
        for place in places:
            ours, theirs = context.Pipe()
            stack.callback(ours.close)
            process = context.Process(target=_work, args=(job.work, place, job.arguments, theirs))
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
            theirs.close()
            pipes.append(ours)
        return _answers(pipes)


def _answers(pipes: Sequence[Pipe]) -> list[Any]:
    answers: dict[int, Any] = {}
    until_s = time.monotonic() + TIMEOUT_S
    while len(answers) < len(pipes):
        ready = wait([pipe for i, pipe in enumerate(pipes) if i not in answers], max(0.0, until_s - time.monotonic()))
        if not ready:
            raise RuntimeError(f"{len(pipes) - len(answers)} workers did not end within {TIMEOUT_S} s")
        for i, pipe in enumerate(pipes):
            if pipe in ready:
                try:
                    answers[i] = pipe.recv()
                except EOFError as error:
                    raise RuntimeError(f"worker {i} failed; its own error is above") from error
    return [answers[i] for i in range(len(pipes))]


def _work(work: Callable[..., Any], place: Place, arguments: tuple[Any, ...], pipe: Pipe) -> None:
    pipe.send(work(place, *arguments))
