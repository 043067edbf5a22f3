"""PyTorch's ring all-reduce over gloo, as DistributedDataParallel uses it."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist

from benchmarks.testbed.runs import Place, RunPlan, WorkerLog
from benchmarks.testbed.systems.collective import SumOfAll, train

__all__ = ["worker"]


def worker(place: Place, plan: RunPlan) -> WorkerLog:
    """Train with a ring all-reduce of the flat gradient in every step.

    Raises:
        RuntimeError: the other workers cannot be reached.
    """
    return train(place, plan, partial(SumOfAll, place, plan, lambda elements: _Ring()))


class _Ring:
    def expect(self) -> None:
        """Do nothing: gloo has its own buffers."""

    def reduce(self, vector: torch.Tensor) -> None:
        """Sum the vector over all workers."""
        dist.all_reduce(vector)
