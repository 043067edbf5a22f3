"""Rounds without a server through a whole fabric: workers step by themselves and keep the same weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

import mlfabric
from tests.fabric.harness import Fabric, gradients, small_model, wait_until
from tests.fabric.several import together

ROUNDS = 8
TRIES = 10
ANY: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5),
}


def same(models: Sequence[torch.nn.Module]) -> bool:
    """Tell whether all models have the same bits."""
    first = models[0].state_dict()
    return all(torch.equal(first[name], value) for m in models[1:] for name, value in m.state_dict().items())


def joined(running: Fabric, rank: int, model: torch.nn.Module, kind: str = "momentum", **options: Any) -> Any:
    optimizer = ANY[kind](model.parameters())
    return mlfabric.wrap(optimizer, model, settings=running.settings(f"w{rank}"), **options)


def caught_up(running: Fabric, workers: list[Any]) -> int:
    """Wait until all workers have applied all settled rounds; return how many those are."""
    rounds = running.scheduler.state.reductions["model"]

    def all_have_it() -> bool:
        for worker in workers:
            worker.finish()
        return {worker.version for worker in workers} == {rounds.version}

    wait_until(all_have_it, "everybody has the newest version")
    return int(rounds.version)


@pytest.mark.parametrize("kind", ANY)
@pytest.mark.parametrize("method", ["all-reduce", "elastic", "partial"])
def test_all_have_the_same_weights(method: str, kind: str) -> None:
    models = [small_model(seed) for seed in range(3)]
    options = {"at_least": 0.3} if method == "elastic" else {}
    workers: dict[int, Any] = {}
    steps = Counter[int]()

    def work(rank: int) -> None:
        wrapped = workers[rank] = joined(running, rank, models[rank], kind, method=method, workers=3, **options)
        while wrapped.version < ROUNDS:
            gradients(models[rank], 10 * wrapped.version + rank)
            wrapped.step()
            steps[rank] += 1

    with Fabric() as running:
        together(*(partial(work, rank) for rank in range(3)))
        version = caught_up(running, list(workers.values()))
        for worker in workers.values():
            worker.leave()
    assert same(models)
    for rank, worker in workers.items():
        assert worker.tally.included + worker.tally.dropped + worker.waiting == steps[rank]
    if method == "all-reduce":
        assert version == ROUNDS


def step(worker: Any, model: torch.nn.Module, seed: int) -> Any:
    """Make one step; return what became of its gradient."""
    gradients(model, seed)
    worker.step()
    return worker.last


def train(worker: Any, model: torch.nn.Module, version: int) -> None:
    """Make steps until the model has this version."""
    while worker.version < version:
        step(worker, model, worker.version)


def train_all(workers: list[Any], models: Sequence[torch.nn.Module], version: int) -> None:
    """Have all workers make steps, each in a thread of its own."""
    together(*(partial(train, *each, version) for each in zip(workers, models, strict=True)))


def team(running: Fabric, models: Sequence[torch.nn.Module], **options: Any) -> list[Any]:
    """Let a worker of an elastic job join for each model."""
    joining: dict[int, Any] = {}

    def join(rank: int) -> None:
        joining[rank] = joined(
            running, rank, models[rank], method="elastic", workers=len(models), at_least=0.3, **options
        )

    together(*(partial(join, rank) for rank in range(len(models))))
    return [joining[rank] for rank in range(len(models))]


def leave(workers: list[Any]) -> None:
    for worker in workers:
        worker.leave()


def test_who_joins_later_has_weights_and_momentum_of_the_others() -> None:
    models = [small_model(seed) for seed in range(2)]
    with Fabric() as running:
        first = joined(running, 0, models[0], method="elastic", at_least=0.3)
        train(first, models[0], 5)
        second = joined(running, 1, models[1], method="elastic", at_least=0.3)
        assert second.version == 5
        assert same(models)
        train_all([first, second], models, 9)
        caught_up(running, [first, second])
        assert same(models)
        leave([first, second])


def test_who_is_overdue_joins_a_later_round() -> None:
    models = [small_model(seed) for seed in range(3)]
    with Fabric() as running:
        workers = team(running, models, tau_max=100)
        train_all(workers, models, 3)
        for _ in range(TRIES):
            version = caught_up(running, workers)
            gradients(models[2], 7)
            train_all(workers[:2], models[:2], version + 2)
            together(workers[2].step, *(partial(train, workers[rank], models[rank], version + 4) for rank in range(2)))
            late = workers[2].last
            if late.included:  # what comes while a round is being made is given up, as there is time for a new one
                break
        assert late.included
        assert late.delay >= 2
        caught_up(running, workers)
        assert same(models)
        leave(workers)


def test_who_is_too_late_is_told_so_and_fetches_the_model() -> None:
    models = [small_model(seed) for seed in range(3)]
    with Fabric() as running:
        workers = team(running, models, tau_max=2)
        train_all(workers, models, 3)
        version = caught_up(running, workers)
        gradients(models[2], 7)
        train_all(workers[:2], models[:2], version + 8)
        dropped = workers[2].tally.dropped
        workers[2].step()
        assert not workers[2].last.included
        assert "computed from version" in workers[2].last.reason
        assert workers[2].tally.dropped == dropped + 1
        caught_up(running, workers)
        assert same(models)
        leave(workers)


def test_gradients_that_are_not_finite_are_dropped_and_change_nothing() -> None:
    model = small_model()
    with Fabric() as running:
        worker = joined(running, 0, model, method="all-reduce")
        before = {name: value.clone() for name, value in model.state_dict().items()}
        gradients(model)
        gradient = next(model.parameters()).grad
        assert gradient is not None
        gradient[0, 0] = float("nan")
        worker.step()
        assert not worker.last.included
        assert "NaN or Inf" in worker.last.reason
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert step(worker, model, 1).included
        worker.leave()


def test_training_goes_on_after_the_schedulers_restart() -> None:
    models = [small_model(seed) for seed in range(3)]
    with Fabric() as running:
        workers = team(running, models)
        train_all(workers, models, 4)
        version = caught_up(running, workers)
        running.restart_scheduler()
        train_all(workers, models, version + 4)
        caught_up(running, workers)
        assert same(models)
        leave(workers)


def test_each_step_uses_the_mean_of_the_members_learning_rates() -> None:
    models = [small_model(0) for _ in range(2)]
    with Fabric() as running:

        def work(rank: int) -> None:
            optimizer = torch.optim.SGD(models[rank].parameters(), lr=0.1)
            worker = mlfabric.wrap(
                optimizer, models[rank], settings=running.settings(f"w{rank}"), method="all-reduce", workers=2
            )
            scheduler = LambdaLR(worker, lambda n: (1 + rank) * 0.5**n)
            for seed in range(3):
                step(worker, models[rank], 10 * seed + rank)
                scheduler.step()
            worker.leave()

        together(*(partial(work, rank) for rank in range(2)))
    alone = small_model(0)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for seed in range(3):
        optimizer.param_groups[0]["lr"] = 0.1 * 1.5 * 0.5**seed
        optimizer.zero_grad()
        parts = []
        for rank in range(2):
            gradients(alone, 10 * seed + rank)
            parts.append([p.grad.clone() for p in alone.parameters() if p.grad is not None])
        for parameter, one, other in zip(alone.parameters(), *parts, strict=True):
            parameter.grad = (one + other) / 2
        optimizer.step()
    for one, other in zip(alone.parameters(), models[0].parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    assert same(models)


class Masked(torch.nn.Module):
    """A model with a mask of -inf, as transformers have it, and with statistics that it assigns anew."""

    mask: torch.Tensor
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0)
        return torch.softmax(self.layer(inputs) + self.mask[0], -1)


def test_masks_stay_and_statistics_become_the_mean() -> None:
    models = [Masked() for _ in range(2)]
    with Fabric() as running:

        def work(rank: int) -> None:
            worker = joined(running, rank, models[rank], method="all-reduce", workers=2)
            models[rank].forward(torch.full((4, 3), 10.0 * rank)).square().sum().backward()
            worker.step()
            assert worker.last.included
            worker.leave()

        together(*(partial(work, rank) for rank in range(2)))
    assert same(models)
    assert torch.allclose(models[0].mean, torch.full((3,), 0.5))
    assert models[0].mask.isinf().any()


def test_a_step_without_a_gradient_or_with_a_sparse_one_is_refused_and_changes_nothing() -> None:
    model = torch.nn.Embedding(4, 2, sparse=True)
    with Fabric() as running:
        worker = mlfabric.wrap(
            torch.optim.SGD(model.parameters(), lr=1.0), model, settings=running.settings(), method="elastic"
        )
        with pytest.raises(mlfabric.UsageError, match="call backward"):
            worker.step()
        model(torch.tensor([1])).sum().backward()
        with pytest.raises(mlfabric.UsageError, match="dense ones"):
            worker.step()
        assert worker.version == 0
        worker.leave()
