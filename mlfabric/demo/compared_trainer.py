"""A worker process of the comparison: ``python -m mlfabric.demo.compared_trainer elastic|ring FOLDER``.

Elastic rounds and the plain ring have everything in common but the way in which gradients are averaged: data, initial
weights, optimizer, learning rate, the time that each step takes, the emulated network cards. Worker 0 saves the weights
of every version, with the time; another process evaluates them. They train until the demonstration ends them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import mlfabric
from mlfabric.config import WorkerSettings
from mlfabric.demo import digits
from mlfabric.demo.pace import Pace
from mlfabric.demo.ring import Ring
from mlfabric.demo.scenario import Scenario
from mlfabric.demo.snapshots import save_snapshot

__all__ = ["main"]

LOOK_S = 0.01

Step = Callable[[], int]
"""Averages the gradients with those of other workers and steps; returns the version of the model."""


def elastic(model: torch.nn.Module, sgd: torch.optim.Optimizer) -> Step:
    """Step in elastic rounds."""
    optimizer = mlfabric.wrap(sgd, model, method="elastic")

    def step() -> int:
        optimizer.step()
        return optimizer.version

    return step


def plain(model: torch.nn.Module, sgd: torch.optim.Optimizer, ring: Ring) -> Step:
    """Step with the mean of all gradients, which goes around a ring."""
    version = 0

    def step() -> int:
        nonlocal version
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.view(-1) for gradient in gradients])
        ring.average(flat)
        means = torch.split_with_sizes(flat, [gradient.numel() for gradient in gradients])
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.view(-1).copy_(mean)
        sgd.step()
        version += 1
        return version

    return step


def train(scenario: Scenario, rank: int, folder: Path, method: str) -> None:
    """Train until this process is ended."""
    data = digits.load(scenario.seed)
    model = digits.make_model(scenario)
    sgd = torch.optim.SGD(model.parameters(), lr=scenario.compared_lr, momentum=scenario.momentum)
    pace = Pace(scenario, rank, scenario.compared_pace_s)
    with ExitStack() as stack:
        if method == "elastic":
            step = elastic(model, sgd)
        else:
            tcp = WorkerSettings.from_environment().tcp
            step = plain(model, sgd, stack.enter_context(Ring(rank, scenario.workers, tcp, folder)))
        _meet(folder, rank, scenario.workers)
        version, saved = 0, -1
        for images, labels in digits.batches(scenario, data, rank):
            with pace.step():
                if rank == 0 and version > saved:
                    save_snapshot(folder, version, time.monotonic_ns(), model)
                    saved = version
                sgd.zero_grad()
                cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
            version = step()


def _meet(folder: Path, rank: int, workers: int) -> None:
    """Wait until all workers are here, so that what is measured is training and no start-up."""
    (folder / f"here-{rank}").touch()
    while not all((folder / f"here-{other}").exists() for other in range(workers)):
        time.sleep(LOOK_S)


def main(arguments: list[str]) -> None:
    """Be one rank of the comparison in the given folder."""
    method, folder = arguments[0], Path(arguments[1])
    torch.set_num_threads(1)
    train(Scenario.load(folder), int(os.environ["RANK"]), folder, method)


if __name__ == "__main__":
    main(sys.argv[1:])
