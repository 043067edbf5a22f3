"""Synchronous model averaging through a whole fabric: workers step by themselves and are drawn to a central model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import torch

import mlfabric
from mlfabric.worker_daemon.step_roles import RoundOutcome
from tests.fabric.harness import Fabric, small_model
from tests.fabric.several import together
from tests.fabric.wrapped_team import LR, drawn, flat, give, joined, team

STEPS, WORKERS = 6, 3


def sma_team(models: list[torch.nn.Module], **options: Any) -> AbstractContextManager[list[Any]]:
    return team(models, method="sma", **options)


def gradient(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    return drawn(model, 100 * rank + step)


def make_step(worker: Any, model: torch.nn.Module, rank: int, step: int) -> None:
    give(model, gradient(model, rank, step))
    worker.step()


def together_on(
    workers: list[Any], models: list[torch.nn.Module], work: Callable[[Any, torch.nn.Module, int], None]
) -> None:
    together(*(partial(work, w, m, rank) for rank, (w, m) in enumerate(zip(workers, models, strict=True))))


def train(workers: list[Any], models: list[torch.nn.Module], rates: list[float]) -> list[list[torch.Tensor]]:
    """Make steps with these learning rates; return, by worker, its model and the central one after each."""
    seen: list[list[torch.Tensor]] = [[] for _ in workers]

    def work(worker: Any, model: torch.nn.Module, rank: int) -> None:
        for step, rate in enumerate(rates):
            worker.param_groups[0]["lr"] = rate
            make_step(worker, model, rank, step)
            seen[rank].append(torch.cat([flat(model), flat(worker.outer_model)]))

    together_on(workers, models, work)
    return seen


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_workers_and_central_model_move_as_the_algorithm_says(momentum: float) -> None:
    models: list[torch.nn.Module] = [small_model(seed) for seed in range(WORKERS)]
    outer = None if momentum else (lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    with sma_team(models, outer=outer) as workers:
        central = flat(workers[0].outer_model)
        seen = train(workers, models, [LR] * STEPS)
        assert [worker.version for worker in workers] == [STEPS - 1] * WORKERS
    own, before = [central.clone() for _ in models], central
    for step in range(STEPS):
        corrections = [(model - central) / WORKERS for model in own]
        own = [w - LR * gradient(models[0], i, step) - c for i, (w, c) in enumerate(zip(own, corrections, strict=True))]
        central, before = central + sum(corrections) + momentum * (central - before), central
        for rank in range(WORKERS):
            assert torch.allclose(seen[rank][step], torch.cat([own[rank], central]), atol=1e-5)


def test_a_new_learning_rate_lets_a_worker_go_on_from_the_central_model() -> None:
    models: list[torch.nn.Module] = [small_model(seed) for seed in range(2)]
    with sma_team(models) as workers:
        seen = train(workers, models, [LR] * 3 + [LR / 10] * 2)
    for each in seen:
        own, central = each[3].chunk(2)
        assert torch.equal(own, central)
        assert not torch.equal(*each[2].chunk(2))
        assert not torch.equal(*each[4].chunk(2))


def test_who_is_left_at_the_end_has_the_central_model_and_a_late_one_begins_with_it() -> None:
    models: list[torch.nn.Module] = [small_model(seed) for seed in range(2)]
    late = small_model(7)
    with Fabric() as running:
        workers: dict[int, Any] = {}

        def join(rank: int) -> None:
            workers[rank] = joined(running, rank, models[rank], method="sma", workers=2)

        together(*(partial(join, rank) for rank in (0, 1)))
        for step in range(STEPS):
            together(*(partial(make_step, workers[r], models[r], r, step) for r in (0, 1)))
        together(*(workers[r].finish for r in (0, 1)))
        assert torch.equal(flat(models[0]), flat(workers[1].outer_model))
        workers[2] = joined(running, 2, late, method="sma")
        assert torch.equal(flat(late), flat(workers[0].outer_model))
        together(*(partial(make_step, workers[r], m, r, 50) for r, m in enumerate([*models, late])))
        together(*(workers[r].finish for r in range(3)))
        last: RoundOutcome = workers[2].rounds.last
        assert last.included
        for worker in workers.values():
            worker.leave()


def test_a_model_with_nan_is_in_no_round_and_goes_on_from_the_central_one() -> None:
    models: list[torch.nn.Module] = [small_model(seed) for seed in range(2)]

    def spoilt(worker: Any, model: torch.nn.Module, rank: int) -> None:
        for step in range(5 - rank):  # all are in each round: what is in none is made up for
            if rank == 0 and step == 2:
                next(model.parameters()).data.fill_(float("nan"))
            make_step(worker, model, rank, step)
        worker.finish()

    with sma_team(models) as workers:
        together_on(workers, models, spoilt)
        assert workers[0].tally.dropped == 1
        assert all(torch.isfinite(flat(model)).all() for model in models)
        assert torch.equal(flat(workers[0].outer_model), flat(workers[1].outer_model))


def test_several_learners_on_each_of_two_devices_share_one_central_model() -> None:
    models: list[torch.nn.Module] = [torch.nn.Linear(4, 1) for _ in range(2)]
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    wanted = inputs @ torch.tensor([[1.0], [2.0], [-1.0], [0.5]])
    first: list[float] = []
    last: list[float] = []

    def loss(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(model(x), y)

    def learn(worker: Any, model: torch.nn.Module, rank: int) -> None:
        learners = mlfabric.Learners(model, worker, loss, count=2, engine="in turn")
        first.append(loss(model, inputs, wanted).item())
        for step in range(80):
            at = (16 * step + 32 * rank) % 64
            learners.step(inputs[at : at + 16], wanted[at : at + 16])
        worker.finish()
        last.append(loss(worker.outer_model, inputs, wanted).item())

    with sma_team(models) as workers:
        together_on(workers, models, learn)
        assert [worker.version for worker in workers] == [40, 40]
        assert torch.equal(flat(workers[0].outer_model), flat(workers[1].outer_model))
        assert torch.equal(flat(models[0]), flat(workers[0].outer_model))
    assert max(last) < 0.1 * min(first)
