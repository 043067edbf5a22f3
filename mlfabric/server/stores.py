"""The stores of a server's models, the buffers of transfers on their way; carries out what the state machine decides.

Steps and checkpoints of small models run in the event loop (a hop to a thread costs more than the step), those of large
ones in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mlfabric import clock
from mlfabric.errors import FabricError, LayoutError
from mlfabric.fail_stop import Failed, Tasks
from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import GetId, TransferId
from mlfabric.server import actions as act
from mlfabric.server.checkpoint import CheckpointDir, CheckpointExtra
from mlfabric.server.iteration_sum import add_up, is_finite
from mlfabric.server.rule_kernels import NotFinite, StepResult
from mlfabric.server.store import Held, ModelStore, PreparedStep

__all__ = ["SavedCheckpoint", "Saving", "Stores"]

log = logging.getLogger("mlfabric.server")
INLINE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint that was written, and how long that took."""

    model: str
    path: Path
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """How checkpoints are written.

    Args:
        directory: where to.
        extra: returns what belongs into one model's besides tensors; called while no step of it runs.
    """

    directory: CheckpointDir
    extra: Callable[[str], CheckpointExtra]


class Stores:
    """All models' weights and all transfers' buffers of one server.

    Args:
        take_in: where events for the state machine go.
        saving: how checkpoints are written; None writes none.
    """

    def __init__(self, take_in: Callable[[act.ServerEvent | Failed], None], saving: Saving | None = None) -> None:
        self._take_in = take_in
        self._saving = saving
        self._stores: dict[str, ModelStore] = {}
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._buffers: dict[TransferId, memoryview] = {}
        self._spare: dict[int, memoryview] = {}
        self._pins: dict[GetId, tuple[ModelStore, Held]] = {}
        self._ending: set[str] = set()
        self._prepared: dict[str, tuple[PreparedStep, memoryview]] = {}
        self._tasks = Tasks(take_in)

    def add(self, spec: ModelSpec, store: ModelStore | None = None) -> None:
        """Hold a model: a new one, or one that was resumed."""
        self._stores[spec.name] = store or ModelStore(spec)

    def free(self, action: act.FreeStore) -> None:
        """Hold a model no more, once no step or checkpoint of it runs; the state machine hears of it then."""
        self._ending.add(action.model)
        self._tasks.spawn(self._free(action))

    async def _free(self, action: act.FreeStore) -> None:
        async with self._turns[action.model]:
            await asyncio.to_thread(self.set_aside, action.model)
            self._stores.pop(action.model, None)
            del self._turns[action.model]
        self._prepared.pop(action.model, None)
        for transfer in action.transfers:
            self._buffers.pop(transfer, None)
        self._spare.clear()
        self._ending.discard(action.model)
        self._take_in(act.StoreFreed(model=action.model))

    def set_aside(self, model: str) -> None:
        """Move a model's checkpoints to where nobody goes on from them."""
        try:
            if self._saving is not None:
                self._saving.directory.set_aside(model)
        except FabricError as error:
            log.error("who resumes from there goes on with a model that has ended: %s", error)

    # Buffers

    def reserve(self, transfer: TransferId, size_bytes: int) -> memoryview:
        """Return the buffer that a transfer's bytes go to."""
        buffer = self._buffers[transfer] = self._new_buffer(size_bytes)
        return buffer

    def _new_buffer(self, size_bytes: int) -> memoryview:
        return self._spare.pop(size_bytes, None) or np.empty(size_bytes, dtype=np.uint8).data

    def buffer(self, transfer: TransferId) -> memoryview:
        """Return the buffer of a transfer that is here."""
        return self._buffers[transfer]

    def forget(self, transfer: TransferId) -> None:
        """Give a transfer's buffer back; one of each size is kept for the next."""
        buffer = self._buffers.pop(transfer, None)
        if buffer is not None:
            self._spare[buffer.nbytes] = buffer

    # Steps

    def install(self, action: act.InstallInitial) -> None:
        """Take an update's bytes as the initial weights."""
        try:
            self._stores[action.model].initialise(self._buffers[action.update])
        except LayoutError as error:
            self._take_in(act.InstallRefused(model=action.model, update=action.update, detail=str(error)))
        else:
            self._take_in(act.Installed(model=action.model, update=action.update))

    def apply(self, action: act.ApplyStep) -> None:
        """Apply a group of transfers; the state machine hears of it when it is done."""
        buffers = [self._buffers[transfer] for transfer in action.transfers]
        self.carry_out(action.model, sum(b.nbytes for b in buffers), partial(self._step, action, buffers))

    def carry_out(self, model: str, size_bytes: int, work: Callable[[], Any]) -> None:
        """Do something to a model that takes in so many bytes, here or in a thread, and tell what came of it."""
        if size_bytes <= INLINE_BYTES and not self._turns[model].locked():
            self._take_in(work())
        else:
            self._tasks.spawn(self._in_thread(model, work))

    async def _in_thread(self, model: str, work: Callable[[], Any]) -> None:
        async with self._turns[model]:
            self._take_in(await asyncio.to_thread(work))

    def _step(self, action: act.ApplyStep, buffers: list[memoryview]) -> act.StepDone | act.StepRefused:
        result = self._result(action, buffers)
        if isinstance(result, NotFinite):
            # The first of a mean holds the sum by now. It is to blame if no other one is; else it is sent again, and
            # blamed the next time if it has to be.
            (first, *rest), detail = action.transfers, _detail(result)
            blamed = self._not_finite(action.model, rest, buffers[1:])
            culprits, spoilt = (blamed, (first,)) if blamed else ((first,), ())
            return act.StepRefused(
                model=action.model, transfers=action.transfers, detail=detail, culprits=culprits, spoilt=spoilt
            )
        assert result.version == action.version.number, f"{action} made version {result.version}"
        return act.StepDone(model=action.model, transfers=action.transfers, step_norm=result.step_norm)

    def _result(self, action: act.ApplyStep, buffers: list[memoryview]) -> StepResult | NotFinite:
        store, lrs = self._stores[action.model], action.lrs
        if action.kind is act.StepKind.SUM:
            return store.apply_sum(buffers[0], lrs)
        return store.apply(add_up(store.spec.layout, buffers), lrs[0], len(lrs))

    def _not_finite(
        self, model: str, transfers: Sequence[TransferId], images: list[memoryview]
    ) -> tuple[TransferId, ...]:
        """Return those of some transfers that alone are not finite."""
        layout = self._stores[model].spec.layout
        return tuple(t for t, image in zip(transfers, images, strict=True) if not is_finite(layout, image))

    # Steps that several parts of a model make together

    def prepare(self, action: act.PrepareStep) -> None:
        """Make the first pass of a step in a copy; the state machine hears of it when it is done."""
        buffers = [self._buffers[transfer] for transfer in action.transfers]
        scratch = self._new_buffer(buffers[0].nbytes)
        work = partial(self._first_pass, action, buffers, scratch)
        self.carry_out(action.model, sum(b.nbytes for b in buffers), work)

    def _first_pass(
        self, action: act.PrepareStep, buffers: list[memoryview], scratch: memoryview
    ) -> act.StepPrepared | act.PrepareRefused:
        scratch[:] = buffers[0]
        result = self._preparation(action, [scratch, *buffers[1:]])
        if isinstance(result, NotFinite):
            self._spare[scratch.nbytes] = scratch
            blamed = self._not_finite(action.model, action.transfers, buffers)
            culprits = blamed or action.transfers[:1]  # the first, if each alone is finite
            return act.PrepareRefused(model=action.model, unit=action.unit, detail=_detail(result), culprits=culprits)
        assert result.result.version == action.version.number, f"{action} would make {result.result.version}"
        self._prepared[action.model] = (result, scratch)
        return act.StepPrepared(model=action.model, unit=action.unit)

    def _preparation(self, action: act.PrepareStep, buffers: list[memoryview]) -> PreparedStep | NotFinite:
        store, lrs = self._stores[action.model], action.lrs
        if action.kind is act.StepKind.SUM:
            return store.prepare_sum(buffers[0], lrs)
        return store.prepare(add_up(store.spec.layout, buffers), lrs[0], len(lrs))

    def commit(self, action: act.CommitStep) -> None:
        """Take the step that is prepared; the state machine hears of it when it is done."""
        self.carry_out(action.model, self._prepared[action.model][1].nbytes, partial(self._second_pass, action))

    def _second_pass(self, action: act.CommitStep) -> act.StepDone:
        step, scratch = self._prepared.pop(action.model)
        result = self._stores[action.model].commit(step)
        self._spare[scratch.nbytes] = scratch
        return act.StepDone(model=action.model, transfers=action.transfers, step_norm=result.step_norm)

    def discard(self, action: act.DiscardStep) -> None:
        """Throw the step away that is prepared; the state machine hears of it when it is done."""
        self.carry_out(action.model, 0, partial(self._thrown_away, action))

    def _thrown_away(self, action: act.DiscardStep) -> act.StepDiscarded:
        step, scratch = self._prepared.pop(action.model)
        self._stores[action.model].discard(step)
        self._spare[scratch.nbytes] = scratch
        return act.StepDiscarded(model=action.model, unit=action.unit)

    # Reading

    def pin(self, action: act.PinModel) -> None:
        """Pin the current version for a get that will come for it."""
        self._pins[action.get] = (self._stores[action.model], self.acquire(action.model))

    def unpin(self, get: GetId) -> None:
        """Unpin what was pinned for a get, if anything was."""
        pinned = self._pins.pop(get, None)
        if pinned is not None:
            store, held = pinned
            store.release(held)

    def acquire(self, model: str, get: GetId | None = None) -> Held:
        """Take what was pinned for a get, else pin the current version; the state machine knows that it is possible."""
        if get is not None and get in self._pins:
            return self._pins.pop(get)[1]
        held = self._stores[model].acquire()
        assert held is not None, f"{model}: the state machine planned a get that the store cannot serve"
        return held

    def store(self, model: str) -> ModelStore:
        """Return one model's store."""
        return self._stores[model]

    def turn(self, model: str) -> asyncio.Lock:
        """Return what is held while a step or a checkpoint of a model runs: who has it knows that none does."""
        return self._turns[model]

    def memory_bytes(self) -> dict[str, int]:
        """Return bytes held, by kind: models, optimizer state, transfers, and the promised most of the first two.

        ``copies`` are those of ``model`` that are beyond twice model and state: older versions that are being sent.
        """
        kinds = {"model": 0, "copies": 0, "history": 0, "budget": 0}
        for store in self._stores.values():
            held = store.memory_bytes()
            for kind in kinds:
                kinds[kind] += held[kind]
        scratch = [scratch for _, scratch in list(self._prepared.values())]
        kinds["updates"] = sum(b.nbytes for b in (*self._buffers.values(), *self._spare.values(), *scratch))
        return kinds

    # Checkpoints

    async def save(self, models: Iterable[str] | None = None) -> list[SavedCheckpoint]:
        """Write a checkpoint of each model that has weights.

        Raises:
            FabricError: one could not be written; earlier ones are as they were.
        """
        if self._saving is None:
            return []
        saved = [await self._save(self._saving, name) for name in (list(self._stores) if models is None else models)]
        return [one for one in saved if one is not None]

    async def _save(self, saving: Saving, name: str) -> SavedCheckpoint | None:
        """Write a model's checkpoint, unless it has no weights, or has ended."""
        started = clock.monotonic_s()
        if not self._can_save(name):
            return None
        async with self._turns[name]:
            if not self._can_save(name):
                return None
            extra, store = saving.extra(name), self._stores[name]
            assert store.version == extra.log_position, f"{name}: store and state differ while no step runs"
            path = await asyncio.to_thread(saving.directory.save, store, extra)
        return SavedCheckpoint(model=name, path=path, seconds=clock.monotonic_s() - started)

    def _can_save(self, name: str) -> bool:
        return name in self._stores and name not in self._ending and self._stores[name].is_initialised

    async def close(self) -> None:
        """Wait for steps under way."""
        await self._tasks.wait()


def _detail(found: NotFinite) -> str:
    return f"the step would make {found.tensor} NaN or Inf; version {found.version} was kept"
