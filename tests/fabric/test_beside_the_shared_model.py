"""What a worker has beside the weights that it shares: statistics, averages of its optimizer, what is not trained."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import pytest
import torch

import mlfabric
from tests.fabric.harness import Fabric, small_model
from tests.fabric.several import together
from tests.fabric.wrapped_team import LR, drawn, flat, give, team

INNER = 3
ROUNDS = 6
SEEN_MEAN = 5.0
NAN = float("nan")
LOCAL = ["local-sgd", "diloco", "sma"]


def normed(seed: int = 0) -> torch.nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))


def see(model: torch.nn.Module, rank: int, step: int, value: float = 0.0) -> None:
    """Make the gradient of a batch; a value is added to its first element."""
    batch = torch.randn(64, 4, generator=torch.Generator().manual_seed(100 * rank + step)) + SEEN_MEAN
    batch[0, 0] += value
    model.zero_grad()
    model(batch).square().mean().backward()


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("fragments", [1, 2])
def test_statistics_are_learnt_on_while_rounds_are_made(wait: bool, fragments: int) -> None:
    models = [normed() for _ in range(2)]

    def train(worker: Any, rank: int) -> None:
        for step in range(INNER * ROUNDS):
            see(models[rank], rank, step)
            worker.step()
        worker.finish()

    options = {"method": "diloco", "inner_steps": INNER * fragments, "fragments": fragments, "at_least": 1.0}
    with team(models, wait=wait, **options) as workers:
        together(*(partial(train, worker, rank) for rank, worker in enumerate(workers)))
        for worker in workers:
            offered = INNER * (ROUNDS + 1 - fragments)  # the buffers are in the rounds of the first fragment
            learnt = worker.outer_model[0].running_mean
            torch.testing.assert_close(
                learnt, torch.full_like(learnt, SEEN_MEAN * (1 - 0.9**offered)), atol=0.2, rtol=0.0
            )
            assert worker.outer_model[0].num_batches_tracked == INNER * ROUNDS
        assert torch.equal(workers[0].outer_model[0].running_var, workers[1].outer_model[0].running_var)


def test_a_movement_that_is_dropped_leaves_the_outer_model_as_it_was() -> None:
    models = [normed() for _ in range(2)]
    with team(models, method="local-sgd", inner_steps=1, at_least=1.0) as workers:
        see(models[1], 1, 0, NAN)
        workers[1].step()
        assert workers[1].tally.dropped == 1
        one, other = (worker.outer_model.state_dict() for worker in workers)
        assert all(torch.equal(one[name], other[name]) for name in one if "tracked" not in name)


@pytest.mark.parametrize("method", ["elastic", "rand", *LOCAL])
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_after_a_step_with_nan_a_worker_is_in_rounds_again(method: str, optimizer: str) -> None:
    model = normed()
    parameters = list(model.parameters())
    sgd, adamw = torch.optim.SGD(parameters, lr=LR, momentum=0.9), torch.optim.AdamW(parameters)
    steps: torch.optim.Optimizer = sgd if optimizer == "momentum" else adamw
    options: dict[str, Any] = {"inner_steps": INNER} if method in LOCAL else {}
    with Fabric() as running:
        worker: Any = mlfabric.wrap(steps, model, method=method, settings=running.settings("a"), **options)
        for step in range(INNER * ROUNDS):
            see(model, 0, step, NAN if step == INNER + 1 else 0.0)
            worker.step()
        worker.finish()
        assert worker.tally.dropped == 1
        assert worker.last.included
        assert all(value.isfinite().all() for value in model.state_dict().values())
        worker.leave()


@pytest.mark.parametrize("method", LOCAL)
def test_a_worker_begins_with_all_of_a_file(method: str, tmp_path: Path) -> None:
    saved, model = normed(1), normed(2)
    saved.state_dict()["0.num_batches_tracked"].fill_(7)
    torch.save(saved.state_dict(), tmp_path / "model.pt")
    model[1].requires_grad_(False)
    sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LR)
    with Fabric() as running:
        settings = running.settings("a")
        worker: Any = mlfabric.wrap(sgd, model, method=method, init=tmp_path / "model.pt", settings=settings)
        assert all(torch.equal(value, saved.state_dict()[name]) for name, value in model.state_dict().items())
        worker.leave()


def test_a_movement_whose_round_was_interrupted_counts_once() -> None:
    models = [small_model() for _ in range(2)]
    begun, uphill = flat(models[0]), -torch.ones_like(flat(models[0]))

    def steps(worker: Any, rank: int, count: int) -> None:
        for _ in range(count):
            give(models[rank], uphill)
            worker.step()

    with team(models, method="local-sgd", inner_steps=INNER, at_least=1.0) as workers:
        Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            steps(workers[0], 0, INNER)
        other = Thread(target=steps, args=(workers[1], 1, 2 * INNER), daemon=True)
        other.start()
        steps(workers[0], 0, INNER)
        other.join(30)
        moved = flat(workers[0].outer_model) - begun
        torch.testing.assert_close(moved, torch.full_like(moved, 2 * INNER * LR))


class Scaled(torch.optim.SGD):
    """An optimizer with a number of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=1.0)
        self.scale = 0.5

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data.sub_(self.scale * parameter.grad)


def test_an_outer_optimizer_may_have_attributes_of_its_own() -> None:
    model = small_model()
    with Fabric() as running:
        sgd = torch.optim.SGD(model.parameters(), lr=LR)
        options: dict[str, Any] = {"inner_steps": 1, "wait": False, "outer": Scaled}
        worker: Any = mlfabric.wrap(sgd, model, method="diloco", settings=running.settings("a"), **options)
        begun, gradient = flat(worker.outer_model), drawn(model, 0)
        give(model, gradient)
        worker.step()
        worker.finish()
        torch.testing.assert_close(flat(worker.outer_model), begun - 0.5 * LR * gradient)
        worker.leave()


def test_learners_go_on_from_what_a_round_brings() -> None:
    models = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
    for model in models:
        torch.nn.init.zeros_(model.weight)

    def train(worker: Any, rank: int) -> None:
        slope = 1.0 if rank else -1.0
        learners = mlfabric.Learners(
            models[rank], worker, lambda model, x: slope * model(x).mean(), count=2, momentum=0.0
        )
        for step in range(2 * (2 * INNER - 1)):
            learners.step(torch.ones(1, 1) if step < 2 * INNER else torch.zeros(1, 1))

    with team(models, method="local-sgd", inner_steps=INNER, at_least=1.0) as workers:
        together(*(partial(train, worker, rank) for rank, worker in enumerate(workers)))
        assert workers[0].version == 1
        for model in models:  # the central model is behind its learners by a step
            torch.testing.assert_close(model.weight, torch.zeros(1, 1), atol=1.1 * LR, rtol=0.0)
