"""A model on three servers, every member a process: what is killed, what is told to end, and what the logs say then."""

from __future__ import annotations

import json
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fabric.harness import wait_until
from tests.fabric.test_processes import Services

pytestmark = pytest.mark.processes

SERVERS = 3
TRAIN = """
    import torch
    import mlfabric

    weights = {name: torch.zeros(size, requires_grad=True) for name, size in (("a", 60_000), ("b", 7))}
    with mlfabric.register_as_worker(weights, rule=mlfabric.RuleSpec(lr=1.0), tau_max=8, servers=3) as worker:
        while True:
            version = worker.get().number
            assert all(bool((tensor == version).all()) for tensor in weights.values()), f"version {version} is torn"
            for tensor in weights.values():
                tensor.grad = torch.full_like(tensor, -1.0)
            worker.push()
            print(version, flush=True)
"""


class Processes(Services):
    """Scheduler, servers and workers."""

    def server(self, i: int, *arguments: str) -> None:
        name = f"server-{i}"
        place = ("--scheduler", self.address, "--name", name, "--checkpoint-dir", str(self.folder / name))
        self.running[name] = self._popen(name, "-m", "mlfabric", "server", *place, *arguments)

    def train_as(self, name: str) -> None:
        environment = {"MLFABRIC_SCHEDULER": self.address, "MLFABRIC_NAME": name}
        self.running[name] = self._popen(name, "-c", textwrap.dedent(TRAIN), environment=environment)

    def kill(self, name: str) -> None:
        self._reap(self.running[name])

    def end(self, name: str, code: int) -> None:
        """Tell a process to end, and wait until it has."""
        self.running[name].send_signal(signal.SIGTERM)
        assert self.running[name].wait(30) == code, self.log(name)

    def version(self) -> int:
        """Return the newest version that a worker that trains has printed."""
        return max((int(line) for line in self.log("steady").splitlines() if line.isdecimal()), default=0)

    def go_on(self) -> None:
        """Wait until the worker that stays has seen some more versions."""
        wanted = self.version() + 5
        wait_until(lambda: self.version() >= wanted or self.running["steady"].poll() is not None, "training goes on")
        assert self.running["steady"].poll() is None, self.log("steady")

    def commits(self) -> list[list[tuple[str, int, int]]]:
        """Return each shard's commit log as pushes: worker, incarnation, place among the worker's pushes."""
        found = []
        for path in sorted(self.folder.rglob("*.commits.jsonl"), key=lambda path: path.name):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            found.append([(u[0], u[1], u[2] // SERVERS) for row in rows for u in row["updates"]])
        return found


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    processes.start_scheduler()
    for i in range(SERVERS):
        processes.server(i)
    try:
        here = lambda: (status := processes.status()) is not None and len(status.members) == SERVERS  # noqa: E731
        wait_until(here, "all servers have joined")
        yield processes
    finally:
        processes.close()


def test_whoever_dies_or_ends_no_get_is_torn_and_all_servers_commit_the_same(processes: Processes) -> None:
    processes.train_as("steady")
    processes.train_as("victim")
    processes.go_on()
    wait_until(lambda: processes.log("victim").count("\n") > 1, "both train")
    processes.kill("victim")
    processes.go_on()
    processes.kill("scheduler")
    processes.start_scheduler()
    processes.go_on()
    processes.train_as("victim")
    processes.end("server-1", 0)
    processes.server(1, "--resume")
    processes.go_on()
    for name in ("steady", "victim"):
        processes.end(name, 128 + signal.SIGTERM)
    for i in range(SERVERS):
        processes.end(f"server-{i}", 0)
    first, *others = processes.commits()
    assert len(first) > 20
    assert len(set(first)) == len(first)
    assert others == [first, first]
