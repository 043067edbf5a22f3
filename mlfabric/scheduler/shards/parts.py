"""What the parts of a model that is cut are called. Pure.

Part i of push p is the update with counter ``p * n + i`` of the model ``<name>.shard<i>``; of gets likewise.
"""

from __future__ import annotations

from functools import lru_cache

from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import GetId, UpdateId

__all__ = ["name_of_whole", "part_of", "part_of_get", "whole_get_of", "whole_of"]

MOST_IDS = 4096
"""So many are remembered of each kind: every event about a part looks at all others of its push."""


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
