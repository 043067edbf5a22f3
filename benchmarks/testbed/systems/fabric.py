"""mlfabric itself: every worker a process of its own, as on a cluster.

Asynchronous workers keep the momentum, so that a sum is one tensor. Synchronous ones use AllReduce and need no server,
which is there all the same.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

import mlfabric
from benchmarks.testbed.runs import Place, RunPlan, WorkerLog
from benchmarks.testbed.systems.fabric_members import SERVICES, prepare
from benchmarks.testbed.systems.fabric_training import train
from benchmarks.testbed.workload import PaddedCompute, Workload

__all__ = ["SERVICES", "prepare", "worker"]


def worker(place: Place, plan: RunPlan) -> WorkerLog:
    """Train with a worker of the fabric until the run's time is over.

    Raises:
        TimeoutError: the others have not joined in time.
    """
    return train(place, plan, PaddedCompute, _Pushed, _Summed, overlap=False)


class _Pushed:
    """The model as one parameter."""

    def __init__(self, workload: Workload, compute: PaddedCompute) -> None:
        self.weights, self.compute = workload.initial(), compute
        self._view = torch.nn.Parameter(torch.from_numpy(self.weights))
        self.parameters = {"weights": self._view}

    def make(self, member: mlfabric.Worker, workload: Workload, rank: int, step: int) -> float:
        """Compute the gradient; return the loss."""
        gradient, loss = self.compute.run(step, partial(workload.gradient, self.weights, rank, step))
        self._view.grad = torch.from_numpy(gradient)
        return loss


class _Summed:
    """The gradient and behind it whether the run is over, summed at once."""

    def __init__(self, elements: int, compute: PaddedCompute, member: mlfabric.Worker) -> None:
        self.compute = compute
        self._total = torch.zeros(elements + 1)
        self._member = member

    @property
    def gradient(self) -> np.ndarray:
        """The sum of all workers' gradients."""
        return self._total[:-1].numpy()

    def make(self, workload: Workload, values: np.ndarray, rank: int, step: int, *, is_last: bool) -> float:
        """Compute the gradient; return the loss."""
        gradient, loss = self.compute.run(step, partial(workload.gradient, values, rank, step))
        self._total[:-1] = torch.from_numpy(gradient)
        self._total[-1] = float(is_last)
        return loss

    def finish(self) -> bool:
        """Sum; tell whether the run is over."""
        self._member.all_reduce(self._total)
        return bool(self._total[-1])
