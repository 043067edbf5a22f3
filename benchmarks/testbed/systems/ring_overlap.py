"""PyTorch's ring all-reduce over gloo, overlapped with backward as DistributedDataParallel does it.

The gradient is cut into DDP's buckets, the last layers first, and the all-reduce of each begins as soon as backward
has made it; gloo carries them out in threads of its own. When backward is through, the worker waits for all of them,
takes its step and begins anew: DDP does not overlap with forward. When backward makes which bucket is said in
``benchmarks.testbed.overlapping``.

Everything else is as in ``collective``. The element by which workers say that they find the run over is in front of
the gradient here, in the bucket that is made last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.testbed.overlapping import DDP_SHARES, Buckets, OverlappedCompute
from benchmarks.testbed.runs import Place, RunPlan, SnapshotKeeper, StepRecorder, WorkerLog
from benchmarks.testbed.systems.collective import agree_on_start, group
from benchmarks.testbed.systems.sgd import Momentum

__all__ = ["worker"]


def worker(place: Place, plan: RunPlan) -> WorkerLog:
    """Train with a ring all-reduce of each bucket of the gradient in every step.

    Raises:
        RuntimeError: the other workers cannot be reached.
    """
    rank = place.own_rank
    workload = plan.workload.build()
    compute = OverlappedCompute(
        plan.compute, seed=plan.seed, worker=rank, base_s=plan.base_compute_s, dilation=plan.dilation
    )
    model = Momentum(workload.initial(), step_size=plan.step_size(place.workers), momentum=plan.momentum)
    summed = _Summed(workload.n_parameters, place.workers)
    recorder, keeper = StepRecorder(), SnapshotKeeper()
    with group(place):
        began_ns = agree_on_start()
        keeper.offer(began_ns, 0, model.weights)
        steps, over = 0, False
        while not over:
            recorder.start()
            function = partial(workload.gradient, model.weights, rank, steps, summed.gradient.numpy())
            produced = partial(summed.begin, partial(_is_over, plan, began_ns, steps + 1))
            recorder.computed(compute.run_in_buckets(steps, summed.buckets, function, produced)[1])
            steps += 1
            over = summed.finish()
            model.step(summed.gradient)
            now_ns = recorder.end()
            if rank == 0:
                keeper.offer(now_ns, steps, model.weights)
    snapshots = keeper.finish(now_ns, steps, model.weights) if rank == 0 else ()
    return recorder.log(rank=rank, began_ns=began_ns, overruns=compute.overruns, snapshots=snapshots)


def _is_over(plan: RunPlan, began_ns: int, steps: int) -> bool:
    return plan.is_over(began_ns, time.monotonic_ns(), steps)


class _Summed:
    """The vector that is summed, bucket by bucket: whether the run is over, then the gradient.

    Args:
        elements: of the gradient.
        workers: whose mean it becomes.
    """

    def __init__(self, elements: int, workers: int) -> None:
        self._vector = torch.zeros(1 + elements)
        self.gradient = self._vector[1:]
        self.buckets = Buckets.by_shares(1 + elements, DDP_SHARES)
        self._workers = workers
        self._under_way: list[dist.Work] = []

    def begin(self, is_over: Callable[[], bool], bucket: int) -> None:
        """Begin to sum a bucket that backward has made; ``is_over`` is asked when it is the last."""
        part = self._vector[self.buckets.slices[bucket]]
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
