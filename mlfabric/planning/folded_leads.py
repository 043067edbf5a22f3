"""The replica's missing updates, folded: each worker adds its pending updates up and sends them as one item.

A worker's fold of several updates is a pair of images if the server keeps momentum, so it is sent as two tensors;
without momentum, or if it has only one update, as one (design, section 5, "Momentum and sums").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mlfabric.planning.fluid.world import World
from mlfabric.planning.problem import Pending
from mlfabric.planning.profiles import Lot
from mlfabric.protocol import UpdateId

__all__ = ["Folded", "fold"]


class Folded(NamedTuple):
    """A lot for the replica: the items of ``folds``, each named by its first update, then updates by themselves."""

    lot: Lot
    folds: Mapping[UpdateId, tuple[UpdateId, ...]]

    def members(self, items: Iterable[UpdateId]) -> Iterator[UpdateId]:
        """Yield the updates in some items."""
        for item in items:
            yield from self.folds.get(item, (item,))


def fold(pending: Sequence[Pending], lot: Lot, world: World, *, gamma: float, now_ns: int) -> Folded:
    """Put what is pending in front of a lot, one item for each worker, in the order of their first updates.

    Args:
        pending: oldest first; an item leaves from where its worker's latest update is, a source of the world.
        lot: its updates are sent alone when they are ready, however they are sent to the primary.
    """
    if not pending:
        return Folded(lot._replace(fixed=0, flies=np.zeros_like(lot.flies), direct=None), {})
    of_worker: dict[str, list[Pending]] = {}
    for p in pending:
        of_worker.setdefault(p.update.worker, []).append(p)
    items = list(of_worker.values())
    single = np.array([8 * max(p.size_bytes for p in item) for item in items], np.int64)
    tensors = np.array([2 if gamma > 0 and len(item) > 1 else 1 for item in items], np.int64)
    source = np.array(world.numbers([item[-1].source for item in items]), np.int64)
    together = Lot(
        updates=[*(item[0].update for item in items), *lot.updates],
        source=np.concatenate((source, lot.source)),
        bits=np.concatenate((single * tensors, lot.bits)),
        ready_ns=np.concatenate((np.full(len(items), now_ns, np.int64), lot.ready_ns)),
        fixed=0,
        flies=np.zeros(len(items) + len(lot.updates), np.int64),
        direct=None,
    )
    return Folded(together, {item[0].update: tuple(p.update for p in item) for item in items})
