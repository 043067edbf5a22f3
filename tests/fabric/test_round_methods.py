"""Rounds without a server through a whole fabric: workers step by themselves and keep the same weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import mlfabric
from tests.fabric.harness import Fabric, gradients, small_model, wait_until
from tests.fabric.several import together

ANY: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5),
}


def same(models: list[torch.nn.Module]) -> bool:
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
    return rounds.version


@pytest.mark.parametrize("kind", ANY)
@pytest.mark.parametrize("mode", ["all-reduce", "elastic", "partial"])
def test_all_have_the_same_weights(mode: str, kind: str) -> None:
    models = [small_model(seed) for seed in range(3)]
    workers: dict[int, Any] = {}

    def work(rank: int) -> None:
        wrapped = workers[rank] = joined(running, rank, models[rank], kind, mode=mode, workers=3)
        for step in range(8):
            gradients(models[rank], 10 * step + rank)
            wrapped.step()

    with Fabric() as running:
        together(*(partial(work, rank) for rank in range(3)))
        version = caught_up(running, list(workers.values()))
        for worker in workers.values():
            worker.leave()
    assert same(models)
    tallies = [worker.tally for worker in workers.values()]
    assert all(t.included + t.dropped + worker._kept == 8 for t, worker in zip(tallies, workers.values(), strict=True))
    if mode == "all-reduce":
        assert version == 8
