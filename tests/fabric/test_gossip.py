"""Gossip through a whole fabric: each worker has a model of its own, and rounds average these."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest
import torch

from mlfabric.errors import UsageError
from mlfabric.methods.mixing import Mixing, groups
from tests.fabric.harness import Fabric, small_model
from tests.fabric.several import together
from tests.fabric.wrapped_team import LR, drawn, flat, give, joined, team

STEPS = 5


def train(worker: Any, model: torch.nn.Module, rank: int, steps: int, pause_s: float = 0.0) -> None:
    for step in range(steps):
        give(model, drawn(model, 100 * rank + step))
        time.sleep(pause_s)
        worker.step()


def movement(rank: int, steps: int) -> torch.Tensor:
    """Return how far a worker's own steps move its model: gradients do not depend on it."""
    with torch.random.fork_rng():
        model = small_model()
        begin, sgd = flat(model), torch.optim.SGD(model.parameters(), lr=LR)
        for step in range(steps):
            give(model, drawn(model, 100 * rank + step))
            sgd.step()
        return flat(model) - begin


def computed(begin: torch.Tensor, workers: int, mixing: Mixing) -> list[torch.Tensor]:
    """Return the models after all steps, by the definition: each step's round ends in the next one."""
    models = [begin.clone() for _ in range(workers)]
    offered: list[torch.Tensor] = []
    for step in range(STEPS):
        for rank in range(workers):
            models[rank] += movement(rank, step + 1) - movement(rank, step)
            if offered:
                group = groups(mixing, workers, step)[rank]
                models[rank] += sum(offered[other] for other in group) / len(group) - offered[rank]
        offered = [model.clone() for model in models]
    return models


@pytest.mark.parametrize(
    ("options", "mixing"),
    [
        ({"method": "dpsgd"}, Mixing.RING),
        ({"method": "dpsgd", "mixing": "exponential"}, Mixing.EXPONENTIAL),
        ({"method": "rand"}, Mixing.RANDOM_RING),
        ({"method": "d1d"}, Mixing.FULL),
    ],
)
def test_each_round_ends_in_the_next_step_and_mixes_as_its_matrix_says(options: dict[str, Any], mixing: Mixing) -> None:
    models = [small_model(seed) for seed in range(4)]
    with team(models, **options) as workers:
        begin = flat(models[0])
        together(*(partial(train, *each, STEPS) for each in zip(workers, models, range(4), strict=True)))
        for model, wanted in zip(models, computed(begin, 4, mixing), strict=True):
            assert torch.allclose(flat(model), wanted, atol=1e-5)
        together(*(worker.agree for worker in workers))
        mean = begin + sum(movement(rank, STEPS) for rank in range(4)) / 4
        for model in models:
            assert torch.allclose(flat(model), mean, atol=1e-5)
            assert torch.equal(flat(model), flat(models[0]))


def test_pairs_wait_for_nobody_and_keep_the_mean() -> None:
    models, steps = [small_model(seed) for seed in range(3)], (12, 12, 2)
    took: dict[int, float] = {}

    def work(rank: int, worker: Any) -> None:
        began = time.monotonic()
        train(worker, models[rank], rank, steps[rank], 1.0 if rank == 2 else 0.02)
        took[rank] = time.monotonic() - began
        worker.agree()

    with team(models, method="adpsgd") as workers:
        begin = flat(models[0])
        together(*(partial(work, *each) for each in enumerate(workers)))
        assert max(took[0], took[1]) < took[2]
        mean = begin + sum(movement(rank, steps[rank]) for rank in range(3)) / 3
        for model, worker in zip(models, workers, strict=True):
            assert torch.allclose(flat(model), mean, atol=1e-5)
            assert worker.last.included
            assert worker.version > 1


def test_every_so_manieth_round_all_come_to_the_mean() -> None:
    models = [small_model(seed) for seed in range(5)]
    with team(models, method="dpsgd", average_every=2) as workers:
        begin = flat(models[0])
        together(*(partial(train, *each, 3) for each in zip(workers, models, range(5), strict=True)))
        mean = begin + sum(movement(rank, 2) for rank in range(5)) / 5
        for rank, model in enumerate(models):
            assert torch.allclose(flat(model), mean + movement(rank, 3) - movement(rank, 2), atol=1e-5)


def test_who_joins_later_begins_with_a_peers_model_and_who_leaves_is_not_waited_for() -> None:
    models = [small_model(seed) for seed in range(2)]
    has_joined = threading.Event()

    def go_on_until_both_are_there() -> None:
        while not has_joined.is_set():
            train(first, models[0], 0, 1, 0.05)

    def join_late() -> None:
        second.append(joined(running, 1, models[1], method="rand", workers=1))
        has_joined.set()
        train(second[0], models[1], 1, 1)

    second: list[Any] = []
    with Fabric() as running:
        first = joined(running, 0, models[0], method="rand", workers=1)
        train(first, models[0], 0, 2)
        together(go_on_until_both_are_there, join_late)
        assert second[0].version > 1, "it goes on from the first one's model"
        first.leave()
        before = second[0].version
        train(second[0], models[1], 1, 2)
        second[0].agree()
        assert second[0].version > before
        second[0].leave()


def test_gradients_with_nan_are_dropped_and_the_model_stays() -> None:
    model = small_model()
    with team([model], method="rand") as (worker,):
        train(worker, model, 0, 1)
        before = flat(model)
        give(model, drawn(model, 1))
        gradient = next(iter(model.parameters())).grad
        assert gradient is not None
        gradient[0] = float("nan")
        worker.step()
        assert torch.equal(flat(model), before)
        assert not worker.last.included
        assert worker.last.reason == "it has NaN or Inf"


def test_agree_belongs_to_gossip() -> None:
    with team([small_model()], method="elastic") as (worker,), pytest.raises(UsageError, match="allowed: with gossip"):
        worker.agree()
