"""Gradients that leave for a round while backward still makes them: the same steps, and nothing half made in a sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

import mlfabric
from mlfabric.errors import UsageError
from mlfabric.worker_daemon.rest_of_backward import EarlyOffers
from tests.fabric.harness import Fabric, gradients, small_model, wait_until
from tests.fabric.several import together
from tests.fabric.test_round_methods import caught_up, leave, same, train_all

STEPS = 6
PATIENT_S = 60.0


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every gradient offered with its first tensor, whatever was learnt of backward."""
    monkeypatch.setattr(EarlyOffers, "patience_s", lambda self, tensor, now_ns: PATIENT_S)


def joined(running: Fabric, model: torch.nn.Module, rank: int = 0, **options: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    options = {"method": "all-reduce", "overlap": True, **options}
    return mlfabric.wrap(optimizer, model, settings=running.settings(f"w{rank}"), **options)


def team(running: Fabric, models: Sequence[torch.nn.Module], **options: Any) -> list[Any]:
    """Let a worker join for each model."""
    joining: dict[int, Any] = {}

    def join(rank: int) -> None:
        joining[rank] = joined(running, models[rank], rank, workers=len(models), **options)

    together(*(partial(join, rank) for rank in range(len(models))))
    return [joining[rank] for rank in range(len(models))]


def trained(models: list[Any], **options: Any) -> list[Any]:
    """Train a model at each of some workers; return what became of the gradients."""
    tallies: list[Any] = []

    def work(rank: int) -> None:
        worker = joined(running, models[rank], rank, workers=len(models), **options)
        for step in range(STEPS):
            gradients(models[rank], 10 * step + rank)
            worker.step()
        tallies.append(worker.tally)
        worker.leave()

    with Fabric() as running:
        together(*(partial(work, rank) for rank in range(len(models))))
    return tallies


def test_training_with_overlap_makes_the_same_steps_as_without() -> None:
    results = []
    for overlap in (False, True):
        models = [small_model() for _ in range(2)]
        assert [tally.included for tally in trained(models, overlap=overlap)] == [STEPS, STEPS]
        results += models
    assert same(results)


@pytest.mark.parametrize("options", [{"method": "elastic", "at_least": 0.3}, {"method": "partial", "quorum": "solo"}])
def test_all_have_the_same_weights(options: dict[str, Any]) -> None:
    models = [small_model(seed) for seed in range(3)]
    with Fabric() as running:
        workers = team(running, models, **options)
        train_all(workers, models, STEPS)
        caught_up(running, workers)
        assert same(models)
        leave(workers)


class Parts(torch.nn.Module):
    """Two parameters whose gradients are given one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (torch.nn.Parameter(torch.zeros(6000)) for _ in range(2))

    @property
    def values(self) -> tuple[float, float]:
        return float(self.first.detach()[0]), float(self.last.detach()[-1])


def give(worker: Any, parameter: torch.nn.Parameter, value: float) -> None:
    parameter.grad = torch.full_like(parameter, value)
    worker.ready(parameter)


def has_begun(running: Fabric, workers: int) -> None:
    rounds = running.scheduler.state.reductions["model"]
    wait_until(lambda: rounds.running == workers, "a round is under way")


@pytest.fixture
def pair() -> Any:
    """Two workers of an elastic job, and their models."""
    with Fabric() as running:
        models = [Parts(), Parts()]
        workers = team(running, models, method="elastic")
        yield running, workers, models
        leave(workers)


def complete(worker: Any, model: Parts) -> Any:
    give(worker, model.first, 1.0)
    worker.step()
    return worker.last


def test_a_round_begins_before_its_gradients_are_complete(pair) -> None:
    running, workers, models = pair
    for worker, model in zip(workers, models, strict=True):
        give(worker, model.last, 1.0)
    has_begun(running, 2)
    together(*(partial(complete, *each) for each in zip(workers, models, strict=True)))
    assert [worker.last.workers for worker in workers] == [2, 2]
    assert models[0].values == models[1].values == (pytest.approx(-0.1), pytest.approx(-0.1))


def break_off(worker: Any, model: Parts) -> None:
    give(worker, model.first, math.nan)
    worker.step()
    assert "NaN" in worker.last.reason


def clip(worker: Any, model: Parts) -> None:
    gradient = model.last.grad
    assert gradient is not None
    gradient.mul_(0.5)
    with pytest.raises(UsageError, match=r"gradient of last was changed .* wrap without overlap"):
        complete(worker, model)


def change_rate(worker: Any, model: Parts) -> None:
    worker.param_groups[0]["lr"] = 0.2
    with pytest.raises(UsageError, match="group was changed after backward"):
        complete(worker, model)
    worker.param_groups[0]["lr"] = 0.1


def accumulate(worker: Any, model: Parts) -> None:
    with pytest.raises(UsageError, match=r"last got a gradient again .* accumulating\(\)"):
        worker.ready(model.last)


def skip(worker: Any, model: Parts) -> None:
    give(worker, model.last, 3.0)
    assert "skipped" in worker.last.reason
    break_off(worker, model)


@pytest.mark.parametrize("fault", [break_off, clip, change_rate, accumulate, skip])
def test_the_round_is_made_without_a_gradient_that_will_never_be_whole(
    pair, fault: Callable[[Any, Parts], None]
) -> None:
    running, workers, models = pair
    for worker, model in zip(workers, models, strict=True):
        give(worker, model.last, 1.0)
    has_begun(running, 2)
    together(partial(complete, workers[0], models[0]), partial(fault, workers[1], models[1]))
    assert workers[0].last.workers == 1
    assert workers[1].tally.dropped >= 1
    for worker, model in zip(workers, models, strict=True):
        give(worker, model.last, 1.0)
    together(*(partial(complete, *each) for each in zip(workers, models, strict=True)))
    caught_up(running, workers)
    assert models[0].values == models[1].values
    assert same(models)


def test_who_takes_too_long_is_not_waited_for_and_joins_the_next_round(pair, monkeypatch) -> None:
    running, workers, models = pair
    give(workers[0], models[0].last, 1.0)
    monkeypatch.setattr(EarlyOffers, "patience_s", lambda self, tensor, now_ns: 0.05)
    give(workers[1], models[1].last, 1.0)
    assert complete(workers[0], models[0]).workers == 1
    late = complete(workers[1], models[1])
    assert late.included
    assert late.delay == 1
    caught_up(running, workers)
    assert same(models)


def test_gradients_accumulate_where_the_script_says_so() -> None:
    model = small_model()
    inputs = torch.ones(2, 4)
    with Fabric() as running:
        worker = joined(running, model)
        with worker.accumulating():
            model(inputs).sum().backward()
        model(inputs).sum().backward()
        bias = list(model.parameters())[-1]
        assert bias.grad is not None
        wanted = bias.detach() - 0.1 * bias.grad
        worker.step()
        assert torch.allclose(bias, wanted)
        worker.leave()
