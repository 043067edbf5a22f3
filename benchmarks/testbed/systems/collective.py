"""Synchronous training by an all-reduce over gloo: what the ring and the tree have in common.

Every worker keeps the model and steps it itself, along the mean of all gradients, as PyTorch's DistributedDataParallel
does: each worker divides its gradient by the number of workers before the sum. DDP puts a model of this size into one
bucket, so one all-reduce a step is what it would do too.

The summed vector has one element more than the model: workers that find the run over add 1 to it, so that all of them
end after the same step without another message.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from benchmarks.testbed.recording import SnapshotKeeper, StepRecorder
from benchmarks.testbed.runs import Place, RunPlan, WorkerLog, worker_name
from benchmarks.testbed.systems.sgd import Momentum
from benchmarks.testbed.systems.steps import compute_of
from benchmarks.testbed.workload import PaddedCompute, Workload

__all__ = [
    "AllReduce",
    "GradientSum",
    "SumOfAll",
    "agree_on_start",
    "agree_through",
    "group",
    "meeting_point",
    "train",
]

TIMEOUT_S = 120.0


class AllReduce(Protocol):
    """Sums a float32 vector over all workers."""

    def expect(self) -> None:
        """Get ready to take what comes from others that are earlier; called before the gradient is computed."""

    def reduce(self, vector: torch.Tensor) -> None:
        """Replace the vector by the sum of all workers' vectors; called once after each ``expect``."""


class GradientSum(Protocol):
    """The gradients of all workers, summed in one way or another.

    Attributes:
        gradient: float32, flat: after ``finish`` the mean of all workers'.
    """

    gradient: torch.Tensor

    @property
    def compute(self) -> PaddedCompute:
        """How long steps last."""

    def make(self, workload: Workload, weights: np.ndarray, rank: int, step: int, is_over: Callable[[], bool]) -> float:
        """Compute this worker's gradient; return the loss.

        Args:
            is_over: tells whether the run is over, once the gradient is there.
        """

    def finish(self) -> bool:
        """Wait until it is summed; tell whether some worker finds the run over."""


class SumOfAll:
    """The whole gradient, and behind it whether the run is over, summed at once when it is there.

    Args:
        place: of this worker.
        plan: the run's.
        make_all_reduce: makes this system's all-reduce for vectors of so many elements.
        workload: whose gradients.
    """

    def __init__(
        self, place: Place, plan: RunPlan, make_all_reduce: Callable[[int], AllReduce], workload: Workload
    ) -> None:
        self.compute = compute_of(PaddedCompute, place, plan)
        self._vector = torch.zeros(workload.n_parameters + 1)
        self.gradient = self._vector[:-1]
        self._all_reduce = make_all_reduce(len(self._vector))
        self._workers = place.workers
        self._is_over: Callable[[], bool] = bool

    def make(self, workload: Workload, weights: np.ndarray, rank: int, step: int, is_over: Callable[[], bool]) -> float:
        """Compute this worker's gradient; return the loss."""
        self._is_over = is_over
        self._all_reduce.expect()
        return self.compute.run(step, partial(workload.gradient, weights, rank, step, self.gradient.numpy()))[1]

    def finish(self) -> bool:
        """Sum; tell whether some worker finds the run over."""
        self.gradient /= self._workers
        self._vector[-1] = self._is_over()
        self._all_reduce.reduce(self._vector)
        return bool(self._vector[-1] > 0)


def train(place: Place, plan: RunPlan, make_sum: Callable[[Workload], GradientSum]) -> WorkerLog:
    """Train until the plan is over.

    Args:
        place: of this worker.
        plan: the same at all workers.
        make_sum: makes what sums this system's gradients; called in the group.

    Returns:
        This worker's log; rank 0's has the snapshots.

    Raises:
        RuntimeError: the other workers cannot be reached.
    """
    rank = place.own_rank
    workload = plan.workload.build()
    model = Momentum(workload.initial(), step_size=plan.step_size(place.workers), momentum=plan.momentum)
    recorder, keeper = StepRecorder(), SnapshotKeeper(every_ns=0)
    with group(place):
        summed = make_sum(workload)
        began_ns = agree_on_start()
        keeper.offer(began_ns, 0, model.weights)
        judged = partial(workload.accuracy, model.weights) if rank == 0 else None
        steps, over = 0, False
        while not over:
            recorder.start()
            is_over = partial(_is_over, plan, began_ns, steps + 1, judged)
            recorder.computed(summed.make(workload, model.weights, rank, steps, is_over))
            steps += 1
            over = summed.finish()
            model.step(summed.gradient)
            now_ns = recorder.end()
            if rank == 0:
                keeper.offer(now_ns, steps, model.weights)
    snapshots = keeper.finish(now_ns, steps, model.weights) if rank == 0 else ()
    return recorder.log(rank=rank, began_ns=began_ns, overruns=summed.compute.overruns, snapshots=snapshots)


def _is_over(plan: RunPlan, began_ns: int, steps: int, accuracy: Callable[[], float] | None) -> bool:
    return plan.is_over(began_ns, time.monotonic_ns(), steps, accuracy)


@contextmanager
def group(place: Place) -> Iterator[None]:
    """Be in a gloo group of all workers, which meet at a store on w0.

    Raises:
        RuntimeError: the others cannot be reached.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    timeout = timedelta(seconds=TIMEOUT_S)
    store = meeting_point(place)
    dist.init_process_group("gloo", store=store, rank=place.own_rank, world_size=place.workers, timeout=timeout)
    try:
        yield
    finally:
        dist.destroy_process_group()


def meeting_point(place: Place) -> TCPStore:
    """Return the store, which w0 keeps on its own address only; left to itself it would listen on all."""
    address, timeout = place.addresses[worker_name(0)], timedelta(seconds=TIMEOUT_S)
    if place.own_rank:
        return TCPStore(address, place.port, place.workers, is_master=False, timeout=timeout)
    listener = socket.create_server((address, place.port), backlog=place.workers)
    return TCPStore(
        address, place.port, place.workers, is_master=True, timeout=timeout, master_listen_fd=listener.detach()
    )


def agree_through(store: TCPStore, place: Place) -> int:
    """Do as ``agree_on_start`` does, where workers are in no group."""
    if store.add("ready", 1) == place.workers:
        store.set("began", str(time.monotonic_ns()))
    return int(store.get("began"))


def agree_on_start() -> int:
    """Wait for all workers and return the time in ns when the last of them was ready."""
    now_ns = torch.tensor([time.monotonic_ns()])
    dist.all_reduce(now_ns, op=dist.ReduceOp.MAX)
    return int(now_ns)
