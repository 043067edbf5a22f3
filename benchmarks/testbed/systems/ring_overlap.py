"""PyTorch's ring all-reduce over gloo, overlapped with backward as DistributedDataParallel does it.

The gradient is cut into DDP's buckets, the last layers first, and the all-reduce of each begins as soon as backward
has made it; gloo carries them out in threads of its own. When backward is through, the worker waits for all of them,
takes its step and begins anew: DDP does not overlap with forward. When backward makes which bucket is said in
``benchmarks.testbed.overlapping``.

Everything else is as in ``collective``. The element by which workers say that they find the run over is in front of
the gradient here, in the bucket that is made last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.testbed.overlapping import DDP_SHARES, Buckets, OverlappedCompute
from benchmarks.testbed.runs import Place, RunPlan, WorkerLog
from benchmarks.testbed.systems.collective import train
from benchmarks.testbed.systems.steps import compute_of
from benchmarks.testbed.workload import Workload

__all__ = ["worker"]


def worker(place: Place, plan: RunPlan) -> WorkerLog:
    """Train with a ring all-reduce of each bucket of the gradient in every step.

    Raises:
        RuntimeError: the other workers cannot be reached.
    """
    return train(place, plan, partial(_SumOfBuckets, place, plan))


class _SumOfBuckets:
    """The gradient, and in front of it whether the run is over, summed bucket by bucket while backward goes on."""

    def __init__(self, place: Place, plan: RunPlan, workload: Workload) -> None:
        self.compute = compute_of(OverlappedCompute, place, plan)
        self._vector = torch.zeros(1 + workload.n_parameters)
        self.gradient = self._vector[1:]
        self._buckets = Buckets.by_shares(len(self._vector), DDP_SHARES)
        self._workers = place.workers
        self._under_way: list[dist.Work] = []

    def make(self, workload: Workload, weights: np.ndarray, rank: int, step: int, is_over: Callable[[], bool]) -> float:
        """Compute this worker's gradient, and begin to sum each bucket of it when it is made; return the loss."""
        function = partial(workload.gradient, weights, rank, step, self.gradient.numpy())
        return self.compute.run_in_buckets(step, self._buckets, function, partial(self._begin, is_over))[1]

    def _begin(self, is_over: Callable[[], bool], bucket: int) -> None:
        part = self._vector[self._buckets.slices[bucket]]
        part /= self._workers
        if bucket == 0:
            self._vector[0] = is_over()
        work = dist.all_reduce(part, async_op=True)
        assert work is not None, "this process is in the group"
        self._under_way.append(work)

    def finish(self) -> bool:
        """Wait for all buckets; tell whether some worker finds the run over."""
        for work in self._under_way:
            work.wait()
        self._under_way.clear()
        return bool(self._vector[0] > 0)
