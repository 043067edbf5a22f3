"""The worker's door for training scripts, over a daemon that does what the test says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest
import torch

from mlfabric.errors import FabricClosedError, UsageError
from mlfabric.model.specs import Method
from mlfabric.protocol import (
    Committed,
    Dropped,
    DropReason,
    Lost,
    ModelVersion,
    Outcome,
)
from mlfabric.worker_daemon.contributions import Contribution
from mlfabric.worker_daemon.tensors import ModelTensors
from mlfabric.worker_daemon.worker import Worker
from tests.worker_daemon.conftest import SIZE, ScriptedDaemon, got


@pytest.fixture
def worker(model: dict[str, torch.Tensor], daemon: ScriptedDaemon) -> Iterator[Worker]:
    with Worker("w", daemon, model, ModelTensors(model)) as worker:
        yield worker


def test_a_get_installs_the_model_and_returns_its_version(worker, daemon, model) -> None:
    assert got(worker, daemon, 3) == ModelVersion(1, 3)
    assert model["w"].tolist() == [3.0] * SIZE
    assert (worker.version, worker.tau_max) == (ModelVersion(1, 3), 7)


def test_a_push_takes_the_gradients_and_says_what_they_were_computed_from(worker, daemon, model) -> None:
    got(worker, daemon, 3)
    model["w"].grad = torch.full((SIZE,), 2.0)
    handle = worker.push()
    (parcel, norm, computed_from, outcome) = daemon.pushes[0]
    assert model["w"].grad is None
    assert np.frombuffer(b"".join(parcel.pieces), dtype=np.float32).tolist() == [2.0] * SIZE
    assert norm == pytest.approx(4.0)
    assert computed_from == ModelVersion(1, 3)
    assert not handle.done()
    with pytest.raises(TimeoutError):
        handle.result(0)
    outcome.set_result(Committed(version=ModelVersion(1, 4), tau=0))
    assert handle.result(0) == Committed(version=ModelVersion(1, 4), tau=0)


def test_the_get_after_a_push_takes_the_model_that_the_push_asked_for(worker, daemon, model) -> None:
    got(worker, daemon, 3)
    model["w"].grad = torch.ones(SIZE)
    worker.push()
    asked = len(daemon.gets)
    daemon.bring(4)
    assert worker.get().number == 4
    assert len(daemon.gets) == asked


def test_a_get_asks_again_until_the_version_is_new_enough(worker, daemon) -> None:
    daemon.get = lambda least, ask=daemon.get: (ask(least), daemon.bring(max(1, least.number)))[0]
    assert worker.get(min_version=5).number == 5
    assert [least for least, _ in daemon.gets] == [ModelVersion(0, 0), ModelVersion(1, 5)]


def test_a_get_says_which_version_it_waits_for(worker, daemon, monkeypatch, caplog) -> None:
    class Bring(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            daemon.bring(7)

    monkeypatch.setattr("mlfabric.worker_daemon.worker.SAID_AFTER_S", 0.01)
    got(worker, daemon, 3)
    worker._coming = daemon.get(ModelVersion(0, 0))
    daemon.bring(4)
    log, bring = logging.getLogger("mlfabric.worker"), Bring()
    log.addHandler(bring)
    try:
        assert worker.get(min_version=5).number == 7
    finally:
        log.removeHandler(bring)
    assert "w waits for version 5 of the model, as get(min_version=5) asks; it was at version 4" in caplog.text


def test_a_push_without_a_gradient_is_refused_and_says_nothing(worker, daemon, model) -> None:
    got(worker, daemon, 3)
    with pytest.raises(UsageError, match="push without a gradient"):
        worker.push(samples=[(0, 3)])
    with pytest.raises(UsageError, match="push without a gradient"):
        worker.exchange()
    assert not daemon.pushes
    model["w"].grad = torch.ones(SIZE)
    worker.push()
    assert daemon.samples == [()]


def test_an_exchange_installs_the_model_that_the_push_before_it_brought(worker, daemon, model) -> None:
    got(worker, daemon, 1)
    model["w"].grad = torch.ones(SIZE)
    worker.exchange()
    assert worker.version.number == 1
    daemon.bring(2)
    model["w"].grad = torch.ones(SIZE)
    worker.exchange()
    assert (worker.version.number, daemon.pushes[1][2].number) == (2, 1)
    assert model["w"].tolist() == [2.0] * SIZE


def test_an_interrupted_get_goes_on_waiting_for_the_model_that_is_coming(worker, daemon, model, monkeypatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    coming = worker._coming = daemon.get(ModelVersion(0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(coming, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.get()
    assert len(daemon.gets) == 1
    daemon.bring(5)
    assert worker.get().number == 5
    assert len(daemon.gets) == 1


def test_the_tally_counts_every_outcome_once(worker, daemon, model) -> None:
    outcomes: list[Outcome] = [
        Committed(version=ModelVersion(1, 2), tau=3),
        Dropped(cause=DropReason.DELAY_BOUND),
        Lost(detail="gone"),
        Committed(version=ModelVersion(1, 3), tau=1),
    ]
    got(worker, daemon, 1)
    for outcome in outcomes:
        model["w"].grad = torch.ones(SIZE)
        worker.push()
        daemon.bring(1)
        daemon.pushes[-1][3].set_result(outcome)
    tally = worker.drain()
    assert (tally.committed, tally.dropped, tally.lost) == (2, 1, 1)
    assert (tally.delay_sum, tally.delay_max) == (4, 3)


def test_draining_gives_up_after_its_time(worker, daemon, model) -> None:
    got(worker, daemon, 1)
    model["w"].grad = torch.ones(SIZE)
    worker.push()
    with pytest.raises(TimeoutError):
        worker.drain(0)


def test_leaving_twice_leaves_once_and_says_why(model, daemon) -> None:
    def fails() -> None:
        with Worker("w", daemon, model, ModelTensors(model)):
            raise ValueError("it went wrong")

    with pytest.raises(ValueError, match="it went wrong"):
        fails()
    assert [detail for detail, _ in daemon.left] == ["ValueError: it went wrong"]


def test_a_model_that_is_coming_when_the_worker_leaves_is_not_installed_later(worker, daemon, model) -> None:
    def closed(least: ModelVersion) -> Future[ModelVersion]:
        raise FabricClosedError("left")

    got(worker, daemon, 1)
    model["w"].grad = torch.ones(SIZE)
    worker.push()
    daemon.bring(2)
    worker.leave()
    daemon.get = closed
    with pytest.raises(FabricClosedError):
        worker.get()
    assert model["w"].tolist() == [1.0] * SIZE


class SlowReducer(ScriptedDaemon):
    """Reduces when it is told to."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.reducing: list[Future[int]] = []

    def reduce(self, contribution: Contribution) -> Future[int]:
        self.reducing.append(Future())
        return self.reducing[-1]


def test_a_reduction_that_is_begun_waits_for_the_first_one_when_there_are_many(model, monkeypatch) -> None:
    slow, tensors = SlowReducer(SIZE * 4), ModelTensors(model)
    waited_for: list[Future[int]] = []

    def wait(open_ones: list[Future[int]]) -> None:
        waited_for.extend(open_ones)
        assert len(slow.reducing) == 2, "no more is begun before one is over"
        open_ones[0].set_result(1)

    monkeypatch.setattr("mlfabric.worker_daemon.worker.MOST_REDUCING", 2)
    monkeypatch.setattr("mlfabric.worker_daemon.worker.futures.wait", wait)
    with Worker("w", slow, model, tensors, method=Method.ALL_REDUCE) as worker:
        for _ in range(3):
            worker.all_reduce_async(torch.ones(1))
    assert waited_for == slow.reducing[:1]
    assert len(slow.reducing) == 3
