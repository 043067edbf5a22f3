"""mlfabric without a server, through ``mlfabric.wrap``: every worker steps by itself along the mean of a round.

The catalogue says which method is wrapped. Nobody tells a worker when the others end: the model says it
(``flat_model``).

Workers that make inner steps see the shared model after each round; a gradient that is in it is one of theirs.

With overlap the model is cut into several parameters, and each gradient leaves when backward would have made it
(``benchmarks.testbed.overlapping``); into as many where rounds have fragments of it.

A few workers keep the model after each of their rounds: one of them alone would miss the rounds that settle while it
computes for longer than the others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

import mlfabric
from benchmarks.testbed.overlapping import Buckets, OverlappedCompute
from benchmarks.testbed.recording import SnapshotKeeper, StepRecorder
from benchmarks.testbed.runs import Place, RunPlan, WorkerLog
from benchmarks.testbed.systems.collective import agree_through, meeting_point
from benchmarks.testbed.systems.fabric_members import MODEL, WITHOUT_SERVER, prepare, settings_of
from benchmarks.testbed.systems.flat_model import Flat
from benchmarks.testbed.systems.steps import compute_of
from benchmarks.testbed.workload import Workload
from mlfabric.worker_daemon.local_steps import LocalOptimizer
from mlfabric.worker_daemon.round_optimizer import RoundOptimizer

__all__ = ["SERVICES", "prepare", "worker"]

SERVICES = WITHOUT_SERVER
Wrapped = RoundOptimizer | LocalOptimizer
KEEPERS = 3
OVERLAPPED_BUCKETS = 8


def worker(place: Place, plan: RunPlan) -> WorkerLog:
    """Train in rounds until the run is over.

    Raises:
        RuntimeError: the others have not joined in time.
    """
    workload = plan.workload.build()
    is_cut = "overlap" in plan.wrapped or "fragments" in plan.wrapped
    buckets = Buckets.even(1 + workload.n_parameters, OVERLAPPED_BUCKETS if is_cut else 1)
    model = Flat(workload, buckets)
    sgd = torch.optim.SGD(model.parameters(), lr=plan.learning_rate, momentum=plan.momentum)
    arguments: dict[str, Any] = {**plan.wrapped, "workers": place.workers, "settings": settings_of(place)}
    optimizer = mlfabric.wrap(sgd, model, model_name=MODEL, **arguments)
    assert isinstance(optimizer, Wrapped), "the method has no server"
    try:
        return _train(place, plan, workload, model, optimizer, buckets)
    finally:
        optimizer.leave()


@dataclass(slots=True, kw_only=True)
class _Fates:
    """What became of a worker's gradients; so many ``steps`` have the same fate."""

    steps: int = 1
    applied_ns: list[int] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    dropped: int = 0

    def note(self, optimizer: Wrapped, now_ns: int) -> None:
        """Keep what became of the last one, and of those that were kept for this round."""
        last, tally = optimizer.last, optimizer.tally
        if last is None:
            return
        for _ in range(tally.included * self.steps - len(self.rounds)):
            self.applied_ns.append(now_ns)
            self.delays.append(last.delay)
            self.rounds.append(last.version)
        self.dropped = tally.dropped * self.steps

    def added_to(self, log: WorkerLog) -> WorkerLog:
        """Return a log with all this in it."""
        return replace(
            log,
            applied_ns=np.array(self.applied_ns, dtype=np.int64),
            delays=np.array(self.delays, dtype=np.int32),
            rounds=np.array(self.rounds, dtype=np.int64),
            dropped=self.dropped,
        )


def _shared_values(model: Flat, optimizer: Wrapped) -> np.ndarray:
    """Return the values of the model that all workers share; see ``Flat.values``."""
    if isinstance(optimizer, RoundOptimizer):
        return model.values()
    values: np.ndarray = torch.cat([part.detach() for part in optimizer.outer_model.parameters()]).numpy()
    return values


def _train(
    place: Place, plan: RunPlan, workload: Workload, model: Flat, optimizer: Wrapped, buckets: Buckets
) -> WorkerLog:
    compute, recorder = compute_of(OverlappedCompute, place, plan), StepRecorder()
    inner_steps, fragments = plan.wrapped.get("inner_steps", 1), plan.wrapped.get("fragments", 1)
    assert isinstance(inner_steps, int), "it is a number"
    assert isinstance(fragments, int), "it is a number"
    fates, version, is_over = _Fates(steps=inner_steps // fragments), 0, False
    keeper, rank = SnapshotKeeper(every_ns=0), place.own_rank
    keeps = rank < KEEPERS
    shared = partial(_shared_values, model, optimizer)
    judged = (lambda: workload.accuracy(shared()[1:])) if rank == 0 else None
    store = meeting_point(place)
    began_ns = agree_through(store, place)
    if keeps:
        keeper.offer(began_ns, 0, shared()[1:])
    step, overlaps = 0, "overlap" in plan.wrapped

    def made(bucket: int) -> torch.nn.Parameter:
        if bucket == 0:
            model.say(plan.is_over(began_ns, time.monotonic_ns(), step + 1, judged))
        return model.give(bucket)

    def leaves(bucket: int) -> None:
        assert isinstance(optimizer, RoundOptimizer), "inner steps do not overlap"
        optimizer.ready(made(bucket))

    while not is_over:
        recorder.start()
        gradient = partial(workload.gradient, model.weights, rank, step, model.gradient)
        if overlaps:
            recorder.computed(compute.run_in_buckets(step, buckets, gradient, leaves)[1])
        else:
            recorder.computed(compute.run(step, gradient)[1])
            for bucket in range(len(buckets.ends)):
                made(bucket)
        optimizer.step()
        now_ns, step = recorder.end(), step + 1
        fates.note(optimizer, now_ns)
        if optimizer.version == version:
            continue
        values = shared()
        version, is_over = optimizer.version, bool(values[0] != 0)
        if keeps:
            keeper.offer(now_ns, version, values[1:])
    log = recorder.log(rank=rank, began_ns=began_ns, overruns=compute.overruns)
    return fates.added_to(replace(log, snapshots=keeper.taken))
