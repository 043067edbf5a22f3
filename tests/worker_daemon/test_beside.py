"""A worker daemon in a process of its own: real processes, real shared memory."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mlfabric
from mlfabric.config import WorkerSettings
from mlfabric.worker_daemon import buffer_pool, remote
from mlfabric.worker_daemon.beside import BesideOptions
from tests.fabric.harness import Fabric, fabric, gradients, small_model, wait_until
from tests.fabric.test_samples import comes_to

SHARED = Path("/dev/shm")
TRAINER = """
import sys, time, torch, mlfabric
from mlfabric.config import WorkerSettings
from tests.fabric.harness import gradients, small_model
model = small_model()
worker = mlfabric.register_as_worker(model)
worker.get(model)
print("joined", flush=True)
while True:
    gradients(model); worker.push(model); worker.get(model)
"""


def daemon(running: Fabric, where: Path) -> AbstractContextManager[tuple[subprocess.Popen[bytes], str]]:
    """Run ``mlfabric worker`` for a fabric; give its process and its address."""
    return daemon_of(running.scheduler.address, where)


@contextmanager
def daemon_of(scheduler: str, where: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run ``mlfabric worker`` for the scheduler at an address."""
    address = f"unix:{where}/daemon.sock"
    command = [sys.executable, "-m", "mlfabric", "worker", "--listen", address]
    command += ["--scheduler", scheduler, "--host", "beside", "--log-level", "warning"]
    with (where / "daemon.log").open("ab") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        wait_until((where / "daemon.sock").exists, "the daemon listens")
        yield process, address
    finally:
        process.terminate()
        process.wait(15)


def segments(pid: int) -> list[Path]:
    """Return what is left of the shared memory that a process has made."""
    return list(SHARED.glob(f"mlfabric-{pid}-*"))


def test_training_through_it_is_training_as_in_a_thread(tmp_path: Path) -> None:
    rule = mlfabric.RuleSpec(lr=0.1, momentum=0.9)
    results = []
    for where in ("thread", "process"):
        with fabric() as running:
            model = small_model()
            if where == "thread":
                train(running, model, rule, "")
            else:
                with daemon(running, tmp_path) as (_, address):
                    train(running, model, rule, address)
            results.append([p.detach().clone() for p in model.parameters()])
    assert all(bool((a == b).all()) for a, b in zip(*results, strict=True))
    assert not segments(os.getpid())


def test_samples_are_drawn_and_accounted_for_through_it(tmp_path: Path) -> None:
    with fabric() as running, daemon(running, tmp_path) as (_, address):
        model, settings = small_model(), replace(running.settings("w0"), daemon=address)
        with mlfabric.register_as_worker(model, keep=True, settings=settings) as worker:
            worker.get()
            sampler = mlfabric.FabricSampler(worker, 10, batch_size=4, shuffle=False)
            seen = []
            for step, batch in enumerate(sampler.over(sampler)):
                gradients(model, step)
                if step == 1:
                    next(iter(model.parameters())).grad[0] = float("nan")  # type: ignore[index]
                seen.append(batch)
                worker.push().result(15)
                worker.get()
        assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [4, 5, 6, 7]]
        comes_to(running, trained=[(0, 10, 1)])


def test_a_model_on_several_servers_is_trained_through_it_as_on_one_in_a_thread(tmp_path: Path) -> None:
    rule = mlfabric.RuleSpec(lr=0.1, momentum=0.9)
    results = []
    for servers in (1, 2):
        with fabric() as running:
            model = small_model()
            if servers == 1:
                train(running, model, rule, "")
            else:
                running.server(name="another")
                with daemon(running, tmp_path) as (_, address):
                    train(running, model, rule, address, servers)
            results.append([p.detach().clone() for p in model.parameters()])
    assert all(bool((a == b).all()) for a, b in zip(*results, strict=True))


def train(running: Fabric, model: object, rule: mlfabric.RuleSpec, address: str, servers: int = 1) -> None:
    """Take ten steps with one worker."""
    settings = replace(running.settings("w0"), daemon=address)
    with mlfabric.register_as_worker(model, rule=rule, servers=servers, settings=settings) as worker:  # type: ignore[arg-type]
        assert worker.tau_max == 2
        worker.get()
        for step in range(10):
            gradients(model, step)  # type: ignore[arg-type]
            outcome = worker.push().result(10)
            assert isinstance(outcome, mlfabric.Committed)
            worker.get()
        assert worker.version.number == 10


