"""A fabric of real processes that are started, killed and started again one by one, and what is left of them.

All run the same code as ``mlfabric scheduler``, ``server`` and ``aggregator``; they are forked from a process that has
imported everything, so that a trial takes seconds. They are on this machine's loopback, planned on hosts of their own,
or each host is a network namespace.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from benchmarks.faults.judging import Evidence, Writing
from benchmarks.faults.ledger import Contents, Ledger
from benchmarks.faults.logs import Entry, Tail, commits
from benchmarks.faults.trainer import MODEL, Job, read, train
from benchmarks.testbed.children import Child
from benchmarks.testbed.hosts import HERE, Host
from benchmarks.testbed.namespaces import entered
from benchmarks.testbed.processes import Launcher
from mlfabric.config import parse_rate
from mlfabric.launch.ports import free_port
from mlfabric.model.specs import Method
from mlfabric.v1.fabric_pb2 import GetStatusRequest
from mlfabric.v1.fabric_pb2_grpc import FabricServiceStub

__all__ = [
    "SCHEDULER",
    "SERVER",
    "Cluster",
    "ClusterPlan",
    "StuckError",
    "aggregator_name",
    "host_of",
    "replica_name",
    "worker_name",
]

SCHEDULER = "scheduler"
SERVER = "server-0"
LOOK_S = 0.005
END_S = 60.0
ASK_S = 2.0


class StuckError(RuntimeError):
    """What was waited for has not come; says what."""


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """What a fabric consists of.

    Args:
        workers: how many begin; >= 1.
        aggregators: how many, each beside the worker of its number.
        method: asynchronous or synchronous.
        ledger: what is trained.
        step_s: how long workers compute.
        tau_max: the delay bound, if asynchronous; so wide that a worker which a busy computer holds up is within it.
        worker_rate, server_rate: of the emulated network cards, as in ``"50M"``; "" emulates none. By default an update
            is on its way for about as long as a worker computes, so that a fault finds workers at either.
        checkpoint_every_s: between checkpoints.
        replica_updates: how many commits the server may be ahead of a replica; None for no replica.
    """

    workers: int = 3
    aggregators: int = 0
    method: Method = Method.ASYNCHRONOUS
    ledger: Ledger = field(default_factory=lambda: Ledger(writers=32))
    step_s: float = 0.02
    tau_max: int = 64
    worker_rate: str = "20M"
    server_rate: str = ""
    checkpoint_every_s: float = 0.2
    replica_updates: int | None = None


def replica_name(number: int) -> str:
    """Return the name of a replica, which its process has for as long as it is none else."""
    return f"replica-{number}"


def worker_name(number: int) -> str:
    """Return the name of a worker."""
    return f"worker-{number}"


def aggregator_name(number: int) -> str:
    """Return the name of an aggregator."""
    return f"aggregator-{number}"


def host_of(number: int) -> str:
    """Return the host of a worker and of the aggregator beside it."""
    return f"h{number}"


@dataclass(slots=True)
class _Trainer:
    name: str
    writer: int
    tail: Tail
    must_commit: bool = False


class Cluster:
    """The processes of one fabric.

    Args:
        launcher: starts them.
        plan: see there.
        folder: for their logs and checkpoints; what is in it goes.
        label: begins their names at the launcher.
        hosts: by name, where they are network namespaces; empty for this machine.

    Attributes:
        trainers: all workers that were ever started, by name.
        commit_logs: of all servers; one that is not there yet is empty.
    """

    def __init__(
        self, launcher: Launcher, plan: ClusterPlan, folder: Path, label: str, hosts: Mapping[str, Host] | None = None
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.commit_logs = [self.checkpoints / f"{MODEL}.commits.jsonl"]
        self.trainers: dict[str, _Trainer] = {}
        self._launcher = launcher
        self._label = label
        self._hosts = hosts or {}
        self._running: dict[str, Child] = {}
        self._planned: dict[str, str] = {}
        self._starts = self._replicas = 0
        at = self._host(SCHEDULER)
        with _inside(at):
            self._port = free_port(at.address)
        self.scheduler = f"{at.address}:{self._port}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *unused: object) -> None:
        self.kill(*self._running)

    # Starting

    def start_all(self) -> None:
        """Start services and workers; wait until each worker has had an update committed and there is a checkpoint."""
        self.start_scheduler()
        self.start_server()
        if self.plan.replica_updates is not None:
            self.start_replica()
        for i in range(self.plan.aggregators):
            self.start_aggregator(i)
        for _ in range(self.plan.workers):
            self.start_worker()
        self.wait(lambda: all(self.commits(name, 0) for name in self.trainers), "every worker's first commit")
        self.wait(lambda: any(self.checkpoints.glob("*.pt")), "the first checkpoint")
        if self.plan.replica_updates is not None:
            self.wait_until_followed()

    def start_scheduler(self) -> None:
        """Start the scheduler, always on the same port."""
        bind = self._host(SCHEDULER).address
        self.start_service(SCHEDULER, SCHEDULER, "scheduler", "--bind", bind, "--port", str(self._port))

    def start_server(self, *, again: bool = False) -> None:
        """Start the server; ``again`` goes on from its newest checkpoint."""
        folder = ("--checkpoint-dir", str(self.checkpoints))
        every = ("--checkpoint-every", str(self.plan.checkpoint_every_s), *(("--resume",) if again else ()))
        rate = ("--down", self.plan.server_rate) if self.plan.server_rate else ()
        self.start_member(SERVER, SERVER, "server", *folder, *every, *rate)

    def start_replica(self) -> str:
        """Start one more replica of the server; return its name."""
        name = replica_name(self._replicas)
        self._replicas += 1
        folder = self.folder / name
        self.commit_logs.append(folder / f"{MODEL}.commits.jsonl")
        bound = ("--replica-of", SERVER, "--div-max-updates", str(self.plan.replica_updates))
        every = ("--checkpoint-dir", str(folder), "--checkpoint-every", str(self.plan.checkpoint_every_s))
        self.start_member(name, name, "server", *bound, *every)
        return name

    def wait_until_followed(self) -> None:
        """Wait until the newest replica follows the server."""
        name = replica_name(self._replicas - 1)
        self.wait(lambda: self.activity(name).startswith("follows"), f"{name} follows the server")

    def activity(self, member: str) -> str:
        """Return what a member does, as the scheduler says on this machine; "" of one that is not there."""
        with grpc.insecure_channel(self.scheduler) as channel:
            try:
                status = FabricServiceStub(channel).GetStatus(GetStatusRequest(), timeout=ASK_S)
            except grpc.RpcError:
                return ""
        return next((m.activity for m in status.members if m.name == member and m.state == "here"), "")

    def start_aggregator(self, number: int) -> None:
        """Start an aggregator on the host of the worker of its number."""
        rate = ("--up", self.plan.worker_rate, "--down", self.plan.worker_rate) if self.plan.worker_rate else ()
        self.start_member(aggregator_name(number), host_of(number), "aggregator", *rate)

    def start_member(self, name: str, host: str, command: str, *options: str) -> None:
        """Start a service that joins the scheduler: a command of ``mlfabric``, and what it takes beside its place."""
        own = ("--name", name, "--host", host, "--bind", self._host(host).address)
        self.start_service(name, host, command, "--scheduler", self.scheduler, *own, *options)

    def start_service(self, name: str, host: str, *arguments: str) -> None:
        """Start a command of ``mlfabric``; between hosts it talks without TLS."""
        plain = ("--insecure",) if self._hosts else ()
        child = self._launcher.start(self._host(host), _command, (*arguments, *plain), name=self._unique(name))
        self._began(name, host, child)

    def start_worker(self, host: str = "") -> str:
        """Start one more worker, on a host of its own unless given; return its name.

        Raises:
            StuckError: the ledger has no part left for it.
        """
        number = len(self.trainers)
        if number >= self.plan.ledger.writers:
            raise StuckError(f"the ledger has parts for {self.plan.ledger.writers} workers, all taken")
        name, host = worker_name(number), host or host_of(number)
        job = self._job(name, number, host)
        self.trainers[name] = _Trainer(name, number, Tail(job.log))
        self._began(name, host, self._launcher.start(self._host(host), train, job, name=self._unique(name)))
        return name

    def _job(self, name: str, writer: int, host: str) -> Job:
        plan = self.plan
        return Job(
            name=name,
            writer=writer,
            scheduler=self.scheduler,
            host=host,
            address=self._host(host).address,
            up_bps=parse_rate(plan.worker_rate or "0"),
            ledger=plan.ledger,
            method=plan.method,
            tau_max=plan.tau_max if plan.method is Method.ASYNCHRONOUS else None,
            together=plan.workers,
            step_s=plan.step_s,
            log=self.folder / f"{name}.jsonl",
        )

    def _began(self, name: str, host: str, child: Child) -> None:
        self._running[name], self._planned[name] = child, host

    def _unique(self, name: str) -> str:
        self._starts += 1
        return f"{self._label}-{self._starts}-{name}"

    def _host(self, name: str) -> Host:
        return self._hosts[name] if self._hosts else HERE

    # What happens to them

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process, unless it has ended."""
        self._running[name].signal(number)

    def kill(self, *names: str) -> None:
        """Kill processes at the same time, and wait until they are gone."""
        for name in names:
            self.signal(name, signal.SIGKILL)
        for name in names:
            child = self._running.pop(name)
            child.ended_or_killed(time.monotonic() + END_S)
            child.close()

    def processes_of(self, host: str) -> list[str]:
        """Return the names of what runs on a host."""
        return [name for name, planned in self._planned.items() if planned == host and self.runs(name)]

    def runs(self, name: str) -> bool:
        """Tell whether a process has not ended."""
        return name in self._running and self._running[name].runs

    def tell_to_leave(self, name: str) -> None:
        """Ask a worker to leave once its present update is settled."""
        if self.runs(name):
            with suppress(OSError):  # it has ended just now
                self._running[name].messages.send("leave")

    def expect_commits(self, names: Sequence[str]) -> None:
        """Note that each update of these workers has to be committed, from first to last."""
        for name in names:
            self.trainers[name].must_commit = True

    def check(self) -> None:
        """Make sure that nobody has died who was not killed.

        Raises:
            ChildError: a worker failed.
            StuckError: a service has ended.
        """
        for name, child in list(self._running.items()):
            if not child.runs:
                child.join()
                if name not in self.trainers:
                    raise StuckError(f"{name} has ended")
                child.close()
                del self._running[name]

    # What they have written

    def commits(self, name: str, since_ns: int) -> int:
        """Return how many commits a worker was told of since a time."""
        tail = self.trainers[name].tail
        tail.read()
        return sum(at_ns >= since_ns for at_ns in tail.commits_ns)

    def commits_ns(self, name: str) -> list[int]:
        """Return when a worker was told of commits, as far as it was read."""
        return self.trainers[name].tail.commits_ns

    def longest_group(self) -> int:
        """Return how many updates the largest entry of the commit logs has."""
        return max((len(entry.updates) for entry in self._entries()), default=0)

    def _entries(self) -> Iterator[Entry]:
        for log in self.commit_logs:
            yield from commits(log, is_mean=self.plan.ledger.is_mean)

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        """Wait for a condition.

        Raises:
            StuckError: it has not come.
        """
        until_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > until_s:
                raise StuckError(f"{what}: not within {timeout_s:g} s")
            time.sleep(LOOK_S)

    # The end

    def finish(self) -> Evidence:
        """Have all workers leave, read the model, end the services; return what is left.

        Raises:
            StuckError: somebody does not end.
            ChildError: somebody failed.
        """
        for name in self.trainers:
            self.tell_to_leave(name)
        self.wait(self._nobody_trains, "all workers leave", END_S)
        final = self._read()
        for name in [name for name in self._running if name != SCHEDULER] + [SCHEDULER]:
            self._running[name].stop(END_S)
        entries = tuple(self._entries())
        return Evidence(
            ledger=self.plan.ledger,
            writings=self._writings(),
            entries=entries,
            final=final,
            most_lost=self.plan.replica_updates,
        )

    def _nobody_trains(self) -> bool:
        self.check()
        return self._running.keys().isdisjoint(self.trainers)

    def _read(self) -> Contents:
        """Read the model as a worker that comes last."""
        job = self._job("reader", 0, host_of(0))
        child = self._launcher.start(self._host(host_of(0)), read, job, name=self._unique("reader"))
        self._began("reader", host_of(0), child)
        contents: Contents = child.join(END_S)
        return contents

    def _writings(self) -> list[Writing]:
        for trainer in self.trainers.values():
            trainer.tail.read()
        return [
            Writing(name=t.name, writer=t.writer, lines=t.tail.lines, must_commit=t.must_commit)
            for t in self.trainers.values()
        ]


@contextmanager
def _inside(host: Host) -> Iterator[None]:
    """Be on a host for as long as the block runs."""
    if not host.namespace:
        yield
        return
    with entered(host.namespace):
        yield


def _command(arguments: tuple[str, ...]) -> None:
    """Be ``mlfabric`` with these arguments."""
    from mlfabric.cli.app import run

    sys.argv = ["mlfabric", *arguments]
    sys.exit(run())
