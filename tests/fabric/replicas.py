"""A replica in a thread, for tests of whole fabrics, and what it and its primary hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import mlfabric

__all__ = ["apart", "held_by", "replica", "standing", "version_of"]

PATIENCE_S = 15.0


@contextmanager
def replica(scheduler: str, **options: Any) -> Iterator[mlfabric.ReplicaServer]:
    """Run a replica of the server ``server-0``; its state machine is validated at the end."""
    settings = {"replica_of": "server-0", **options}
    with mlfabric.register_as_replica(mlfabric.ReplicaOptions(scheduler=scheduler, **settings)) as running:
        yield running
    running._service._state.validate()


def version_of(running: mlfabric.ReplicaServer, model: str = "model") -> int:
    """Return the version that a replica has applied; -1 before the seed."""
    store = running._service.store(model)
    return -1 if store is None else store.version


def held_by(store: Any) -> dict[str, torch.Tensor]:
    """Copy a store's weights and state, as tensors by name."""
    with store.standing() as snapshot:
        history = {f"history {n}": t for n, t in snapshot.history.items()}
        squares = {f"squares {n}": t for n, t in snapshot.squares.items()}
        return {n: t.clone() for n, t in {**snapshot.model, **history, **squares}.items()}


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the greatest relative difference of two models, tensor by tensor."""
    assert one.keys() == other.keys()
    return max(float((one[n] - other[n]).norm() / (1e-300 + one[n].norm())) for n in one)


@contextmanager
def standing(server: mlfabric.Server, model: str = "model") -> Iterator[Any]:
    """Let no step of a model be made at the primary; gives its store."""
    turn = server._service._stores.turn(model)

    async def take() -> None:
        await turn.acquire()

    async def give() -> None:
        turn.release()

    asyncio.run_coroutine_threadsafe(take(), server._loop).result(PATIENCE_S)
    try:
        yield server._service._stores.store(model)
    finally:
        asyncio.run_coroutine_threadsafe(give(), server._loop).result(PATIENCE_S)
