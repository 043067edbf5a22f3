"""Schedulers that follow one another, or are there at the same time: the newest counts, the others end."""

from __future__ import annotations

import logging
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mlfabric
from mlfabric import Committed, ServerOptions, UnavailableError
from mlfabric.channels import FrameKind, TcpOptions
from mlfabric.config import WorkerSettings
from mlfabric.errors import FencedError
from mlfabric.launch.scheduler_status import StatusReader
from mlfabric.launch.supervisor import EXIT_FENCED
from mlfabric.scheduler import runner
from mlfabric.shell import session
from tests.fabric.harness import PATIENCE_S, Fabric, fabric, gradients, small_model, wait_until
from tests.fabric.relay import Relay
from tests.processes import Command, Start

SIZE = 100
StartScheduler = Callable[[], tuple[Command, int]]


@pytest.fixture
def start_scheduler(start: Start) -> StartScheduler:
    """Give what starts a scheduler as a process; it returns that when it serves, and its port."""

    def begin() -> tuple[Command, int]:
        scheduler = start("scheduler", "--port", "0")
        found = re.search(r"scheduler at \S+:(\d+),", scheduler.read_until("scheduler at"))
        assert found is not None
        return scheduler, int(found[1])

    return begin


def register(scheduler: str, name: str = "w") -> Any:
    weights = {"w": torch.zeros(SIZE, requires_grad=True)}
    settings = WorkerSettings(scheduler=scheduler, name=name, tcp=TcpOptions())
    return mlfabric.register_as_worker(weights, rule=mlfabric.RuleSpec(lr=1.0), settings=settings)


def push(worker: Any) -> Any:
    """Push a step of 1 down from the newest model."""
    worker.get()
    worker._model["w"].grad = torch.full((SIZE,), -1.0)
    return worker.push()


def version(worker: Any, number: int) -> mlfabric.ModelVersion:
    """Return a version in the server epoch that the worker knows of."""
    return mlfabric.ModelVersion(worker.version.epoch, number)


@pytest.mark.processes
def test_a_scheduler_that_wakes_up_after_it_was_succeeded_ends_and_nothing_is_applied_twice(
    start_scheduler: StartScheduler,
):
    older, older_port = start_scheduler()
    with (
        Relay(older_port) as name,
        mlfabric.register_as_server(ServerOptions(scheduler=name.address)),
        register(name.address) as worker,
    ):
        assert push(worker).result(PATIENCE_S) == Committed(version=version(worker, 1), tau=0)
        worker.get()
        older.signal(signal.SIGSTOP)
        worker._model["w"].grad = torch.full((SIZE,), -1.0)
        open_then = worker.push()  # the older one will read this when it goes on
        _, newer_port = start_scheduler()
        name.move(newer_port)
        assert open_then.result(PATIENCE_S) == Committed(version=version(worker, 2), tau=0)

        older.signal(signal.SIGCONT)
        name.move(older_port)
        code, said = older.finish()
        assert code == EXIT_FENCED
        assert "has been succeeded by term" in said
        name.move(newer_port)
        assert push(worker).result(PATIENCE_S) == Committed(version=version(worker, 3), tau=0)
        worker.get()
        assert torch.equal(worker._model["w"].detach(), torch.full((SIZE,), 3.0))


@pytest.mark.processes
def test_members_that_are_given_several_schedulers_go_to_the_one_that_is_there(
    start_scheduler: StartScheduler, free_port: int
):
    first, first_port = start_scheduler()
    both = f"127.0.0.1:{first_port},127.0.0.1:{free_port}"
    with mlfabric.register_as_server(ServerOptions(scheduler=both)), register(both) as worker:
        assert isinstance(push(worker).result(PATIENCE_S), Committed)
        worker.get()
        first.signal(signal.SIGKILL)
        worker._model["w"].grad = torch.full((SIZE,), -1.0)
        handle = worker.push()
        with Fabric(port=free_port):
            assert handle.result(PATIENCE_S) == Committed(version=version(worker, 2), tau=0)
            with register(both, "late") as late:
                assert late.get().number == 2
            worker.leave()


