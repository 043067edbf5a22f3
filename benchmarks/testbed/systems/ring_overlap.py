"""PyTorch's ring all-reduce over gloo, overlapped with backward as DistributedDataParallel does it.

The gradient is cut into DDP's buckets, the last layers first, and the all-reduce of each begins as soon as backward
has made it; gloo carries them out in threads of its own. When backward is through, the worker waits for all of them,
takes its step and begins anew: DDP does not overlap with forward. When backward makes which bucket is said in
``benchmarks.testbed.overlapping``.

Everything else is as in ``collective``. The element by which workers say that they find the run over is in front of
the gradient here, in the bucket that is made last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.testbed.overlapping import DDP_SHARES, Buckets, OverlappedCompute
from benchmarks.testbed.runs import Place, RunPlan, WorkerLog
from benchmarks.testbed.systems.collective import train
from benchmarks.testbed.systems.steps import compute_of
from benchmarks.testbed.workload import Workload

__all__ = ["BucketSum", "worker"]


def worker(place: Place, plan: RunPlan) -> WorkerLog:
    """Train with a ring all-reduce of each bucket of the gradient in every step.

    Raises:
        RuntimeError: the other workers cannot be reached.
    """
    return train(place, plan, partial(_SumOfGradients, place, plan))


class BucketSum:
    """The gradients of a group and in front of them a few numbers, summed bucket by bucket while backward goes on.

    Args:
        numbers: how many there are in front.
        workload: whose gradients.

    Attributes:
        numbers: after ``finish`` the sums of what the workers said.
        gradient: float32, flat: after ``finish`` the mean of all workers'.
    """

    def __init__(self, place: Place, plan: RunPlan, workload: Workload, numbers: int) -> None:
        self.compute = compute_of(OverlappedCompute, place, plan)
        self._vector = torch.zeros(numbers + workload.n_parameters)
        self.numbers, self.gradient = self._vector[:numbers], self._vector[numbers:]
        self._buckets = Buckets.by_shares(len(self._vector), DDP_SHARES)
        self._under_way: list[dist.Work] = []

    def make(
        self,
        group: dist.ProcessGroup | None,
        compute: Callable[[np.ndarray], tuple[np.ndarray, float]],
        step: int,
        said: Callable[[], Sequence[float]],
    ) -> float:
        """Compute this worker's gradient, and begin to sum each bucket of it when it is made; return the loss.

        Args:
            group: of those whose gradients are summed; None for all.
            compute: writes the gradient into a vector, and returns it and the loss.
            said: what this worker says in the numbers in front; called when the gradient is there.
        """
        function = partial(compute, self.gradient.numpy())
        return self.compute.run_in_buckets(step, self._buckets, function, partial(self._begin, group, said))[1]

    def _begin(self, group: dist.ProcessGroup | None, said: Callable[[], Sequence[float]], bucket: int) -> None:
        part = self._vector[self._buckets.slices[bucket]]
        part /= dist.get_world_size(group)
        if bucket == 0:
            self.numbers.copy_(torch.tensor(said()))
        work = dist.all_reduce(part, group=group, async_op=True)
        assert work is not None, "this process is in the group"
        self._under_way.append(work)

    def finish(self) -> None:
        """Wait for all buckets."""
        for work in self._under_way:
            work.wait()
        self._under_way.clear()


class _SumOfGradients:
    """The gradients of all workers; in front of them whether the run is over."""

    def __init__(self, place: Place, plan: RunPlan, workload: Workload) -> None:
        self._sum = BucketSum(place, plan, workload, numbers=1)
        self.gradient, self.compute = self._sum.gradient, self._sum.compute

    def make(self, workload: Workload, weights: np.ndarray, rank: int, step: int, is_over: Callable[[], bool]) -> float:
        """Compute this worker's gradient, and begin to sum each bucket of it when it is made; return the loss."""
        compute = partial(workload.gradient, weights, rank, step)
        return self._sum.make(None, compute, step, lambda: [float(is_over())])

    def finish(self) -> bool:
        """Wait for all buckets; tell whether some worker finds the run over."""
        self._sum.finish()
        return bool(self._sum.numbers[0] > 0)
