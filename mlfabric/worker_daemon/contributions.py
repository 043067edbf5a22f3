"""What a worker brings to a round, as its daemon is given it."""

from __future__ import annotations

from dataclasses import dataclass

from mlfabric.protocol import ReduceOp
from mlfabric.worker_daemon.attempts import ReduceBuffers

__all__ = ["Contribution"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """A tensor that is to be summed with those of other workers.

    Args:
        buffers: its bytes, and where the result goes.
        together: how many workers begin together, >= 1.
        op, computed_from, updates, weight, rates, for_all: see :class:`mlfabric.protocol.ReduceRequested`.
    """

    buffers: ReduceBuffers
    together: int
    op: ReduceOp = ReduceOp.SUM
    computed_from: int = 0
    updates: int = 1
    weight: int = 1
    rates: tuple[float, ...] = ()
    for_all: bool = False
