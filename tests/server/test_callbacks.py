"""Callbacks of a server and of a replica: what they are told, what they may read, from when on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mlfabric
from mlfabric.errors import UsageError
from mlfabric.fail_stop import FailStop
from mlfabric.protocol import ModelVersion
from mlfabric.server.callbacks import Callbacks
from mlfabric.server.store import ModelStore
from tests.fabric.harness import Fabric, fabric, gradients, small_model, spec_of, wait_until
from tests.fabric.replicas import RULES, replica, trainers, version_of, wait_for_gate, wait_for_replica
from tests.fabric.test_promotion import primary, wait_until_followed, wait_until_promoted
from tests.server.stage import commit, update


@pytest.fixture
def running():
    with fabric() as made:
        yield made


class Notes:
    """What a server's callbacks were told, with the weights that they could read."""

    def __init__(self, server: mlfabric.Server) -> None:
        self.commits: list[tuple[str, int, float]] = []
        self.gets: list[tuple[str, int, float]] = []
        self.views: list[mlfabric.ModelView] = []
        server.register_update_callback(self._committed)
        server.register_request_callback(self._requested)

    def _committed(self, model: str, commit: mlfabric.Commit, view: mlfabric.ModelView) -> None:
        assert view.version == commit.version
        self.commits.append((model, commit.version.number, total(view)))
        self.views.append(view)

    def _requested(self, model: str, get: mlfabric.GetId, view: mlfabric.ModelView) -> None:
        self.gets.append((get.worker, view.version.number, total(view)))
        self.views.append(view)


def total(view: mlfabric.ModelView) -> float:
    """Return the sum of all elements of a model."""
    return sum(tensor.double().sum().item() for tensor in view.tensors.values())


def total_of(model: torch.nn.Module) -> float:
    return sum(tensor.detach().double().sum().item() for tensor in model.parameters())


def train(worker: Any, model: torch.nn.Module, steps: int) -> list[float]:
    """Take steps; return the sum of all weights after each."""
    found = []
    for step in range(steps):
        worker.get()
        gradients(model, step)
        worker.push().result(10)
        worker.get()
        found.append(total_of(model))
    return found


def test_a_servers_callbacks_read_the_version_of_every_commit_and_every_get(running: Fabric) -> None:
    notes, model = Notes(running.servers[0]), small_model()
    found = dict(enumerate(train(running.worker(model), model, 3), start=1))
    assert [number for _, number, _ in notes.commits] == [1, 2, 3]
    assert {worker for worker, _, _ in notes.gets} == {"w0"}
    assert {number for _, number, _ in notes.gets} >= {1, 2, 3}
    for _, number, seen in (*notes.commits, *notes.gets):
        assert number == 0 or seen == pytest.approx(found[number])


def test_a_view_is_of_no_use_after_its_callback(running: Fabric) -> None:
    notes, model = Notes(running.servers[0]), small_model()
    train(running.worker(model), model, 1)
    assert len(notes.views) >= 2
    for view in notes.views:
        with pytest.raises(UsageError, match="clone"):
            _ = view.tensors


def test_a_callback_is_in_force_when_it_is_registered_and_hears_nothing_from_before(running: Fabric) -> None:
    model = small_model()
    worker = running.worker(model)
    train(worker, model, 2)
    notes = Notes(running.servers[0])
    train(worker, model, 1)
    assert [number for _, number, _ in notes.commits] == [3]


def test_a_view_of_what_a_wrapped_adam_trains_has_the_model_s_tensors_and_no_others(running: Fabric) -> None:
    names: list[str] = []
    model = small_model()
    running.servers[0].register_update_callback(lambda _model, _commit, view: names.extend(view.tensors))
    optimizer = mlfabric.wrap(torch.optim.Adam(model.parameters()), model, settings=running.settings())
    gradients(model)
    optimizer.step()
    optimizer.finish()
    optimizer.worker.leave()
    assert names == [name for name, _ in model.named_parameters()]


@pytest.fixture
def store() -> ModelStore:
    """Return a store of four zeros."""
    made = ModelStore(spec_of({"w": torch.zeros(4, requires_grad=True)}))
    made.initialise(bytes(16))
    return made


def test_updates_that_are_committed_together_are_told_one_by_one_at_the_version_after_the_last(
    store: ModelStore,
) -> None:
    store.apply_sum(memoryview(bytearray(np.full(4, 1.5, dtype=np.float32))), [0.1, 0.1])
    told = []
    callbacks = Callbacks(FailStop())
    callbacks.of_updates.append(lambda _, commit, view: told.append((commit.update, view.version, total(view))))
    callbacks.committed("model", store, (commit(update("a"), 1), commit(update("b"), 2)))
    assert told == [(update("a"), ModelVersion(1, 2), 6.0), (update("b"), ModelVersion(1, 2), 6.0)]


def test_a_version_that_is_reached_again_is_told_once(store: ModelStore) -> None:
    told = []
    callbacks = Callbacks(FailStop())
    callbacks.of_versions.append(lambda model, view: told.append((model, *view.version)))
    for version in (ModelVersion(1, 0), ModelVersion(1, 0), ModelVersion(2, 0)):
        callbacks.reached("model", store, version)
    callbacks.reached("other", store, ModelVersion(1, 0))
    assert told == [("model", 1, 0), ("model", 2, 0), ("other", 1, 0)]


@pytest.mark.parametrize("elements", [64, 100_000], ids=["in the loop", "in a thread"])
def test_a_replicas_callback_is_called_once_for_each_version_that_it_reaches(elements: int) -> None:
    with Fabric() as made:
        server = made.server()
        primary: dict[int, torch.Tensor] = {}
        server.register_update_callback(
            lambda _, commit, view: primary.update({view.version.number: view.tensors["weights"].clone()})
        )
        with (
            trainers(made, RULES["plain"], count=1, elements=elements) as (trainer,),
            replica(made.scheduler.address, div_max_updates=3) as follower,
        ):
            reached: list[tuple[int, torch.Tensor]] = []
            follower.register_update_callback(
                lambda _, view: reached.append((view.version.number, view.tensors["weights"].clone()))
            )
            wait_for_gate(server)
            for _ in range(20):
                trainer.step()
            wait_for_replica(follower, 17)
            wait_until(lambda: reached[-1][0] == version_of(follower), "the last version is told")
            numbers = [number for number, _ in reached]
            assert numbers == sorted(set(numbers))
            assert len(numbers) > 3
            assert all(torch.allclose(weights, primary[number]) for number, weights in reached if number)


@pytest.mark.processes
def test_a_replica_in_its_servers_place_goes_on_telling_versions() -> None:
    with (
        Fabric() as made,
        primary(made) as first,
        trainers(made, RULES["plain"], count=1) as (trainer,),
        replica(made.scheduler.address, div_max_updates=2) as follower,
    ):
        versions: list[ModelVersion] = []
        follower.register_update_callback(lambda _, view: versions.append(view.version))
        wait_until_followed(made)
        for _ in range(5):
            trainer.step()
        first.kill()
        wait_until_promoted(made, epoch=2)
        for _ in range(5):
            trainer.step()
        newest = trainer.worker.get()
        wait_until(lambda: versions[-1] == newest, "all versions are told")
        assert versions == sorted(set(versions))
        assert {version.epoch for version in versions} == {made.version(n, 0).epoch for n in (1, 2)}
