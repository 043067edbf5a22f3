"""Local SGD and DiLoCo through a whole fabric: workers step by themselves and share an outer model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from threading import Thread
from typing import Any

import pytest
import torch

from tests.fabric.harness import Fabric, gradients, small_model
from tests.fabric.several import together
from tests.fabric.wrapped_team import LR, drawn, flat, give, joined, team

INNER = 3
MOMENTUM = 0.5
ROUNDS = 4


def local_team(models: Sequence[torch.nn.Module], **options: Any) -> AbstractContextManager[list[Any]]:
    return team(models, **{"momentum": MOMENTUM, "inner_steps": INNER, "at_least": 1.0, **options})


def inner_steps(worker: Any, model: torch.nn.Module, rank: int, steps: int = INNER) -> None:
    for step in range(steps):
        gradients(model, 100 * rank + step)
        worker.step()


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.state_dict().values()]


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def alone(model: torch.nn.Module, rank: int, steps: int = INNER) -> list[torch.Tensor]:
    """Return what inner steps make of a model without a fabric."""
    with torch.random.fork_rng():
        own = small_model()
    own.load_state_dict(model.state_dict())
    inner_steps(torch.optim.SGD(own.parameters(), lr=LR, momentum=MOMENTUM), own, rank, steps)
    return weights(own)


def mean(models: Sequence[Sequence[torch.Tensor]], weigh: Sequence[float]) -> list[torch.Tensor]:
    return [
        sum(w * value for w, value in zip(weigh, values, strict=True)) / sum(weigh)
        for values in zip(*models, strict=True)
    ]


@pytest.mark.parametrize("options", [{"method": "local-sgd"}, {"method": "diloco"}])
def test_all_have_the_same_outer_model_and_go_on_from_it(options: dict[str, Any]) -> None:
    models = [small_model(seed) for seed in range(3)]

    def work(rank: int, worker: Any) -> None:
        for _ in range(ROUNDS):
            inner_steps(worker, models[rank], rank)

    with local_team(models, **options) as workers:
        together(*(partial(work, *each) for each in enumerate(workers)))
        assert [worker.version for worker in workers] == [ROUNDS] * 3
        assert [worker.tally.included for worker in workers] == [ROUNDS] * 3
        for worker, model in zip(workers, models, strict=True):
            assert same(weights(worker.outer_model), weights(workers[0].outer_model))
            assert same(weights(model), weights(worker.outer_model))


def progress(rank: int, step: int) -> torch.Tensor:
    """Return how far some inner steps move a model whose gradients do not depend on it: plain SGD."""
    return -LR * torch.stack([fixed_gradient(100 * rank + INNER * step + i) for i in range(INNER)]).sum(dim=0)


def fixed_gradient(seed: int) -> torch.Tensor:
    return drawn(small_model(), seed)


def settle(worker: Any) -> None:
    """Wait until it is known what becomes of the last movement of a worker that does not wait for that by itself."""
    sent = worker.rounds._steps._sent
    if sent is not None:
        sent.outcome.result(timeout=30)


@pytest.mark.parametrize("method", ["local-sgd", "diloco"])
def test_without_waiting_each_goes_on_from_where_the_outer_model_is_carried_and_takes_rounds_in_as_they_come(
    method: str,
) -> None:
    models = [small_model(seed) for seed in range(2)]
    rate, momentum = {"local-sgd": (1.0, 0.0), "diloco": (0.7, 0.8)}[method]
    with local_team(models, method=method, momentum=0.0, wait=False) as workers:
        outer = flat(workers[0].outer_model)
        velocity = torch.zeros_like(outer)
        for round_ in range(ROUNDS):
            carried = -rate * momentum**2 * velocity
            for rank, (worker, model) in enumerate(zip(workers, models, strict=True)):
                settle(worker)
                for i in range(INNER):
                    gradient = fixed_gradient(100 * rank + INNER * round_ + i)
                    give(model, gradient)
                    worker.step()
                    if i == 0:
                        assert torch.allclose(flat(worker.outer_model), outer, atol=1e-5)
                        assert torch.allclose(flat(model), outer - LR * gradient, atol=1e-5)
                assert torch.allclose(flat(model), outer + progress(rank, round_) + carried, atol=1e-5)
            movement = -(progress(0, round_) + progress(1, round_)) / 2
            velocity = momentum * velocity + movement
            outer = outer - rate * (movement + momentum * velocity)
        for model, worker in zip(models, workers, strict=True):
            worker.finish()
            assert torch.allclose(flat(worker.outer_model), outer, atol=1e-5)
            assert torch.equal(flat(model), flat(worker.outer_model))


def test_without_waiting_a_worker_goes_on_until_its_next_movement_is_there() -> None:
    models = [small_model(seed) for seed in range(2)]
    with local_team(models, method="local-sgd", momentum=0.0, wait=False) as workers:
        goes_on = Thread(target=inner_steps, args=(workers[0], models[0], 0, 2 * INNER - 1), daemon=True)
        goes_on.start()
        goes_on.join(timeout=30)
        assert (workers[0].version, workers[0].waiting) == (0, 1)
        waits = Thread(target=inner_steps, args=(workers[0], models[0], 0, 1), daemon=True)
        waits.start()
        waits.join(timeout=0.5)
        assert waits.is_alive()
        inner_steps(workers[1], models[1], 1)
        waits.join(timeout=30)
        assert (workers[0].version, workers[0].waiting) == (1, 1)


@pytest.mark.parametrize(
    "outer",
    [partial(torch.optim.SGD, lr=0.5), partial(torch.optim.SGD, lr=0.5, momentum=0.9), torch.optim.AdamW],
    ids=["sgd", "momentum", "adamw"],
)
def test_without_waiting_a_worker_that_has_not_moved_is_where_the_outer_model_comes_to(
    outer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
) -> None:
    model = small_model(3)
    with local_team([model], method="diloco", momentum=0.0, wait=False, outer=outer) as (worker,):
        for round_ in range(ROUNDS):
            for i in range(INNER):
                give(
                    model, fixed_gradient(INNER * round_ + i) if round_ < ROUNDS - 1 else torch.zeros_like(flat(model))
                )
                worker.step()
            carried_to = flat(model)
            settle(worker)
        worker.finish()
        assert torch.allclose(carried_to, flat(worker.outer_model), atol=1e-6)


def test_local_sgd_takes_the_mean_of_the_models_by_their_weights() -> None:
    models, weigh = [small_model(7) for _ in range(3)], (1, 2, 5)
    expected = mean([alone(models[0], rank) for rank in range(3)], weigh)

    def work(rank: int, worker: Any) -> None:
        for step in range(INNER):
            gradients(models[rank], 100 * rank + step)
            worker.weigh(99)
            worker.weigh(weigh[rank])  # the last word counts
            worker.step()

    with local_team(models, method="local-sgd") as workers:
        together(*(partial(work, *each) for each in enumerate(workers)))
        for found, wanted in zip(weights(models[0]), expected, strict=True):
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "outer",
    [None, partial(torch.optim.SGD, lr=0.5), partial(torch.optim.AdamW, lr=0.01)],
    ids=["usual", "sgd", "adamw"],
)
def test_diloco_steps_the_outer_model_along_the_movement(
    outer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None,
) -> None:
    model, own, shared = small_model(3), small_model(3), small_model(3)
    usual = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
    inner, by_hand = (
        torch.optim.SGD(own.parameters(), lr=LR, momentum=MOMENTUM),
        (outer or usual)(list(shared.parameters())),
    )
    options: dict[str, Any] = {} if outer is None else {"outer": outer}
    with local_team([model], method="diloco", **options) as (worker,):
        for _ in range(ROUNDS):
            inner_steps(worker, model, 0)
            inner_steps(inner, own, 0)
            for parameter, moved in zip(shared.parameters(), own.parameters(), strict=True):
                parameter.grad = (parameter - moved).detach()
            by_hand.step()
            own.load_state_dict(shared.state_dict())
            for found, wanted in zip(weights(model), weights(shared), strict=True):
                torch.testing.assert_close(found, wanted)


def test_the_state_of_the_inner_optimizer_stays_and_schedulers_work() -> None:
    model = small_model()
    with local_team([model], method="local-sgd") as (worker,):
        scheduler = torch.optim.lr_scheduler.StepLR(worker, 1, gamma=0.5)
        inner_steps(worker, model, 0)
        scheduler.step()
        assert worker.param_groups[0]["lr"] == pytest.approx(0.05)
        assert all(worker.state[parameter]["momentum_buffer"].any() for parameter in model.parameters())


def test_who_joins_later_has_the_outer_model() -> None:
    first, second = small_model(1), small_model(2)
    late: dict[str, Any] = {"momentum": MOMENTUM, "method": "diloco", "inner_steps": INNER, "at_least": 0.1}
    with Fabric() as running:
        one = joined(running, 0, first, **late)
        inner_steps(one, first, 0)
        other = joined(running, 1, second, **late)
        assert other.version == 1
        assert same(weights(second), weights(one.outer_model))
        inner_steps(other, second, 1)
        assert (other.version, other.last.included) == (2, True)
        one.leave()
        other.leave()


def test_a_movement_that_is_not_finite_is_dropped_and_its_worker_goes_on_from_the_outer_model() -> None:
    model = small_model()
    with local_team([model], method="diloco") as (worker,):
        inner_steps(worker, model, 0)
        before = weights(worker.outer_model)
        with torch.no_grad():
            next(model.parameters()).fill_(torch.nan)
        inner_steps(worker, model, 0)
        assert (worker.last.included, worker.last.reason) == (False, "it has NaN or Inf")
        assert same(weights(model), before)


def test_finish_takes_the_outer_model_over() -> None:
    model = small_model()
    with local_team([model], method="local-sgd") as (worker,):
        inner_steps(worker, model, 0)
        shared = weights(worker.outer_model)
        inner_steps(worker, model, 0, INNER - 1)
        assert not same(weights(model), shared)
        worker.finish()
        assert same(weights(model), shared)
        inner_steps(worker, model, 0, INNER - 1)
        assert worker.version == 1
        inner_steps(worker, model, 0, 1)
        assert worker.version == 2


def test_what_is_not_trained_stays_and_batchnorm_travels() -> None:
    models: list[Any] = [
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)) for _ in "ab"
    ]
    for model in models:
        model.load_state_dict(models[0].state_dict())
        model[0].weight.requires_grad_(False)
    frozen = models[0][0].weight.clone()

    def work(rank: int, worker: Any) -> None:
        inner_steps(worker, models[rank], rank)

    with local_team(models, method="local-sgd") as workers:
        together(*(partial(work, *each) for each in enumerate(workers)))
    assert torch.equal(models[0][0].weight, frozen)
    assert torch.equal(models[0][1].running_mean, models[1][1].running_mean)
    assert models[0][1].running_mean.any()


PARTS = 2


def in_fragments(models: list[torch.nn.Module], wait: bool, rounds: int) -> list[Any]:
    """Train with fixed gradients, a round of one fragment every ``INNER`` steps; return the workers, who have left."""

    def work(rank: int, worker: Any) -> None:
        for step in range(rounds):
            for i in range(INNER):
                give(models[rank], fixed_gradient(100 * rank + INNER * step + i))
                worker.step()
        worker.finish()

    options: dict[str, Any] = {"inner_steps": PARTS * INNER, "fragments": PARTS, "wait": wait}
    with local_team(models, method="local-sgd", momentum=0.0, **options) as workers:
        together(*(partial(work, *each) for each in enumerate(workers)))
    return workers


@pytest.mark.parametrize("wait", [True, False])
def test_each_round_has_the_fragment_whose_turn_it_is(wait: bool) -> None:
    models: list[torch.nn.Module] = [small_model(seed) for seed in range(2)]
    begun, rounds = flat(models[0]), 5
    workers = in_fragments(models, wait, rounds)
    first = sum(p.numel() for p in (workers[0]._shared.parts)[0])
    assert 0 < first < len(begun)
    outer = begun.clone()
    for turn, part in enumerate((slice(0, first), slice(first, None))):
        ends = [step + 1 for step in range(rounds) if step % PARTS == turn]
        last = ends[-1]
        moved = [sum(progress(rank, step)[part] for step in range(last)) for rank in range(2)]
        outer[part] += (moved[0] + moved[1]) / 2
    for model, worker in zip(models, workers, strict=True):
        assert (worker.version, worker.tally.included, worker.tally.dropped) == (rounds, rounds, 0)
        assert torch.allclose(flat(worker.outer_model), outer, atol=1e-5)
        assert torch.equal(flat(model), flat(worker.outer_model))
    assert same(weights(workers[0].outer_model), weights(workers[1].outer_model))
