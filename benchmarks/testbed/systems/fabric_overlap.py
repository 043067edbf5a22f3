"""mlfabric with overlap within the step: the model in buckets, each on its way while others are computed.

Asynchronous: each bucket is a parameter of a worker that is registered with ``overlap=True``, and leaves when backward
has made it. One update is one push of the whole model all the same, with one version and one delay.

Synchronous: an AllReduce of each bucket as soon as backward has made it, waited for when backward is through.

Everything else is as in ``fabric``.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

import mlfabric
from benchmarks.testbed.overlapping import Buckets, OverlappedCompute
from benchmarks.testbed.runs import Place, RunPlan, WorkerLog
from benchmarks.testbed.systems.fabric_members import SERVICES, prepare
from benchmarks.testbed.systems.fabric_training import train
from benchmarks.testbed.workload import Workload

__all__ = ["SERVICES", "prepare", "worker"]

PUSHED_BUCKETS = 8
REDUCED_SHARES = (0.75, 0.25)
"""Rounds of AllReduce follow one another, each with messages to and from the scheduler, so two: one that is over about
when backward is, and the rest.
"""


def worker(place: Place, plan: RunPlan) -> WorkerLog:
    """Train with a worker of the fabric until the run's time is over.

    Raises:
        TimeoutError: the others have not joined in time.
    """
    return train(place, plan, OverlappedCompute, _Pushed, _Summed, overlap=True)


class _Pushed:
    """The model in buckets, each a parameter: the first layer's first."""

    def __init__(self, workload: Workload, compute: OverlappedCompute) -> None:
        self.weights, self.compute = workload.initial(), compute
        self._buckets = Buckets.even(workload.n_parameters, PUSHED_BUCKETS)
        self._views = [torch.nn.Parameter(torch.from_numpy(self.weights[part])) for part in self._buckets.slices]
        self.parameters = {f"bucket{i}": view for i, view in enumerate(self._views)}
        self._gradient = np.empty(0, dtype=np.float32)

    def make(self, member: mlfabric.Worker, workload: Workload, rank: int, step: int) -> float:
        """Compute the gradient and let each bucket of it leave when it is made; return the loss."""
        function, give = partial(self._compute, workload, rank, step), partial(self._give, member)
        return self.compute.run_in_buckets(step, self._buckets, function, give)

    def _compute(self, workload: Workload, rank: int, step: int) -> float:
        self._gradient, loss = workload.gradient(self.weights, rank, step)
        return loss

    def _give(self, member: mlfabric.Worker, bucket: int) -> None:
        view = self._views[bucket]
        view.grad = torch.from_numpy(self._gradient[self._buckets.slices[bucket]])
        member.ready(view)


class _Summed:
    """Whether the run is over and behind it the gradient, summed bucket by bucket."""

    def __init__(self, elements: int, compute: OverlappedCompute, member: mlfabric.Worker) -> None:
        self.compute = compute
        self._vector = np.zeros(1 + elements, dtype=np.float32)
        self.gradient = self._vector[1:]
        self._buckets = Buckets.by_shares(1 + elements, REDUCED_SHARES)
        self._member = member
        self._parts = [torch.from_numpy(self._vector[part]) for part in self._buckets.slices]
        self._under_way: list[mlfabric.ReduceHandle] = []

    def make(self, workload: Workload, values: np.ndarray, rank: int, step: int, *, is_last: bool) -> float:
        """Compute the gradient and begin to sum each bucket of it when it is made; return the loss."""
        self._vector[0] = is_last
        function = partial(workload.gradient, values, rank, step, self.gradient)
        return self.compute.run_in_buckets(step, self._buckets, function, self._begin)[1]

    def _begin(self, bucket: int) -> None:
        self._under_way.append(self._member.all_reduce_async(self._parts[bucket]))

    def finish(self) -> bool:
        """Wait for all buckets; tell whether the run is over."""
        for handle in self._under_way:
            handle.result()
        self._under_way.clear()
        return bool(self._vector[0])