def test_when_the_training_process_is_killed_its_worker_leaves_and_its_memory_goes(tmp_path: Path) -> None:
    with fabric() as running, daemon(running, tmp_path) as (_, address):
        environment = {**os.environ, "MLFABRIC_DAEMON": address, "MLFABRIC_NAME": "victim", "PYTHONPATH": os.getcwd()}
        trainer = subprocess.Popen([sys.executable, "-c", TRAINER], env=environment, stdout=subprocess.PIPE)
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"joined\n"
        assert segments(trainer.pid)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait(10)
        trainer.stdout.close()
        states = lambda: {m.name: m.state for m in running.status().members}  # noqa: E731
        wait_until(lambda: states().get("victim") == "left", "the worker leaves")
        wait_until(lambda: not segments(trainer.pid), "the memory is removed")


def test_when_the_daemon_is_killed_the_training_process_hears_it(tmp_path: Path) -> None:
    with fabric() as running, daemon(running, tmp_path) as (process, address):
        model = small_model()
        worker = mlfabric.register_as_worker(model, settings=replace(running.settings("w0"), daemon=address))
        worker.get()
        process.kill()
        process.wait(10)
        with pytest.raises(mlfabric.FabricError, match=r"gone|left"):
            push_until_it_is_heard(worker, model)
        worker.leave()


def test_tensors_are_reduced_through_it_with_those_of_other_workers(tmp_path: Path) -> None:
    with Fabric() as running, daemon(running, tmp_path) as (_, address), ThreadPoolExecutor(2) as pool:
        together = [reducer(running, "w0", address), reducer(running, "w1", "")]
        for numel, dtype in (
            (0, torch.float32),
            (3, torch.float16),
            (300_001, torch.float64),
            (300_001, torch.float64),
        ):
            given = [torch.arange(numel, dtype=dtype) * (i + 1) for i in range(2)]
            made = [tensor.clone() for tensor in given]
            assert list(pool.map(lambda worker, tensor: worker.all_reduce(tensor), together, made)) == [2, 2]
            assert all(torch.equal(tensor, given[0] + given[1]) for tensor in made)
        handles = [together[0].all_reduce_async(torch.ones(4)), together[1].all_reduce_async(torch.ones(5))]
        for handle in handles:
            with pytest.raises(mlfabric.RefusedError, match="same size"):
                handle.result(15)
        halves = [torch.full((4,), 1.0), torch.full((4,), 2.0)]
        list(pool.map(lambda worker, tensor: worker.all_reduce(tensor, mlfabric.ReduceOp.MEAN), together, halves))
        assert [half.tolist() for half in halves] == [[1.5] * 4] * 2
        for worker in together:
            worker.leave()
        with pytest.raises(mlfabric.FabricClosedError):
            together[0].all_reduce(torch.ones(1))
    assert not segments(os.getpid())


def test_tensors_of_many_sizes_leave_few_pieces_of_shared_memory_on_either_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer_pool, "LEAST_KEPT_BYTES", 1 << 20)
    with Fabric() as running, daemon(running, tmp_path) as (process, address):
        model = {"w": torch.zeros(1, requires_grad=True)}
        settings = replace(running.settings("w0"), daemon=address)
        with mlfabric.register_as_worker(model, mode=mlfabric.Mode.ALL_REDUCE, settings=settings) as worker:
            for n in range(1, 101):
                tensor = torch.ones(1000 * n)
                assert worker.all_reduce(tensor) == 1
                assert tensor.eq(1).all()
            here = segments(os.getpid())
            assert 2 < len(here) < 12
            mapped = Path(f"/proc/{process.pid}/maps").read_text()
            assert 0 < mapped.count(f"mlfabric-{os.getpid()}-") <= len(here) + 2
    assert not segments(os.getpid())


def reducer(running: Fabric, name: str, address: str) -> mlfabric.Worker:
    settings = replace(running.settings(name), daemon=address)
    model = {"w": torch.zeros(1, requires_grad=True)}
    return mlfabric.register_as_worker(model, mode=mlfabric.Mode.ALL_REDUCE, workers=2, settings=settings)


