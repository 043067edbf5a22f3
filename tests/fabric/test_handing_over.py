"""Partial rounds without waiting: a step hands its gradient over; those of later steps are added up meanwhile."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch

import mlfabric
from mlfabric.model.round_options import MOST_KEPT
from tests.fabric.harness import Fabric, wait_until
from tests.fabric.several import together

SIZE = 6000


class Value(torch.nn.Module):
    """One parameter; all of its elements are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(SIZE))

    @property
    def value(self) -> float:
        return float(self.w.detach().mean())


def step(worker: Any, model: Value, gradient: float) -> None:
    model.w.grad = torch.full_like(model.w, gradient)
    worker.step()


@pytest.fixture
def pair() -> Any:
    """Two workers whose rounds have both, and their models."""
    models, workers = [Value(), Value()], dict[int, Any]()
    with Fabric() as running:

        def join(rank: int) -> None:
            optimizer, settings = torch.optim.SGD(models[rank].parameters(), lr=1.0), running.settings(f"w{rank}")
            options: dict[str, Any] = {"method": "partial", "quorum": "full", "wait": False, "workers": 2}
            workers[rank] = mlfabric.wrap(optimizer, models[rank], settings=settings, **options)

        together(*(lambda rank=rank: join(rank) for rank in range(2)))
        yield running, [workers[0], workers[1]], models
        for worker in workers.values():
            worker.leave()


def settled(running: Fabric, version: int) -> None:
    rounds = running.scheduler.state.reductions["model"]
    wait_until(lambda: rounds.version == version, f"round {version} is settled")


def finished(workers: list[Any], version: int) -> None:
    def have_it() -> bool:
        for worker in workers:
            worker.finish()
        return all(worker.version == version for worker in workers)

    wait_until(have_it, f"all have version {version}")


def test_a_step_returns_while_its_gradient_is_on_its_way_and_later_ones_are_added_up(pair: Any) -> None:
    running, (fast, slow), (model, other) = pair
    for gradient in (1.0, 2.0, 4.0):
        step(fast, model, gradient)
    assert (fast.waiting, fast.version, fast.last) == (3, 0, None)

    step(slow, other, 3.0)
    settled(running, 1)
    finished([fast, slow], 1)
    assert model.value == other.value == -(1.0 + 3.0) / 2

    step(fast, model, 8.0)
    assert (fast.tally.included, fast.waiting) == (1, 3)
    assert fast.last.included
    step(slow, other, 6.0)
    settled(running, 2)
    finished([fast, slow], 2)
    assert model.value == other.value == -2.0 - (2.0 + 4.0 + 8.0 + 6.0) / 4


def test_a_worker_with_many_gradients_in_no_round_waits(pair: Any) -> None:
    _, (fast, slow), (model, other) = pair
    for _ in range(MOST_KEPT - 1):
        step(fast, model, 1.0)
    going_on = threading.Thread(target=lambda: step(fast, model, 1.0), daemon=True)
    going_on.start()
    going_on.join(0.2)
    assert going_on.is_alive()

    step(slow, other, 1.0)
    going_on.join(10.0)
    assert not going_on.is_alive()
    assert (fast.tally.included, fast.waiting) == (1, MOST_KEPT - 1)


def test_what_is_not_finite_takes_those_with_it_that_it_was_added_to(pair: Any) -> None:
    running, (fast, slow), (model, other) = pair
    for gradient in (1.0, 2.0, math.nan, 4.0):
        step(fast, model, gradient)
    assert (fast.tally.dropped, fast.waiting) == (2, 2)

    step(slow, other, 3.0)
    settled(running, 1)
    finished([fast, slow], 1)
    assert model.value == -(1.0 + 3.0) / 2
