"""A model on several servers, for tests: workers whose model tells its version, what servers hold and log."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mlfabric.channels import TcpOptions
from tests.fabric.harness import Fabric, gradients

__all__ = [
    "SIZE",
    "is_whole",
    "logs",
    "ones",
    "order_of",
    "push_one",
    "same",
    "shards_of",
    "spread",
    "start",
    "step",
    "together",
]

SIZE = 6000


@contextmanager
def spread(servers: int, where: Path | None = None, down_bps: int = 0, **scheduler: Any) -> Iterator[Fabric]:
    """Run a scheduler and several servers, each with a directory of its own below ``where``."""
    with Fabric(**scheduler) as running:
        for i in range(servers):
            start(running, i, where, down_bps)
        yield running


def start(running: Fabric, i: int, where: Path | None, down_bps: int = 0, *, resume: bool = False) -> Any:
    name = f"s{i}"
    directory = where and where / name
    tcp = TcpOptions(down_bps=down_bps)
    return running.server(name=name, host=f"host-{name}", tcp=tcp, checkpoint_dir=directory, resume=resume)


def shards_of(running: Fabric) -> list[Any]:
    """Return what the servers hold of the model, shard by shard; to be read only."""
    held = [model for server in running.servers for model in server._service._state.models.values()]
    return sorted(held, key=lambda model: str(model.spec.name))


def logs(where: Path) -> list[list[tuple[int, tuple[Any, ...]]]]:
    """Return each shard's commit log: the version of every step, and the pushes in it by worker and place."""
    paths = sorted(where.rglob("*.commits.jsonl"), key=lambda path: path.name)
    found = []
    for path in paths:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found.append([(row["version"], tuple((u[0], u[2] // len(paths)) for u in row["updates"])) for row in rows])
    return found


def order_of(log: list[tuple[int, tuple[Any, ...]]]) -> list[Any]:
    return [update for _, updates in log for update in updates]


def together(*calls: Callable[[], Any]) -> None:
    """Run all at once; raise the first error."""
    errors: list[BaseException] = []

    def run(call: Callable[[], Any]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a worker is stuck"
    if errors:
        raise errors[0]


def same(model: torch.nn.Module, wanted: torch.nn.Module) -> None:
    """Check that two models are equal but for rounding."""
    for ours, theirs in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)


def step(worker: Any, seed: int = 0) -> object:
    """Get, compute, push; return the outcome."""
    worker.get()
    gradients(worker._model, seed)
    return worker.push().result(15)


def ones(size: int = SIZE) -> dict[str, torch.Tensor]:
    return {"a": torch.zeros(size, requires_grad=True), "b": torch.zeros(7, requires_grad=True)}


def push_one(worker: Any) -> Any:
    """Push an update that makes every element greater by 1."""
    for tensor in worker._model.values():
        tensor.grad = torch.full_like(tensor, -1.0)
    return worker.push()


def is_whole(worker: Any) -> bool:
    """Tell whether what a worker has got is one version of all parts."""
    number = float(worker.version.number)
    return all(bool((tensor == number).all()) for tensor in worker._model.values())
