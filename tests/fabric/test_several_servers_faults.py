"""One model on several servers: workers, schedulers and servers that go away and come back."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from mlfabric import Committed, DropReason, RuleSpec
from tests.fabric.harness import Fabric, dropped, wait_until
from tests.fabric.programs import Program
from tests.fabric.several import is_whole, logs, ones, order_of, push_one, shards_of, spread, start, together

VICTIM = """
import torch, mlfabric
from tests.fabric.several import ones, push_one
worker = mlfabric.register_as_worker(ones(100_000), rule=mlfabric.RuleSpec(lr=1.0), servers=2)
while True:
    worker.get()
    push_one(worker)
"""


def go_on(worker: Any, versions: int) -> None:
    """Wait until a worker that trains has seen so many more versions."""
    wanted = worker.version.number + versions
    wait_until(lambda: worker.version.number >= wanted, "training goes on")


def doing(running: Fabric, worker: str) -> str:
    """Return what the status says a worker is doing; "" if it has not joined."""
    return "".join(m.activity for m in running.status().members if m.name == worker)


def test_training_goes_on_over_a_restart_of_the_scheduler() -> None:
    with spread(3) as running:
        workers = [running.worker(ones(), f"w{i}", rule=RuleSpec(lr=1.0), servers=3) for i in range(2)]
        stop = threading.Event()
        torn = []

        def train(worker: Any) -> None:
            worker.get()
            while not stop.is_set():
                push_one(worker)
                worker.get()
                if not is_whole(worker):
                    torn.append(worker.version)

        def restart() -> None:
            try:
                for _ in range(3):
                    go_on(workers[0], 5)
                    running.restart_scheduler()
                go_on(workers[0], 5)
            finally:
                stop.set()

        together(restart, *(lambda worker=worker: train(worker) for worker in workers))
        assert not torn
        committed = sum(worker.drain().committed for worker in workers)
        assert workers[0].get(min_version=committed).number == committed
        assert is_whole(workers[0])
        assert [m.version.number for m in shards_of(running)] == [committed] * 3


def test_a_server_that_stops_and_returns_goes_on_with_the_others(tmp_path: Path) -> None:
    with spread(3, tmp_path) as running:
        worker = running.worker(ones(), rule=RuleSpec(lr=1.0), servers=3)
        worker.get()
        assert isinstance(push_one(worker).result(15), Committed)
        worker.get()
        running.servers[1].stop()
        handle = push_one(worker)
        assert not handle.done()
        start(running, 1, tmp_path, resume=True)
        assert isinstance(handle.result(15), Committed)
        assert worker.get().number == 2
        assert is_whole(worker)
        assert isinstance(push_one(worker).result(15), Committed)
    first, *others = [order_of(log) for log in logs(tmp_path)]
    assert others == [first, first]


@pytest.mark.processes
def test_a_worker_that_is_killed_while_it_sends_leaves_no_part_of_its_update_behind() -> None:
    with spread(2) as running:
        steady = running.worker(ones(100_000), "steady", rule=RuleSpec(lr=1.0), servers=2)
        steady.get()
        assert isinstance(push_one(steady).result(15), Committed)
        surroundings = {"MLFABRIC_SCHEDULER": running.scheduler.address, "MLFABRIC_NAME": "victim", "MLFABRIC_UP": "1M"}
        with Program("-c", VICTIM, **surroundings):
            wait_until(lambda: "sending" in doing(running, "victim"), "the victim sends")
        before = steady.get().number
        for _ in range(3):
            assert isinstance(push_one(steady).result(15), Committed)
            steady.get()
            assert is_whole(steady)
        assert steady.version.number == before + 3
        assert len({m.version for m in shards_of(running)}) == 1


def test_all_servers_go_on_from_their_checkpoints(tmp_path: Path) -> None:
    with spread(2, tmp_path) as running:
        worker = running.worker(ones(), rule=RuleSpec(lr=1.0), servers=2)
        worker.get()
        for _ in range(3):
            assert isinstance(push_one(worker).result(15), Committed)
        worker.get()
        for server in list(running.servers):
            server.stop()
        for i in range(2):
            start(running, i, tmp_path, resume=True)
        assert worker.get() == running.version(3, 3)
        assert is_whole(worker)
        assert push_one(worker).result(15) == Committed(version=running.version(3, 4), tau=0)
    assert {path.name.partition("-")[0] for path in tmp_path.rglob("*.pt")} == {"model.shard0", "model.shard1"}


def test_a_server_that_returns_with_less_than_the_others_have_tears_the_model_until_all_go_back(tmp_path: Path) -> None:
    now, kept = tmp_path / "now", tmp_path / "kept"
    with spread(2, now) as running:
        worker = running.worker(ones(), rule=RuleSpec(lr=1.0), servers=2)
        worker.get()
        assert isinstance(push_one(worker).result(15), Committed)
        worker.get()
        for server in list(running.servers):
            server.stop()
        for i in range(2):
            start(running, i, now, resume=True)
        shutil.copytree(now, kept, ignore=shutil.ignore_patterns("*.tmp"))  # what a crash would leave from here on
        for _ in range(3):
            assert isinstance(push_one(worker).result(15), Committed)
        worker.get()
        running.servers[-1].stop()
        start(running, 1, kept, resume=True)
        handle = push_one(worker)
        wait_until(lambda: "model is torn: part 0 at s0 at version 4, part 1" in str(running.status()), "it says so")
        assert not handle.done()
        for server in (running.servers[-3], running.servers[-1]):
            server.stop()
        for i in range(2):
            start(running, i, kept, resume=True)
        dropped(handle, DropReason.ROLLED_BACK, DropReason.FUTURE_VERSION)
        assert worker.get().number == 1
        assert is_whole(worker)
        assert isinstance(push_one(worker).result(15), Committed)
