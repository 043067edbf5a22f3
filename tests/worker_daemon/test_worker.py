"""The worker's door for training scripts, over a daemon that does what the test says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest
import torch

from mlfabric.errors import FabricClosedError, LayoutError, RefusedError, UsageError
from mlfabric.protocol import (
    Committed,
    Dropped,
    DropReason,
    Lost,
    ModelVersion,
    Outcome,
    ReduceOp,
    SamplesGranted,
    SamplesWanted,
    Welcome,
)
from mlfabric.samples import Samples
from mlfabric.specs import Mode
from mlfabric.worker_daemon.attempts import ReduceBuffers
from mlfabric.worker_daemon.sending import GivenUpError, Growth, Parcel
from mlfabric.worker_daemon.tensors import ModelTensors
from mlfabric.worker_daemon.thread import ThreadDaemon
from mlfabric.worker_daemon.worker import Worker

SIZE = 4


class ScriptedDaemon(ThreadDaemon):
    """Takes calls; the test resolves them. A model of version n holds n everywhere."""

    def __init__(self, size_bytes: int) -> None:
        self.pushes: list[tuple[Parcel, float, ModelVersion, Future[Outcome]]] = []
        self.gets: list[tuple[ModelVersion, Future[ModelVersion]]] = []
        self.left: list[tuple[str, float]] = []
        self.samples: list[Samples] = []
        self.dropped_samples: list[Samples] = []
        self.draws: list[tuple[SamplesWanted, Future[SamplesGranted]]] = []
        self._weights = np.zeros(size_bytes // 4, dtype=np.float32)

    def buffer(self) -> memoryview:
        return self._weights.data.cast("B")

    def join(self) -> Welcome:
        return Welcome(
            to="w",
            incarnation=1,
            epoch=1,
            tau_max=7,
            server="s",
            initialise=False,
            monitor_address="",
            reason="",
        )

    def push(
        self,
        parcel: Parcel,
        norm: float,
        computed_from: ModelVersion,
        get_into: memoryview | None,
        samples: Samples = (),
    ) -> tuple[Future[Outcome], Future[ModelVersion] | None]:
        outcome: Future[Outcome] = Future()
        self.samples.append(samples)
        self.pushes.append((parcel, norm, computed_from, outcome))
        return outcome, self.get(self.buffer(), ModelVersion(0, 0)) if get_into is not None else None

    def drop_samples(self, samples: Samples) -> None:
        self.dropped_samples.append(samples)

    def draw(self, wanted: SamplesWanted) -> Future[SamplesGranted]:
        self.draws.append((wanted, Future()))
        return self.draws[-1][1]

    def get(self, buffer: memoryview, min_version: ModelVersion) -> Future[ModelVersion]:
        got: Future[ModelVersion] = Future()
        self.gets.append((min_version, got))
        return got

    def reduce(self, buffers: ReduceBuffers, op: ReduceOp, together: int) -> Future[int]:
        buffers.result[: len(buffers.given)] = buffers.given
        reduced: Future[int] = Future()
        reduced.set_result(together)
        return reduced

    def grown(self, growth: Growth, ready_bytes: int) -> None:
        raise AssertionError("nothing grows here")

    def give_up(self, growth: Growth, reason: GivenUpError) -> None:
        raise AssertionError("nothing grows here")

    def leave(self, detail: str, drain_s: float) -> None:
        self.left.append((detail, drain_s))

    def bring(self, number: int) -> None:
        """Let the oldest get that is open have this version."""
        self._weights[:] = number
        next(got for _, got in self.gets if not got.done()).set_result(ModelVersion(1, number))


@pytest.fixture
def model() -> dict[str, torch.Tensor]:
    return {"w": torch.zeros(SIZE, requires_grad=True)}


@pytest.fixture
def daemon(model: dict[str, torch.Tensor]) -> ScriptedDaemon:
    return ScriptedDaemon(ModelTensors(model).layout.size_bytes)


@pytest.fixture
def worker(model: dict[str, torch.Tensor], daemon: ScriptedDaemon) -> Iterator[Worker]:
    with Worker("w", daemon, model, ModelTensors(model)) as worker:
        yield worker


def got(worker: Worker, daemon: ScriptedDaemon, number: int) -> ModelVersion:
    """Get while the daemon brings a version."""
    if not [g for _, g in daemon.gets if not g.done()]:
        worker._coming = daemon.get(daemon.buffer(), ModelVersion(0, 0))
    daemon.bring(number)
    return worker.get()


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
    daemon.get = lambda buffer, least, ask=daemon.get: (ask(buffer, least), daemon.bring(max(1, least.number)))[0]
    assert worker.get(min_version=5).number == 5
    assert [least for least, _ in daemon.gets] == [ModelVersion(0, 0), ModelVersion(1, 5)]


def test_a_get_says_which_version_it_waits_for(worker, daemon, monkeypatch, caplog) -> None:
    class Bring(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            daemon.bring(7)

    monkeypatch.setattr("mlfabric.worker_daemon.worker.SAID_AFTER_S", 0.01)
    got(worker, daemon, 3)
    worker._coming = daemon.get(daemon.buffer(), ModelVersion(0, 0))
    daemon.bring(4)
    log, bring = logging.getLogger("mlfabric.worker"), Bring()
    log.addHandler(bring)
    try:
        assert worker.get(min_version=5).number == 7
    finally:
        log.removeHandler(bring)
    assert "w waits for version 5 of the model, as get(min_version=5) asks; it was at version 4" in caplog.text


@pytest.mark.parametrize("given", [-1, True, 2.0, "3", ModelVersion(1, 3), 1 << 64])
def test_what_is_no_version_is_not_waited_for(worker, daemon, given) -> None:
    with pytest.raises(UsageError, match=r"min_version=.*; allowed: an integer, 0 or more"):
        worker.get(min_version=given)
    assert not daemon.gets


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

    coming = worker._coming = daemon.get(daemon.buffer(), ModelVersion(0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(coming, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.get()
    assert len(daemon.gets) == 1
    daemon.bring(5)
    assert worker.get().number == 5
    assert len(daemon.gets) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_goes_nowhere(worker, daemon, model, value: float) -> None:
    got(worker, daemon, 1)
    model["w"].grad = torch.tensor([1.0, value, 1.0, 1.0])
    outcome = worker.push().result(0)
    assert isinstance(outcome, Dropped)
    assert outcome.cause is DropReason.NOT_FINITE
    assert not daemon.pushes
    assert worker.drain().dropped == 1


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


def test_a_push_before_the_first_get_is_refused(worker, model) -> None:
    model["w"].grad = torch.ones(SIZE)
    with pytest.raises(UsageError, match="before the first get"):
        worker.push()
    assert model["w"].grad is not None


def test_another_model_is_refused(worker, daemon) -> None:
    with pytest.raises(LayoutError, match=r"w: float32\[2\] \(parameter\) against float32\[4\]"):
        worker.get({"w": torch.zeros(2, requires_grad=True)})
    assert not daemon.gets


def test_leaving_twice_leaves_once_and_says_why(model, daemon) -> None:
    def fails() -> None:
        with Worker("w", daemon, model, ModelTensors(model)):
            raise ValueError("it went wrong")

    with pytest.raises(ValueError, match="it went wrong"):
        fails()
    assert [detail for detail, _ in daemon.left] == ["ValueError: it went wrong"]


def test_a_model_that_is_coming_when_the_worker_leaves_is_not_installed_later(worker, daemon, model) -> None:
    def closed(buffer: memoryview, least: ModelVersion) -> Future[ModelVersion]:
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


def test_a_worker_that_cannot_join_is_not_made(model, daemon) -> None:
    def refuse() -> Welcome:
        raise RefusedError("no")

    daemon.join = refuse
    with pytest.raises(RefusedError):
        Worker("w", daemon, model, ModelTensors(model))


class SlowReducer(ScriptedDaemon):
    """Reduces when it is told to."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.reducing: list[Future[int]] = []

    def reduce(self, buffers: ReduceBuffers, op: ReduceOp, together: int) -> Future[int]:
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
    with Worker("w", slow, model, tensors, mode=Mode.ALL_REDUCE) as worker:
        for _ in range(3):
            worker.all_reduce_async(torch.ones(1))
    assert waited_for == slow.reducing[:1]
    assert len(slow.reducing) == 3
