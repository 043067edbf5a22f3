"""Members that are late, go away and come back: nobody dies of it, nothing is lost or applied twice."""

from __future__ import annotations

import logging
import queue
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import mlfabric
from mlfabric import Committed, Dropped, DropReason, FabricClosedError, Lost, RefusedError
from tests.fabric.harness import Fabric, SchedulerThread, dropped, fabric, gradients, small_model, spec_of, wait_until
from tests.fabric.several import step


def test_a_worker_that_is_early_says_what_it_waits_for_and_joins(caplog, free_port: int) -> None:
    joined: queue.Queue[Any] = queue.Queue()
    address = f"127.0.0.1:{free_port}"

    def join() -> None:
        joined.put(mlfabric.register_as_worker(small_model(), name="early", scheduler=address))

    with caplog.at_level(logging.WARNING, "mlfabric"):
        threading.Thread(target=join, daemon=True).start()
        wait_until(lambda: f"early waits for the scheduler at {address}" in caplog.text, "it says so")
        scheduler = SchedulerThread(port=free_port)
        wait_until(lambda: "early waits for any server to join" in caplog.text, "it says what it waits for now")
        server = mlfabric.register_as_server(mlfabric.ServerOptions(scheduler=address))
        worker = joined.get(timeout=15)
        assert isinstance(step(worker), Committed)
        worker.leave()
        server.stop()
        scheduler.stop()


def test_training_goes_on_over_a_restart_of_the_scheduler() -> None:
    with fabric() as running:
        workers = [running.worker(small_model(), f"w{i}") for i in range(2)]
        for worker in workers:
            assert isinstance(step(worker), Committed)
        before = running.status()
        running.restart_scheduler()
        outcomes = [step(worker) for worker in workers * 3]
        assert [o.version.number for o in outcomes if isinstance(o, Committed)] == list(range(3, 9))
        after = wait_until(lambda: s if len((s := running.status()).members) == 3 else None, "all are back")
        assert after.term > before.term
        assert {m.state for m in after.members} == {"here"}


def test_updates_that_are_open_while_the_scheduler_is_away_are_committed_once() -> None:
    with fabric() as running:
        worker = running.worker(small_model())
        step(worker)
        version = running.version(1, 2)
        running.scheduler.stop()
        gradients(worker._model)
        handle = worker.push()
        assert not handle.done()
        running.start_scheduler()
        assert handle.result(15) == Committed(version=version, tau=1)
        assert worker.get().number == 2


def test_a_server_goes_on_from_its_checkpoint_under_a_new_epoch(tmp_path) -> None:
    with Fabric() as running:
        first = running.server(checkpoint_dir=tmp_path)
        worker = running.worker(small_model())
        for seed in range(3):
            assert isinstance(step(worker, seed), Committed)
        worker.get()
        kept = [p.detach().clone() for p in worker._model.parameters()]
        first.stop()
        running.server(checkpoint_dir=tmp_path, resume=True)
        assert worker.get() == running.version(2, 3)
        assert all(torch.equal(a, b) for a, b in zip(kept, worker._model.parameters(), strict=True))
        gradients(worker._model)
        assert worker.push().result(15) == Committed(version=running.version(2, 4), tau=0)


def test_an_update_that_was_on_its_way_when_the_server_stopped_reaches_the_one_that_resumes(tmp_path) -> None:
    with Fabric() as running:
        first = running.server(checkpoint_dir=tmp_path)
        worker = running.worker(small_model())
        step(worker)
        worker.get()
        first.stop()
        gradients(worker._model)
        handle = worker.push()
        running.server(checkpoint_dir=tmp_path, resume=True)
        assert handle.result(15) == Committed(version=running.version(2, 2), tau=0)


