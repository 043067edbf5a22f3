"""mlfabric with overlap within the step: the model in buckets, each on its way while others are computed.

Asynchronous: each bucket is a parameter of a worker that is registered with ``overlap=True``, and leaves when backward
has made it. One update is one push of the whole model all the same, with one version and one delay.

Synchronous: an AllReduce of each bucket as soon as backward has made it, waited for when backward is through.

Everything else is as in ``fabric``.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import numpy as np
import torch

import mlfabric
from benchmarks.testbed.forwarding import ForwardingFile
from benchmarks.testbed.overlapping import Buckets, OverlappedCompute
from benchmarks.testbed.runs import Consistency, Place, RunPlan, SnapshotKeeper, StepRecorder, WorkerLog
from benchmarks.testbed.systems.fabric import (
    MODEL,
    SERVER,
    SERVICES,
    aggregator_beside,
    aggregators,
    prepare,
    settings_of,
    wait_for_all,
)
from benchmarks.testbed.workload import Workload
from mlfabric.protocol import Committed

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
    return _by_pushing(place, plan) if plan.consistency is Consistency.ASYNCHRONOUS else _by_all_reduce(place, plan)


def _by_pushing(place: Place, plan: RunPlan) -> WorkerLog:
    """Let every bucket of the gradient leave when it is made, and go on with the model that follows."""
    workload = plan.workload.build()
    pieces = _Pieces(workload)
    with ForwardingFile() as came:
        with (
            aggregator_beside(place, came),
            mlfabric.register_as_worker(
                pieces.parameters,
                rule=mlfabric.RuleSpec(
                    lr=plan.step_size(place.workers), momentum=plan.momentum, momentum_at=mlfabric.MomentumAt.WORKERS
                ),
                model_name=MODEL,
                tau_max=plan.delay_bound,
                overlap=True,
                settings=settings_of(place),
            ) as member,
        ):
            log = _push_all(place, plan, workload, member, pieces)
        return replace(log, forwarded=came.read(place.name))


class _Pieces:
    """The model in buckets, each a parameter: the first layer's first."""

    def __init__(self, workload: Workload) -> None:
        self.weights = workload.initial()
        self.buckets = Buckets.even(workload.n_parameters, PUSHED_BUCKETS)
        views = [torch.nn.Parameter(torch.from_numpy(self.weights[part])) for part in self.buckets.slices]
        self.parameters = {f"bucket{i}": view for i, view in enumerate(views)}
        self._views = views
        self._gradient = np.empty(0, dtype=np.float32)

    def compute(self, workload: Workload, rank: int, step: int) -> float:
        """Compute the gradient of which buckets are given next; return the loss."""
        self._gradient, loss = workload.gradient(self.weights, rank, step)
        return loss

    def give(self, member: mlfabric.Worker, bucket: int) -> None:
        """Let a bucket of the gradient leave."""
        view = self._views[bucket]
        view.grad = torch.from_numpy(self._gradient[self.buckets.slices[bucket]])
        member.ready(view)


def _push_all(place: Place, plan: RunPlan, workload: Workload, member: mlfabric.Worker, pieces: _Pieces) -> WorkerLog:
    keeper, recorder, compute = SnapshotKeeper(), StepRecorder(), _compute(place, plan)
    rank = place.own_rank
    applied_ns: list[int] = []
    delays: list[int] = []
    step = 0
    member.get()
    wait_for_all(place, aggregators(place))
    began_ns = now_ns = time.monotonic_ns()
    while not plan.is_over(began_ns, now_ns, step):
        recorder.start()
        function = partial(pieces.compute, workload, rank, step)
        recorder.computed(compute.run_in_buckets(step, pieces.buckets, function, partial(pieces.give, member)))
        pushed = member.push()
        version = member.get()
        now_ns = recorder.end()
        if isinstance(outcome := pushed.result(), Committed):
            applied_ns.append(now_ns)
            delays.append(outcome.tau)
        else:
            workload.turned_away()
        if rank == 0:
            keeper.offer(now_ns, version.number, pieces.weights)
        step += 1
    return replace(
        recorder.log(rank=rank, began_ns=began_ns, overruns=compute.overruns),
        snapshots=keeper.finish(now_ns, member.version.number, pieces.weights) if rank == 0 else (),
        applied_ns=np.array(applied_ns, dtype=np.int64),
        delays=np.array(delays, dtype=np.int32),
        dropped=step - len(applied_ns),
    )


def _by_all_reduce(place: Place, plan: RunPlan) -> WorkerLog:
    """Sum every bucket when it is made, and step everywhere alike."""
    workload, keeper, recorder, compute = plan.workload.build(), SnapshotKeeper(), StepRecorder(), _compute(place, plan)
    values, rank = workload.initial(), place.own_rank
    velocity = np.zeros_like(values)
    with (
        ForwardingFile() as came,
        mlfabric.register_as_worker(
            {"weights": torch.nn.Parameter(torch.from_numpy(values.copy()))},
            mode=mlfabric.Mode.ALL_REDUCE,
            settings=settings_of(place),
        ) as member,
    ):
        summed = _Summed(member, workload.n_parameters)
        gradient = summed.vector[1:]
        wait_for_all(place, [SERVER])  # which nobody needs here; one that came too late would never be seen to leave
        came.listen()
        member.all_reduce(torch.zeros(1))
        began_ns = now_ns = time.monotonic_ns()
        step, is_over = 0, False
        while not is_over:
            recorder.start()
            summed.vector[0] = rank == 0 and plan.is_over(began_ns, now_ns, step + 1)
            function = partial(workload.gradient, values, rank, step, gradient)
            recorder.computed(compute.run_in_buckets(step, summed.buckets, function, summed.begin)[1])
            summed.finish()
            velocity *= plan.momentum
            velocity += gradient / place.workers
            values -= plan.learning_rate * velocity
            now_ns = recorder.end()
            step, is_over = step + 1, bool(summed.vector[0])
            if rank == 0:
                keeper.offer(now_ns, step, values)
        forwarded = came.read(place.name)
    log = recorder.log(rank=rank, began_ns=began_ns, overruns=compute.overruns)
    snapshots = keeper.finish(now_ns, step, values) if rank == 0 else ()
    return replace(log, snapshots=snapshots, forwarded=forwarded)


class _Summed:
    """What is summed, bucket by bucket: whether the run is over, then the gradient.

    Args:
        member: sums.
        elements: of the gradient.

    Attributes:
        vector: float32: this worker's until it is summed, then the sum of all workers'.
    """

    def __init__(self, member: mlfabric.Worker, elements: int) -> None:
        self.vector = np.zeros(1 + elements, dtype=np.float32)
        self.buckets = Buckets.by_shares(1 + elements, REDUCED_SHARES)
        self._member = member
        self._parts = [torch.from_numpy(self.vector[part]) for part in self.buckets.slices]
        self._under_way: list[mlfabric.ReduceHandle] = []

    def begin(self, bucket: int) -> None:
        """Begin to sum a bucket that backward has made."""
        self._under_way.append(self._member.all_reduce_async(self._parts[bucket]))

    def finish(self) -> None:
        """Wait for all buckets."""
        for handle in self._under_way:
            handle.result()
        self._under_way.clear()


def _compute(place: Place, plan: RunPlan) -> OverlappedCompute:
    return OverlappedCompute(
        plan.compute, seed=plan.seed, worker=place.own_rank, base_s=plan.base_compute_s, dilation=plan.dilation
    )
