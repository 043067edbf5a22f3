"""What the requests that no plan holds yet wait for: a few kinds, the same on the status and as a metric. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum

from mlfabric.protocol import UpdateKind
from mlfabric.scheduler.model_state import ModelState
from mlfabric.scheduler.shards.parts import name_of_whole
from mlfabric.scheduler.shards.sharded import ShardedModel
from mlfabric.scheduler.state import SchedulerState

__all__ = ["Wait", "count_waits"]


class Wait(Enum):
    """What is in the way of a request, the first of these that is."""

    SERVER = "server"
    """That the server, or one of several, is there again, answers, or has let go of what came before."""
    WEIGHTS = "weights"
    """That the model has weights."""
    UPDATE = "update"
    """That the worker's own update, which a get follows, is settled."""
    WORKERS = "workers"
    """That other workers join, ask as well, or come nearer, as the mode has it."""
    TURN = "turn"
    """Its turn on the links."""


def count_waits(state: SchedulerState) -> dict[str, Counter[Wait]]:
    """Return for each model, part of a model and AllReduce job how many requests wait for what."""
    found = {}
    for name, model in state.models.items():
        whole = None if model.pushes.spec.shard is None else state.wholes[name_of_whole(model.pushes.spec)]
        gets = _gets(model) if whole is None else _gets_of_part(whole, model.pushes.spec.shard or 0)
        is_away = model.pushes.awaited or not state.context.is_here(model.pushes.server)
        if is_away or (whole is not None and whole.waits_for):
            found[name] = Counter({Wait.SERVER: len(model.pushes.waiting) + sum(1 for _ in gets)})
        else:
            found[name] = Counter((*_pushes(model), *gets))
    for name, rounds in state.reductions.items():
        found[name] = Counter({Wait.WORKERS if rounds.waits_for_workers else Wait.TURN: rounds.waiting})
    return found


def _pushes(model: ModelState) -> Iterator[Wait]:
    """Yield what updates wait for whose server is there."""
    pushes = model.pushes
    ready = {waiting.request.update for waiting in pushes.ready()}
    for update, waiting in pushes.waiting.items():
        if update in pushes.planned:
            yield Wait.SERVER
        elif update in ready:
            yield Wait.TURN
        elif not pushes.initialised and waiting.request.kind is not UpdateKind.INITIAL:
            yield Wait.WEIGHTS
        else:
            yield Wait.WORKERS if pushes.policy.waits_for_others else Wait.TURN


def _gets(model: ModelState) -> Iterator[Wait]:
    """Yield what gets wait for whose server is there."""
    pushes = model.pushes
    standing = pushes.standing()
    for waiting in model.gets.waiting.values():
        after = waiting.request.after_update
        if after in pushes.waiting or after in pushes.planned:
            yield Wait.UPDATE
        elif not pushes.initialised:
            yield Wait.WEIGHTS
        elif pushes.policy.holds_back(waiting.request, standing):
            yield Wait.WORKERS
        else:
            yield Wait.TURN


def _gets_of_part(whole: ShardedModel, shard: int) -> Iterator[Wait]:
    """Yield what the gets of one part wait for, which are answered together with those of the others."""
    for known in whole.gets.values():
        if known.is_served or shard not in known.asked:
            continue
        if whole.follows_open(known):
            yield Wait.UPDATE
        elif not whole.has_weights:
            yield Wait.WEIGHTS
        elif whole.holds_back(known):
            yield Wait.WORKERS
        else:
            yield Wait.TURN
