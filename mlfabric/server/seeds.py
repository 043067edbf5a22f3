"""Seeds: weights and optimizer state of one version as one payload, and the way from a primary to its replica.

A seed is the image of the weights and behind it those of the optimizer's state. The primary copies them while no step
runs, which is brief, and sends the copy while training goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import torch
from google.protobuf.message import DecodeError

from mlfabric import wire
from mlfabric.channels import Connection, TcpChannel, TransferRecord
from mlfabric.errors import FabricError
from mlfabric.fail_stop import Failed, Tasks
from mlfabric.model.specs import ModelSpec, TensorKind
from mlfabric.protocol import Seed, ServerHolds
from mlfabric.server import actions as act
from mlfabric.server.contents import parameters
from mlfabric.server.model_images import Image, copy_tensors
from mlfabric.server.state import ServerState
from mlfabric.server.store import ModelStore, Snapshot
from mlfabric.server.stores import Stores
from mlfabric.transfer.exchange import deliver
from mlfabric.v1 import data_pb2

__all__ = ["SeedSender", "packed", "planted"]

log = logging.getLogger("mlfabric.server")
PAUSE_S = 0.2
MOST_RUNS_OF_SEED = 1_000
"""Ranges of samples that go with a seed: they must fit into what comes before its bytes."""


@dataclass(frozen=True, slots=True)
class _Copy:
    payload: memoryview
    steps: int
    history_norm: float
    weights_norm: float


def packed(spec: ModelSpec, snapshot: Snapshot) -> memoryview:
    """Copy a snapshot into one payload."""
    payload = np.zeros((1 + spec.rule.state_images) * spec.layout.size_bytes, dtype=np.uint8).data
    given = (snapshot.model, snapshot.history, snapshot.squares)
    for image, tensors in zip(_images_of(spec, payload), given, strict=False):
        wanted = {name: tensor for name, tensor in image.tensors(spec.layout).items() if name in tensors}
        copy_tensors(f"{spec.name}, a seed", tensors, wanted)
    return payload


def planted(spec: ModelSpec, payload: memoryview, version: int, steps: int) -> ModelStore:
    """Return a store that goes on where a seed was taken.

    Raises:
        LayoutError: it is not finite.
    """
    weights, *images = _images_of(spec, payload)
    state = [*(parameters(image, spec.layout) for image in images), {}, {}]
    store, model = ModelStore(spec), weights.tensors(spec.layout)
    store.restore(version=version, model=model, history=state[0], squares=state[1], steps=steps)
    return store


def _images_of(spec: ModelSpec, payload: memoryview) -> list[Image]:
    """View the images of weights and state in a seed."""
    layout, size_bytes = spec.layout, spec.layout.size_bytes
    places = range(1 + spec.rule.state_images)
    return [Image(layout, payload[place * size_bytes : (place + 1) * size_bytes]) for place in places]


def _norm(tensors: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(torch.linalg.vector_norm(t, dtype=torch.float64)) ** 2 for t in tensors if t.numel()))


class SeedSender:
    """Sends seeds from a primary.

    Args:
        state: for what the server holds besides tensors; only read.
        stores: the models.
        channel: the server's data channel.
        host: the server's.
        take_in: where events for the state machine go.
        recorded: told of every finished transfer and the member it went to.
    """

    def __init__(
        self,
        state: ServerState,
        stores: Stores,
        channel: TcpChannel,
        host: str,
        take_in: Callable[[act.ServerEvent | Failed], None],
        recorded: Callable[[TransferRecord, str], None],
    ) -> None:
        self._state = state
        self._stores = stores
        self._channel = channel
        self._host = host
        self._take_in = take_in
        self._recorded = recorded
        self._tasks = Tasks(take_in)
        self._sending: dict[str, asyncio.Task[None]] = {}

    def send(self, order: Seed) -> None:
        """Send a seed, instead of one of an earlier term."""
        former = self._sending.pop(order.model, None)
        if former is not None:
            former.cancel()
        self._sending[order.model] = self._tasks.spawn(self._send(order))

    def stop(self, model: str) -> None:
        """Send no seed of a model any more: it has no replica."""
        sending = self._sending.pop(model, None)
        if sending is not None:
            sending.cancel()

    def stop_all(self) -> None:
        """Send no seed any more: a scheduler that admits this server orders again what it wants."""
        for model in list(self._sending):
            self.stop(model)

    async def close(self) -> None:
        """Give up what is on its way."""
        await self._tasks.close()

    async def _send(self, order: Seed) -> None:
        """Send until the replica has it; who orders another seed ends this."""
        while True:
            try:
                holds, copy = await self._copy(order.model)
                with closing(await self._channel.connect(order.address)) as connection:
                    return await self._offer(connection, order, holds, copy)
            except (FabricError, DecodeError) as error:
                log.info("the seed of %s to %s broke: %s", order.model, order.receiver, error)
                await asyncio.sleep(PAUSE_S)

    async def _copy(self, model: str) -> tuple[ServerHolds, _Copy]:
        async with self._stores.turn(model):
            holds = self._state.models[model].holds()
            copy = await asyncio.to_thread(self._copied, model)
            seed = act.SeedTaken(
                model=model, history_norm=copy.history_norm, weights_norm=copy.weights_norm, steps=copy.steps
            )
            self._take_in(seed)
        return holds, copy

    def _copied(self, model: str) -> _Copy:
        store = self._stores.store(model)
        with store.standing() as snapshot:
            history = _norm(list(snapshot.history.values())) if store.spec.rule.server_momentum > 0 else 0.0
            kinds = {tensor.name: tensor.kind for tensor in store.spec.layout.tensors}
            weights = _norm([t for name, t in snapshot.model.items() if kinds[name] is TensorKind.PARAMETER])
            return _Copy(packed(store.spec, snapshot), snapshot.steps, history, weights)

    async def _offer(self, connection: Connection, order: Seed, holds: ServerHolds, copy: _Copy) -> None:
        meta = data_pb2.OfferMeta(
            transfer=wire.to_transfer_id(order.transfer),
            size_bytes=copy.payload.nbytes,
            host=self._host,
            seed=wire.to_server_holds(replace(holds, samples=holds.samples.within(MOST_RUNS_OF_SEED))),
            steps=copy.steps,
        )
        record = await deliver(connection, meta, order.ticket, holds.spec.layout.digest, copy.payload)
        if record is not None:
            self._recorded(record, order.receiver)
