"""Workers whose models are wrapped, for tests of rounds: they join together, and seeds alone say what they compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

import mlfabric
from tests.fabric.harness import Fabric
from tests.fabric.several import together

__all__ = ["LR", "drawn", "flat", "give", "joined", "team"]

LR = 0.1


def joined(running: Fabric, rank: int, model: torch.nn.Module, momentum: float = 0.0, **options: Any) -> Any:
    """Let a worker join that trains by SGD."""
    sgd = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum)
    return mlfabric.wrap(sgd, model, settings=running.settings(f"w{rank}"), **options)


@contextmanager
def team(models: Sequence[torch.nn.Module], **options: Any) -> Iterator[list[Any]]:
    """Let a worker join for each model, with the options of ``joined``; all are waited for."""
    workers: dict[int, Any] = {}

    def join(rank: int) -> None:
        workers[rank] = joined(running, rank, models[rank], workers=len(models), **options)

    with Fabric() as running:
        together(*(partial(join, rank) for rank in range(len(models))))
        yield [workers[rank] for rank in range(len(models))]
        for worker in workers.values():
            worker.leave()


def flat(model: torch.nn.Module) -> torch.Tensor:
    """Return a copy of all parameters in a row."""
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def drawn(model: torch.nn.Module, seed: int) -> torch.Tensor:
    """Return a gradient that does not depend on where the model is."""
    size = sum(p.numel() for p in model.parameters())
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def give(model: torch.nn.Module, gradient: torch.Tensor) -> None:
    """Give all parameters their parts of a gradient."""
    pieces = gradient.split([p.numel() for p in model.parameters()])
    for parameter, piece in zip(model.parameters(), pieces, strict=True):
        parameter.grad = piece.view_as(parameter).clone()