def test_an_all_reduce_ends_when_its_daemon_is_killed(tmp_path: Path) -> None:
    with Fabric() as running, daemon(running, tmp_path) as (process, address):
        worker = reducer(running, "w0", address)
        tensor = torch.ones(4)
        handle = worker.all_reduce_async(tensor)
        process.kill()
        process.wait(10)
        with pytest.raises(mlfabric.FabricError, match="gone"):
            handle.result(15)
        assert tensor.tolist() == [1.0] * 4
        worker.leave()


def push_until_it_is_heard(worker: mlfabric.Worker, model: torch.nn.Module) -> None:
    """Go on training; the first push may be under way when the news comes."""
    for _ in range(3):
        gradients(model)
        worker.push()
        worker.get()


def test_no_daemon_at_the_address_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SAID_AFTER_S", 0.1)
    monkeypatch.setattr(remote, "COMES_WITHIN_S", 0.2)
    with fabric() as running:
        settings = replace(running.settings("w0"), daemon=f"unix:{tmp_path}/nobody.sock")
        with pytest.raises(mlfabric.UnavailableError, match="mlfabric worker"):
            mlfabric.register_as_worker(small_model(), settings=settings)
    assert not segments(os.getpid())


def test_a_worker_that_is_there_before_its_daemon_says_so_and_joins_through_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with fabric() as running, ThreadPoolExecutor() as pool, caplog.at_level(logging.WARNING, "mlfabric"):
        settings = replace(running.settings("w0"), daemon=f"unix:{tmp_path}/daemon.sock")
        early = pool.submit(mlfabric.register_as_worker, small_model(), settings=settings)
        wait_until(lambda: "w0 waits for the daemon at unix:" in caplog.text, "it says so")
        with daemon(running, tmp_path), early.result(15) as worker:
            assert worker.get().number == 0


def test_the_scheduler_s_refusal_reaches_the_training_process(tmp_path: Path) -> None:
    with fabric() as running, daemon(running, tmp_path) as (_, address):
        running.worker(small_model(), "w0")
        settings = replace(running.settings("w0"), daemon=address)
        with pytest.raises(mlfabric.RefusedError, match="taken"):
            mlfabric.register_as_worker(small_model(), settings=settings)


@pytest.mark.parametrize("address", ["", "10.0.0.1:7000", "0.0.0.0:7000", "unix"])
def test_only_addresses_of_this_machine_are_allowed(address: str) -> None:
    settings = replace(mlfabric_settings(), daemon=address)
    with pytest.raises(mlfabric.UsageError, match="unix:/path"):
        BesideOptions(settings=settings)


def mlfabric_settings() -> WorkerSettings:
    """Return settings that are right but for the address."""
    return WorkerSettings.from_environment({})


def test_a_training_process_killed_while_it_waits_for_the_scheduler_leaves_no_worker_behind(
    tmp_path: Path, free_port: int
) -> None:
    later = f"127.0.0.1:{free_port}"
    with daemon_of(later, tmp_path) as (_, address):
        environment = {**os.environ, "MLFABRIC_DAEMON": address, "MLFABRIC_NAME": "ghost", "PYTHONPATH": os.getcwd()}
        trainer = subprocess.Popen([sys.executable, "-c", TRAINER], env=environment)
        wait_until(lambda: "ghost waits" in (tmp_path / "daemon.log").read_text(), "it has come to the daemon")
        trainer.kill()
        trainer.wait(10)
        wait_until(lambda: not segments(trainer.pid), "the memory is removed")
        with Fabric(port=free_port) as running:
            running.server()
            running.worker(small_model(), "steady").get()
            assert {m.name for m in running.status().members} == {"server-0", "steady"}


def test_a_daemon_told_to_end_finishes_what_was_pushed(tmp_path: Path) -> None:
    with fabric() as running, daemon(running, tmp_path) as (process, address):
        model = small_model()
        worker = mlfabric.register_as_worker(model, settings=replace(running.settings("w0"), daemon=address))
        worker.get()
        gradients(model)
        handle = worker.push()
        process.send_signal(signal.SIGTERM)
        # The signal may overtake the push: then it is lost, and said to be.
        assert isinstance(handle.result(10), mlfabric.Committed | mlfabric.Lost)
        assert process.wait(15) == 0
        states = {m.name: m.state for m in running.status().members}
        assert states["w0"] == "left"
        worker.leave()