def test_a_scheduler_whose_clock_is_behind_goes_on_above_what_its_members_have_seen(tmp_path: Path):
    ahead = 10**6 + time.time_ns() // 10**6
    (tmp_path / "epoch").write_text(f"{ahead}\n")
    with Fabric(state_dir=tmp_path) as running:
        running.server()
        worker = running.worker(small_model())
        worker.get()
        gradients(worker._model)
        assert isinstance(worker.push().result(PATIENCE_S), Committed)
        assert running.status().term == ahead + 1
        running.restart_scheduler()
        gradients(worker._model)
        assert isinstance(worker.push().result(PATIENCE_S), Committed)
        assert running.status().term == ahead + 2


def test_a_scheduler_whose_clock_is_behind_goes_on_above_what_a_checkpoint_is_of(tmp_path: Path):
    ahead = 10**6 + time.time_ns() // 10**6
    (tmp_path / "epoch").write_text(f"{ahead}\n")
    with Fabric(state_dir=tmp_path) as running:
        server = running.server(checkpoint_dir=tmp_path / "kept")
        worker = running.worker(small_model())
        before = worker.get()
        worker.leave()
        server.stop()
        running.restart_scheduler()
        running.server(checkpoint_dir=tmp_path / "kept", resume=True)
        after = running.worker(small_model(), "late", resume=True).get()
        assert running.status().term == ahead + 2
        assert after == running.version(1, 0) > before


def test_a_scheduler_that_stood_still_has_its_members_come_again(monkeypatch, caplog):
    monkeypatch.setattr(runner, "SURVEY_S", 0.05)
    monkeypatch.setattr(runner, "STOOD_STILL_S", 1.0)
    with caplog.at_level(logging.WARNING, "mlfabric"), fabric() as running:
        worker = running.worker(small_model())
        worker.get()
        loop = running.scheduler._loop
        assert loop is not None
        loop.call_soon_threadsafe(time.sleep, 1.5)
        wait_until(lambda: "ending 2 sessions: this process stood still" in caplog.text, "it says so")
        gradients(worker._model)
        assert isinstance(worker.push().result(PATIENCE_S), Committed)
        wait_until(lambda: {m.state for m in running.status().members} == {"here"}, "both are back")


def test_what_an_older_scheduler_has_planned_is_not_started_at_a_server_that_follows_a_newer_one():
    with (
        Fabric() as older,
        Fabric() as newer,
        Relay(older.scheduler.port) as name,
        mlfabric.register_as_server(ServerOptions(scheduler=name.address)) as server,
    ):
        older.worker(small_model(), "first").get()
        raw = older.raw_worker(small_model())
        raw.tell(raw.request())
        planned, state = raw.told("send"), server._service._state
        before = state.term
        name.move(newer.scheduler.port)
        wait_until(lambda: state.term > before, "it follows the newer one")
        refused = raw.offer(planned).receive()
        assert refused is not None
        assert refused.kind is FrameKind.REFUSE
        assert server._service._state.models["model"].version == older.version(1, 0)

        name.move(older.scheduler.port)
        with pytest.raises(FencedError, match="has been succeeded by term"):
            older.scheduler.wait()
        name.move(newer.scheduler.port)


def test_members_that_know_of_two_schedulers_all_go_to_the_newer_and_the_older_ends(monkeypatch, free_port: int):
    monkeypatch.setattr(session, "WATCH_S", 0.05)
    with Fabric() as older:
        both = f"{older.scheduler.address},127.0.0.1:{free_port}"
        with mlfabric.register_as_server(ServerOptions(scheduler=both)), register(both) as worker:
            assert isinstance(push(worker).result(PATIENCE_S), Committed)
            with Fabric(port=free_port) as newer:
                with pytest.raises(FencedError, match="has been succeeded by term"):
                    older.scheduler.wait()
                assert push(worker).result(PATIENCE_S) == Committed(version=version(worker, 2), tau=0)
                assert {m.state for m in newer.status().members} == {"here"}
                worker.leave()


async def test_the_status_is_that_of_the_newest_scheduler_that_answers(free_port: int):
    with Fabric() as older, Fabric() as newer:
        addresses = (older.scheduler.address, newer.scheduler.address, f"127.0.0.1:{free_port}")
        async with StatusReader(",".join(addresses)) as reader:
            assert (await reader.read()).term == newer.status().term
        async with StatusReader(addresses[2]) as reader:
            with pytest.raises(UnavailableError, match="no scheduler answers"):
                await reader.read()
