"""A fault planted in each kind of shell ends it with the reason; the others are told at once, and train on."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import mlfabric
from mlfabric import Committed
from mlfabric.transfer.offers import Answer
from tests.fabric.harness import Fabric, fabric, gradients, small_model, wait_until
from tests.fabric.replicas import replica, wait_for_replica
from tests.fabric.several import together

NO_ROOM = "no room for this"


def no_room(*_: Any) -> None:
    raise MemoryError(NO_ROOM)


def state_of(running: Fabric, name: str) -> str:
    return next(member.state for member in running.status().members if member.name == name)


def step(worker: Any) -> Any:
    worker.get()
    gradients(worker._model)
    return worker.push()


def train_on(worker: Any) -> None:
    for _ in range(3):
        step(worker).result(30)


@pytest.mark.parametrize("outputs", [3, 20_000], ids=["in its loop", "in a thread"])
def test_a_server_that_cannot_make_a_step_ends_and_another_one_begins(
    outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Fabric() as running:
        failing = mlfabric.register_as_server(mlfabric.ServerOptions(scheduler=running.scheduler.address))
        monkeypatch.setattr(failing._service._stores, "_step", no_room)
        worker = running.worker(torch.nn.Sequential(torch.nn.Linear(4, outputs), torch.nn.Linear(outputs, 2)))
        pushed = step(worker)
        with pytest.raises(MemoryError, match=NO_ROOM):
            failing.wait(30)
        assert state_of(running, "server-0") == "silent"
        with pytest.raises(MemoryError, match=NO_ROOM):
            failing.register_update_callback(no_room)
        with pytest.raises(MemoryError, match=NO_ROOM):
            failing.stop()
        running.server()
        assert pushed.result(30) is not None
        assert isinstance(step(worker).result(30), Committed)


def test_a_replica_that_cannot_plant_its_seed_ends_and_the_server_serves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlfabric.server.replica_service.planted", no_room)
    with fabric() as running:
        worker = running.worker(small_model())
        assert isinstance(step(worker).result(30), Committed)
        follower = mlfabric.register_as_replica(
            mlfabric.ReplicaOptions(scheduler=running.scheduler.address, replica_of="server-0", div_max_updates=8)
        )
        with pytest.raises(MemoryError, match=NO_ROOM):
            follower.wait(30)
        assert state_of(running, "replica-0") == "silent"
        assert isinstance(step(worker).result(30), Committed)
        monkeypatch.undo()
        with replica(running.scheduler.address, div_max_updates=8) as second:
            wait_for_replica(second, 2)


def test_a_replica_takes_the_place_of_a_server_that_cannot_go_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with Fabric() as running:
        failing = mlfabric.register_as_server(mlfabric.ServerOptions(scheduler=running.scheduler.address))
        worker = running.worker(small_model())
        assert isinstance(step(worker).result(30), Committed)
        with replica(running.scheduler.address, div_max_updates=8) as heir:
            wait_for_replica(heir, 1)
            monkeypatch.setitem(failing._service._does, Answer, no_room)
            step(worker).result(30)
            with pytest.raises(MemoryError, match=NO_ROOM):
                failing.wait(30)
            assert heir._service.server is not None
            assert isinstance(step(worker).result(30), Committed)


def test_a_worker_whose_daemon_cannot_go_on_hears_so_and_is_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fabric() as running:
        broken, steady = running.worker(small_model(), "w0"), running.worker(small_model(), "w1")
        broken.get()
        monkeypatch.setattr(broken._daemon._daemon.calls.transfers, "_push", no_room)
        gradients(broken._model)
        pushed = broken.push()
        assert "w0 cannot go on: MemoryError: no room for this" in str(pushed.result(30))
        with pytest.raises(mlfabric.FabricClosedError, match="w0 cannot go on: MemoryError: no room for this"):
            broken.get()
        wait_until(lambda: state_of(running, "w0") == "left", "it is waited for no longer")
        assert isinstance(step(steady).result(30), Committed)


def test_a_worker_whose_observer_raises_ends_with_that_error() -> None:
    def observer(_: object) -> None:
        raise KeyError("no such thing")

    with fabric() as running:
        worker = running.worker(small_model(), observer=observer)
        with pytest.raises(mlfabric.FabricClosedError, match="w0 cannot go on: KeyError: 'no such thing', in the obs"):
            train_on(worker)
        wait_until(lambda: state_of(running, "w0") == "left", "it is waited for no longer")


def test_a_call_that_a_daemon_cannot_begin_is_answered_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with fabric() as running:
        worker = running.worker(small_model())
        worker.get()
        monkeypatch.setattr(worker._daemon._daemon.calls._shards, "buffers", no_room)
        with pytest.raises(MemoryError, match=NO_ROOM):
            worker.get()
        wait_until(lambda: state_of(running, "w0") == "left", "it is waited for no longer")


def test_workers_whose_reduction_breaks_end_and_nobody_tries_again_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with Fabric() as running:
        pair = [
            running.worker(small_model(), f"w{i}", method=mlfabric.Method.ALL_REDUCE, workers=2, model_name="sums")
            for i in range(2)
        ]
        monkeypatch.setattr("mlfabric.worker_daemon.attempts.Attempt.run", no_room)
        told: list[str] = []

        def reduce(worker: Any) -> None:
            try:
                worker.all_reduce(torch.ones(4))
            except mlfabric.FabricClosedError as closed:
                told.append(str(closed))

        together(*(partial(reduce, worker) for worker in pair))
        assert sorted(told) == [f"w{i} cannot go on: MemoryError: {NO_ROOM}" for i in range(2)]
