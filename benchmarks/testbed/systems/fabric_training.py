"""How a worker of a fabric trains, whatever it does to hand its gradients over: by pushing, and by AllReduce."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
import torch

import mlfabric
from benchmarks.testbed.forwarding import ForwardingFile
from benchmarks.testbed.recording import SnapshotKeeper, StepRecorder
from benchmarks.testbed.runs import Consistency, Place, RunPlan, WorkerLog
from benchmarks.testbed.systems.fabric_members import (
    MODEL,
    SERVER,
    aggregator_beside,
    aggregators,
    replicas,
    settings_of,
    wait_for_all,
)
from benchmarks.testbed.systems.steps import Compute, compute_of
from benchmarks.testbed.workload import PaddedCompute, Workload
from mlfabric.model.specs import Method
from mlfabric.protocol import Committed

__all__ = ["Pushing", "Summing", "train", "train_by_all_reduce", "train_by_pushing"]


def train(
    place: Place,
    plan: RunPlan,
    kind: type[Compute],
    pushed: Callable[[Workload, Compute], Pushing],
    summed: Callable[[int, Compute, mlfabric.Worker], Summing],
    *,
    overlap: bool,
) -> WorkerLog:
    """Train until the run's time is over, by pushing if the run is asynchronous, else by AllReduce.

    Args:
        kind: of what makes steps last as long as they should.
        pushed, summed: what does the one or the other; of so many elements.
        overlap: what is pushed leaves while backward still makes the rest.

    Raises:
        TimeoutError: the others have not joined in time.
    """
    workload, compute = plan.workload.build(), compute_of(kind, place, plan)
    if plan.consistency is Consistency.ASYNCHRONOUS:
        return train_by_pushing(place, plan, workload, pushed(workload, compute), overlap=overlap)
    return train_by_all_reduce(place, plan, workload, partial(summed, workload.n_parameters, compute))


class Pushing(Protocol):
    """A model whose gradients are pushed.

    Attributes:
        weights: float32, flat; the model that is trained.
        parameters: what is registered: views of the weights.
    """

    weights: np.ndarray
    parameters: dict[str, torch.nn.Parameter]

    @property
    def compute(self) -> PaddedCompute:
        """How long steps last."""

    def make(self, member: mlfabric.Worker, workload: Workload, rank: int, step: int) -> float:
        """Compute the gradient and give it to the parameters; return the loss."""


def train_by_pushing(place: Place, plan: RunPlan, workload: Workload, model: Pushing, *, overlap: bool) -> WorkerLog:
    """Push every gradient and go on with the model that follows it."""
    rule = mlfabric.RuleSpec(
        lr=plan.step_size(place.workers), momentum=plan.momentum, momentum_at=mlfabric.MomentumAt.WORKERS
    )
    with ForwardingFile() as came:
        with (
            aggregator_beside(place, came),
            mlfabric.register_as_worker(
                model.parameters,
                rule=rule,
                model_name=MODEL,
                tau_max=plan.delay_bound,
                overlap=overlap,
                settings=settings_of(place),
            ) as member,
        ):
            log = _push_all(place, plan, workload, member, model)
        return replace(log, forwarded=came.read(place.name))


def _push_all(place: Place, plan: RunPlan, workload: Workload, member: mlfabric.Worker, model: Pushing) -> WorkerLog:
    keeper, recorder, rank = SnapshotKeeper(), StepRecorder(), place.own_rank
    applied_ns: list[int] = []
    delays: list[int] = []
    step = 0
    member.get()
    wait_for_all(place, [*aggregators(place), *replicas(place)])
    began_ns = now_ns = time.monotonic_ns()
    while not plan.is_over(began_ns, now_ns, step):
        recorder.start()
        recorder.computed(model.make(member, workload, rank, step))
        pushed = member.push()
        version = member.get()
        now_ns = recorder.end()
        if isinstance(outcome := pushed.result(), Committed):
            applied_ns.append(now_ns)
            delays.append(outcome.tau)
        else:
            workload.turned_away()
        if rank == 0:
            keeper.offer(now_ns, version.number, model.weights)
        step += 1
    return replace(
        recorder.log(rank=rank, began_ns=began_ns, overruns=model.compute.overruns),
        snapshots=keeper.finish(now_ns, member.version.number, model.weights) if rank == 0 else (),
        applied_ns=np.array(applied_ns, dtype=np.int64),
        delays=np.array(delays, dtype=np.int32),
        dropped=step - len(applied_ns),
    )


class Summing(Protocol):
    """A gradient that is summed with those of all other workers."""

    @property
    def gradient(self) -> np.ndarray:
        """After ``finish`` the sum: float32, flat."""

    @property
    def compute(self) -> PaddedCompute:
        """How long steps last."""

    def make(self, workload: Workload, values: np.ndarray, rank: int, step: int, *, is_last: bool) -> float:
        """Compute the gradient of a model; return the loss.

        Args:
            is_last: what is said to all others along with it.
        """

    def finish(self) -> bool:
        """Wait for the sum; tell whether anybody said that it is the last."""


def train_by_all_reduce(
    place: Place, plan: RunPlan, workload: Workload, summing: Callable[[mlfabric.Worker], Summing]
) -> WorkerLog:
    """Sum the gradients of all workers, reduction and distribution overlapped, and step everywhere alike."""
    values = workload.initial()
    with (
        ForwardingFile() as came,
        mlfabric.register_as_worker(
            {"weights": torch.nn.Parameter(torch.from_numpy(values.copy()))},
            method=Method.ALL_REDUCE,
            settings=settings_of(place),
        ) as member,
    ):
        wait_for_all(place, [SERVER])  # which nobody needs here; one that came too late would never be seen to leave
        came.listen()
        log = _sum_all(place, plan, workload, member, summing(member), values)
        return replace(log, forwarded=came.read(place.name))


def _sum_all(
    place: Place, plan: RunPlan, workload: Workload, member: mlfabric.Worker, summed: Summing, values: np.ndarray
) -> WorkerLog:
    keeper, recorder, rank = SnapshotKeeper(), StepRecorder(), place.own_rank
    velocity = np.zeros_like(values)
    member.all_reduce(torch.zeros(1))
    began_ns = now_ns = time.monotonic_ns()
    step, is_over = 0, False
    while not is_over:
        recorder.start()
        is_last = rank == 0 and plan.is_over(began_ns, now_ns, step + 1)
        recorder.computed(summed.make(workload, values, rank, step, is_last=is_last))
        is_over = summed.finish()
        velocity *= plan.momentum
        velocity += summed.gradient / place.workers
        values -= plan.learning_rate * velocity
        now_ns = recorder.end()
        step += 1
        if rank == 0:
            keeper.offer(now_ns, step, values)
    log = recorder.log(rank=rank, began_ns=began_ns, overruns=summed.compute.overruns)
    return replace(log, snapshots=keeper.finish(now_ns, step, values) if rank == 0 else ())
