"""What the parts of a model that is cut are called, and what the plans of one part ask of the whole. Pure.

Part i of push p is the update with counter ``p * n + i`` of the model ``<name>.shard<i>``; of gets likewise.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import Committed, GetId, UpdateId, UpdateKind

__all__ = ["Whole", "name_of_whole", "part_of", "part_of_get", "whole_get_of", "whole_of"]

MOST_IDS = 4096
"""So many are remembered of each kind: every event about a part looks at all others of its push."""


class Whole(Protocol):
    """A model that is cut, as the plans of one of its parts see it."""

    @property
    def is_settled(self) -> bool:
        """Whether every part is where it was placed and stands as the others do: something can be planned."""

    @property
    def has_weights(self) -> bool:
        """Whether every part has initial weights."""

    def may_plan(self, part: UpdateId, kind: UpdateKind) -> bool:
        """Tell whether a part of a push that waits may be planned now."""

    def is_owed(self, part: UpdateId) -> bool:
        """Tell whether other parts of this push are committed: nothing may come in the way of this one."""

    def is_fixed(self, part: UpdateId) -> bool:
        """Tell whether the push of this part is committed at a part at least: it is everywhere, or was lost."""

    def lost(self, part: UpdateId) -> Committed | None:
        """Return how the push of this part was committed if it was lost since; else None."""


def name_of_whole(spec: ModelSpec) -> str:
    """Return the name of the model that a part belongs to; of a whole model its own."""
    return spec.name if spec.shard is None else spec.name.removesuffix(f".shard{spec.shard}")


@lru_cache(MOST_IDS)
def whole_of(part: UpdateId, shards: int) -> UpdateId:
    """Return the push that a part belongs to, as an id counted in pushes."""
    return UpdateId(part.worker, part.incarnation, part.counter // shards)


@lru_cache(MOST_IDS)
def part_of(push: UpdateId, shard: int, shards: int) -> UpdateId:
    """Return the id of one part of a push."""
    return UpdateId(push.worker, push.incarnation, push.counter * shards + shard)


@lru_cache(MOST_IDS)
def whole_get_of(part: GetId, shards: int) -> GetId:
    """Return the get that a part belongs to, as an id counted in whole gets."""
    return GetId(part.worker, part.incarnation, part.counter // shards)


@lru_cache(MOST_IDS)
def part_of_get(get: GetId, shard: int, shards: int) -> GetId:
    """Return the id of one part of a get."""
    return GetId(get.worker, get.incarnation, get.counter * shards + shard)
