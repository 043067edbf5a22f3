"""What a worker says of samples, and what it draws: exact actions, and the door for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from mlfabric.errors import UsageError
from mlfabric.model.samples import Samples
from mlfabric.model.specs import Method
from mlfabric.protocol import (
    Committed,
    DrawAnswer,
    Dropped,
    DropReason,
    ModelVersion,
    Resolve,
    SamplesDropped,
    SamplesGranted,
    SamplesWanted,
)
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.sampler import FabricSampler
from mlfabric.worker_daemon.tensors import ModelTensors
from mlfabric.worker_daemon.worker import Worker
from tests.worker_daemon.conftest import ScriptedDaemon, got
from tests.worker_daemon.stage import Stage, answered, asks, push, update

COMMITTED = Committed(version=ModelVersion(1, 1), tau=0)
DROPPED = Dropped(cause=DropReason.DELAY_BOUND)


def says(*samples: tuple[int, int]) -> act.Request:
    return asks(SamplesDropped(worker="a", model="net", samples=samples))


def wish(serial: int = 1, **fields: object) -> SamplesWanted:
    return SamplesWanted(worker="a", model="net", serial=serial, count=4, limit=99, **fields)  # type: ignore[arg-type]


def granted(*samples: tuple[int, int], serial: int = 1) -> SamplesGranted:
    return SamplesGranted(to="a", serial=serial, samples=samples, answer=DrawAnswer.GRANTED, reason="")


# The state machine


def test_an_update_that_is_dropped_says_what_it_was_computed_from() -> None:
    stage = Stage()
    stage.tell(replace(push(0), samples=((0, 4),)))
    settle = act.Settle(update=update(0), outcome=DROPPED, reason="", samples=((0, 4),))
    settled = stage.tell(Resolve(to="a", update=update(0), outcome=DROPPED, reason=""))
    assert settled == [settle, says((0, 4))]
    assert stage.state.holds().dropped == ((0, 4),)


def test_an_update_that_is_committed_says_nothing_more() -> None:
    stage = Stage()
    stage.tell(replace(push(0), samples=((0, 4),)))
    assert len(stage.tell(answered(0, COMMITTED))) == 1
    assert stage.state.holds().dropped == ()


def test_what_is_not_even_pushed_is_said_to_be_dropped() -> None:
    stage = Stage()
    assert stage.tell(act.SamplesGivenUp(model="net", samples=((0, 4),))) == [says((0, 4))]


def test_what_is_drawn_is_held_until_it_is_trained_on_or_dropped() -> None:
    stage = Stage()
    assert stage.tell(wish()) == [asks(wish())]
    answer = granted((0, 4), (6, 12))
    assert stage.tell(answer) == [act.HandOver(granted=answer)]
    stage.tell(replace(push(0), samples=((0, 4),)))
    stage.tell(replace(push(1), samples=((6, 8),)))
    assert stage.state.holds().drawn == ((0, 4), (6, 12))
    stage.tell(answered(0, COMMITTED), answered(1, DROPPED))
    assert stage.state.holds().drawn == ((8, 12),)
    stage.tell(wish(2, returned=((8, 10),)))
    assert stage.state.holds().drawn == ((10, 12),)


def test_a_wish_without_an_answer_is_repeated_to_a_scheduler_that_begins_anew() -> None:
    stage = Stage()
    stage.tell(wish())
    stage.tell(act.TermBegan(term=2))
    assert list(stage.state.drawing.open()) == [wish()]
    stage.tell(granted((0, 4)))
    assert list(stage.state.drawing.open()) == []


def test_an_answer_to_an_earlier_wish_is_ignored() -> None:
    stage = Stage()
    stage.tell(wish(2))
    assert stage.tell(granted((0, 4), serial=1)) == []
    assert stage.state.holds().drawn == ()


# The door for scripts


@pytest.fixture
def worker(model: dict[str, torch.Tensor], daemon: ScriptedDaemon) -> Iterator[Worker]:
    with Worker("a", daemon, model, ModelTensors(model)) as worker:
        got(worker, daemon, 0)
        yield worker
        for *_, outcome in daemon.pushes:
            if not outcome.done():
                outcome.set_result(COMMITTED)


def backward(model: dict[str, torch.Tensor], value: float = 1.0) -> None:
    model["w"].grad = torch.full((4,), value)


def test_each_push_has_what_was_said_since_the_one_before(
    worker: Worker, daemon: ScriptedDaemon, model: dict[str, torch.Tensor]
) -> None:
    worker.trains_on([(4, 8)])
    backward(model)
    worker.push(samples=[(0, 4)])
    backward(model)
    daemon.bring(1)
    worker.exchange()
    assert daemon.samples == [((0, 8),), ()]


def test_what_is_not_finite_is_dropped_with_its_samples(
    worker: Worker, daemon: ScriptedDaemon, model: dict[str, torch.Tensor]
) -> None:
    backward(model, float("nan"))
    worker.push(samples=[(0, 4)])
    assert (daemon.samples, daemon.dropped_samples) == ([], [((0, 4),)])


def test_samples_out_of_range_are_refused_and_nothing_is_pushed(
    worker: Worker, daemon: ScriptedDaemon, model: dict[str, torch.Tensor]
) -> None:
    backward(model)
    with pytest.raises(UsageError, match="allowed: 0 <= start < stop"):
        worker.push(samples=[(4, 4)])
    assert daemon.pushes == []
    assert model["w"].grad is not None


# The sampler's order


def sampler(worker: Worker, **options: object) -> FabricSampler:
    return FabricSampler(worker, 10, batch_size=4, **options)  # type: ignore[arg-type]


def test_each_epoch_has_an_order_of_its_own_which_is_the_same_everywhere(worker: Worker) -> None:
    first, again, other = sampler(worker, seed=1), sampler(worker, seed=1), sampler(worker, seed=2)
    epochs = [first.indices(((10 * e, 10 * e + 10),)) for e in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert again.indices(((15, 25),)) == epochs[1][5:] + epochs[2][:5]
    assert other.indices(((0, 10),)) != epochs[0]


def test_without_shuffling_the_order_is_that_of_the_data(worker: Worker) -> None:
    assert sampler(worker, shuffle=False).indices(((8, 12), (19, 20))) == [8, 9, 0, 1, 9]


@pytest.mark.parametrize("options", [{"size": 0}, {"batch_size": 0}, {"epochs": 0}, {"size": 2**61, "epochs": 3}])
def test_what_makes_no_sense_is_refused(worker: Worker, options: dict[str, int]) -> None:
    given = {"size": 10, "batch_size": 4, **options}
    with pytest.raises(UsageError, match="allowed"):
        FabricSampler(worker, given.pop("size"), **given)  # type: ignore[arg-type]


def test_a_loader_that_gives_more_than_was_drawn_is_refused(worker: Worker) -> None:
    samples: Samples = ()
    with pytest.raises(UsageError, match="batch_sampler="):
        next(sampler(worker).over([samples]))


def test_an_all_reduce_job_has_no_sampler(model: dict[str, torch.Tensor], daemon: ScriptedDaemon) -> None:
    with (
        Worker("a", daemon, model, ModelTensors(model), Method.ALL_REDUCE) as worker,
        pytest.raises(UsageError, match="all_reduce"),
    ):
        sampler(worker)
