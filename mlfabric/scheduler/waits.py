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
    """That other workers join, ask as well, or come nearer, as the method has it."""
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
    for request in (waiting.request for waiting in model.gets.waiting.values()):
        follows = request.after_update in pushes.waiting or request.after_update in pushes.planned
        yield _get(follows, pushes.initialised, pushes.policy.holds_back(request, standing))


def _gets_of_part(whole: ShardedModel, shard: int) -> Iterator[Wait]:
    """Yield what the gets of one part wait for, which are answered together with those of the others."""
    for known in whole.gets.values():
        if not known.is_served and shard in known.asked:
            yield _get(whole.follows_open(known), whole.has_weights, whole.holds_back(known))


def _get(follows: bool, has_weights: bool, held_back: str) -> Wait:
    """Return what a get waits for: whether it follows an update that is open, and why the method holds it back."""
    if follows:
        return Wait.UPDATE
    if not has_weights:
        return Wait.WEIGHTS
    return Wait.WORKERS if held_back else Wait.TURN
