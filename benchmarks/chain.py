"""Chain replication, the usual way to keep a second copy of a model: a baseline that replicas of mlfabric stand beside.

The head is a server of mlfabric. It sends whatever it is about to apply (the initial weights, an update, a sum as it
came) to its follower over its own link, and applies it once the follower has it. So no lead is allowed, and no worker
hears of a commit before the bytes are on two machines. The follower makes the same steps, so it has the same model.

It is made for figures only: one model, which begins with the chain; a follower that never takes its head's place; a
head that ends if its follower is gone. The scheduler does not know of the follower: it reserves no link for it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from mlfabric import wire
from mlfabric.channels import TICKET_BYTES, Connection, Frame, FrameKind, TcpChannel, TcpOptions
from mlfabric.errors import UnavailableError
from mlfabric.server import actions as act
from mlfabric.server.iteration_sum import add_up
from mlfabric.server.service import ServerService
from mlfabric.server.store import ModelStore
from mlfabric.v1 import types_pb2

__all__ = ["Follower", "send_on"]

NO_TICKET = bytes(TICKET_BYTES)
JOIN_S = 60.0
RETRY_S = 0.05


class Follower:
    """Holds what its head sends, says so, and applies it.

    Attributes:
        store: the model; None before the initial weights are here.
        held: the last version whose bytes are here; -1 before the initial weights.
        step_bytes: all that came after the initial weights.
    """

    def __init__(self, options: TcpOptions) -> None:
        self.store: ModelStore | None = None
        self.held = -1
        self.step_bytes = 0
        self._channel = TcpChannel(options)
        self._over = asyncio.Event()

    async def listen(self) -> str:
        """Wait for a head from now on; return where."""
        return await self._channel.listen(self._follow)

    async def until_left(self) -> None:
        """Wait until the head has closed its connection."""
        await self._over.wait()

    async def close(self) -> None:
        """Follow no more."""
        await self._channel.close()

    async def _follow(self, connection: Connection) -> None:
        try:
            while True:
                frame = await connection.receive()
                image = np.empty(frame.length, dtype=np.uint8).data
                await connection.receive_into(image, frame.length)
                await self._take(connection, frame.meta, image)
        finally:
            self._over.set()

    async def _take(self, connection: Connection, meta: bytes, image: memoryview) -> None:
        """Take the initial weights with the model's spec, then steps."""
        answer = Frame(kind=FrameKind.OUTCOME, ticket=NO_TICKET)
        if self.store is None:
            self.store, self.held = ModelStore(wire.from_spec(types_pb2.ModelSpec.FromString(meta))), 0
            self.store.initialise(image)
            await connection.send(answer)
            return
        step = json.loads(meta)
        self.held = step["version"]
        self.step_bytes += image.nbytes
        await connection.send(answer)
        _apply(self.store, act.StepKind(step["kind"]), step["lrs"], image)


def _apply(store: ModelStore, kind: act.StepKind, lrs: Sequence[float], images: memoryview) -> None:
    layout = store.spec.layout
    if kind is act.StepKind.SUM:
        store.apply_sum(images, lrs)
    else:
        starts = range(0, images.nbytes, layout.size_bytes)
        total = add_up(layout, [images[start : start + layout.size_bytes] for start in starts])
        store.apply(total, lrs[0], len(lrs))


def send_on(service: ServerService, address: str) -> None:
    """Let a server, which holds no model yet, send all that it is about to apply to a follower first.

    Args:
        service: the head.
        address: of the follower.
    """
    _Head(service, address)


class _Head:
    """Stands between what a server decides and its stores."""

    def __init__(self, service: ServerService, address: str) -> None:
        self._stores = stores = service._stores
        self._channel = service._channel
        self._address = address
        self._connection: Connection | None = None
        self._install, self._apply = stores.install, stores.apply
        service._does |= {act.InstallInitial: self._weights, act.ApplyStep: self._step}

    def _weights(self, action: act.InstallInitial) -> None:
        spec = wire.to_spec(self._stores.store(action.model).spec).SerializeToString()
        self._send(spec, [self._stores.buffer(action.update)], partial(self._install, action))

    def _step(self, action: act.ApplyStep) -> None:
        step = {"kind": action.kind.value, "lrs": action.lrs, "version": action.version.number}
        images = [self._stores.buffer(transfer) for transfer in action.transfers]
        self._send(json.dumps(step).encode(), images, partial(self._apply, action))

    def _send(self, meta: bytes, images: Sequence[memoryview], then: Callable[[], None]) -> None:
        """Send something in a task, at whose failure the server ends; go on once the follower has it."""
        self._stores._tasks.spawn(self._sent(meta, images, then))

    async def _sent(self, meta: bytes, images: Sequence[memoryview], then: Callable[[], None]) -> None:
        self._connection = connection = self._connection or await self._connected()
        length = sum(image.nbytes for image in images)
        await connection.send(Frame(kind=FrameKind.PAYLOAD, ticket=NO_TICKET, length=length, meta=meta), images)
        await connection.receive()
        then()

    async def _connected(self) -> Connection:
        """Connect as soon as the follower listens.

        Raises:
            UnavailableError: it does not within a minute.
        """
        until_s = time.monotonic() + JOIN_S
        while True:
            try:
                return await self._channel.connect(self._address)
            except UnavailableError:
                if time.monotonic() > until_s:
                    raise
                await asyncio.sleep(RETRY_S)