def test_what_was_computed_on_a_version_that_a_crash_has_lost_is_rolled_back(tmp_path: Path) -> None:
    with Fabric() as running:
        first = running.server(checkpoint_dir=tmp_path / "first")
        worker = running.worker(small_model())
        step(worker, 0)
        worker.get()
        first.stop()
        kept = tmp_path / "kept"
        second = running.server(checkpoint_dir=tmp_path / "first", resume=True)
        assert worker.get() == running.version(2, 1)
        # What a crash would leave from here on.
        shutil.copytree(tmp_path / "first", kept, ignore=shutil.ignore_patterns("*.tmp"))
        assert step(worker, 1) == Committed(version=running.version(2, 2), tau=0)
        assert worker.get() == running.version(2, 2)
        second.stop()
        gradients(worker._model, 2)
        handle = worker.push()
        running.server(checkpoint_dir=kept, resume=True)
        dropped(handle, DropReason.ROLLED_BACK)
        assert worker.get() == running.version(3, 1)
        assert step(worker, 2) == Committed(version=running.version(3, 2), tau=0)


def test_a_server_that_comes_back_empty_is_given_a_worker_s_weights() -> None:
    with Fabric() as running:
        first = running.server()
        worker = running.worker(small_model())
        step(worker)
        worker.get()
        first.stop()
        running.server()
        gradients(worker._model)
        outcome = dropped(worker.push(), DropReason.ROLLED_BACK)
        assert "version 1 was lost" in outcome.detail, "scheduler and server both know it"
        assert isinstance(step(worker), Committed)


def test_training_goes_on_when_scheduler_and_server_both_come_back_with_nothing() -> None:
    with Fabric() as running:
        server = running.server()
        worker = running.worker(small_model())
        step(worker)
        worker.get()
        server.stop()
        server = running.server()
        gradients(worker._model)
        assert isinstance(worker.push().result(15), Dropped)
        version = running.version(2, 1)
        running.scheduler.stop()
        running.start_scheduler()
        assert step(worker) == Committed(version=version, tau=0)
        worker.get()
        running.scheduler.stop()
        server.stop()
        running.start_scheduler()
        running.server()
        gradients(worker._model)
        dropped(worker.push(), DropReason.ROLLED_BACK)
        assert step(worker) == Committed(version=running.version(1, 1), tau=0)
        assert worker.get() == running.version(1, 1)


def test_a_worker_that_goes_while_another_one_waits_does_not_keep_it_waiting() -> None:
    with fabric() as running:
        steady = running.worker(small_model(), "steady")
        steady.get()
        raw = running.raw_worker(small_model())
        raw.tell(raw.request())
        assert raw.told("send") is not None
        gradients(steady._model)
        handle = steady.push()
        raw.__exit__()
        assert isinstance(handle.result(15), Committed)


def test_the_first_worker_may_go_before_it_has_brought_the_weights() -> None:
    with fabric() as running:
        raw = running.raw_worker(small_model(), holds_initial=True)
        assert raw.admission.initialise
        raw.tell(raw.request(norm=float("nan")))
        assert raw.told("drop") is not None, "its session is open"
        worker = running.worker(small_model(4), "second")
        raw.__exit__()
        assert worker.get().number == 0


def test_a_worker_that_is_refused_when_it_comes_back_hears_why_in_everything_it_has_open() -> None:
    with Fabric() as running:
        server = running.server()
        worker = running.worker(small_model())
        step(worker)
        running.scheduler.stop()
        server.stop()
        gradients(worker._model)
        handle = worker.push()
        running.start_scheduler()
        other = {"w": torch.zeros(3, requires_grad=True)}
        running.register_empty_server(spec_of(other))
        lost = handle.result(15)
        assert isinstance(lost, Lost)
        assert "given against registered" in lost.detail
        with pytest.raises(RefusedError, match="given against registered"):
            worker.get()
        with pytest.raises(RefusedError, match="given against registered"):
            worker.get()


def test_leaving_while_the_scheduler_is_away_does_not_hang() -> None:
    with fabric() as running:
        worker = running.worker(small_model())
        step(worker)
        running.scheduler.stop()
        worker.leave()
        with pytest.raises(FabricClosedError):
            worker.push()
