"""How much faster partial rounds train than synchronous ones where workers are delayed (eager-SGD, 6.2 and 6.3).

Eight workers make so many steps each, with partial rounds and with rounds of all (``all-reduce``), which is what
synchronous training is without a server. Both have the same batches, delays and schedule: the learning rate falls
to nothing in a line. The rate is chosen for each method by short trainings, from the same candidates. Beside the times
stands what delays alone allow: all steps of the slowest worker, without any communication.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.eager_tasks import TASKS, Schedule
from benchmarks.forked_workers import Begin, progress, settings_of, worked
from benchmarks.processes import scheduler_process
from benchmarks.skew import sleep_until
from benchmarks.testbed.cpu import CpuMeter

__all__ = ["Training", "compared"]

SYNCHRONOUS = "synchronous"
LONGER_THAN_SLEPT = 10.0
LEAST_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What one worker of a training does.

    Args:
        task: a name from ``TASKS``.
        method: ``SYNCHRONOUS``, or the quorum of partial rounds.
        rate: the learning rate of the first step.
        full_every: see ``RoundOptions``.
        works: whether a step's pace is multiplied by the work of its batch.
    """

    task: str
    schedule: Schedule
    steps: int
    method: str = SYNCHRONOUS
    rate: float = 0.0
    workers: int = 8
    rank: int = 0
    seed: int = 0
    full_every: int = 32
    works: bool = False
    scheduler: str = ""


def compared(training: Training, quorum: str, rates: Sequence[float], tuning_steps: int) -> dict[str, float]:
    """Train with both methods, each at its best rate.

    Args:
        rates: candidates.
        tuning_steps: of each candidate's training; of synchronous ones without delays, which do not change their sums.
    """
    found: dict[str, float] = {}
    with CpuMeter() as cpu:
        for method in (SYNCHRONOUS, quorum):
            rate = _best_rate(replace(training, method=method), rates, tuning_steps)
            progress(f"{training.task}, {method}, rate {rate:g}: {training.steps} steps")
            done = _trained(replace(training, method=method, rate=rate))
            found |= {f"{method}_{name}": value for name, value in done.items()} | {f"{method}_rate": rate}
    return {
        "times": found[f"{SYNCHRONOUS}_s"] / found[f"{quorum}_s"],
        "judged_difference": found[f"{quorum}_judged"] - found[f"{SYNCHRONOUS}_judged"],
        "judged_ratio": found[f"{quorum}_judged"] / found[f"{SYNCHRONOUS}_judged"],
        **found,
        "cpu_used_share": cpu.used_share,
        "cpu_saturated_share": cpu.saturated_share,
    }


def _best_rate(training: Training, rates: Sequence[float], steps: int) -> float:
    if len(rates) == 1:
        return rates[0]
    shorter = replace(training, steps=steps)
    if training.method == SYNCHRONOUS:
        shorter = replace(shorter, schedule=replace(training.schedule, delays_s=()))
    judged = {}
    for rate in rates:
        progress(f"{training.task}, {training.method}: trying the rate {rate:g}")
        judged[rate] = _trained(replace(shorter, rate=rate))["judged"]
    return (min if TASKS[training.task].is_loss else max)(judged, key=judged.__getitem__)


def _trained(training: Training) -> dict[str, float]:
    """Train; return the time, how good the last model is, and what became of the gradients."""
    schedule, n = training.schedule, training.workers
    slept_s = max(sum(schedule.step_s(rank, n, step) for step in range(training.steps)) for rank in range(n))
    with scheduler_process() as (scheduler, _):
        tasks = [replace(training, rank=rank, scheduler=scheduler) for rank in range(n)]
        ends = worked(_train, tasks, LEAST_PATIENCE_S + LONGER_THAN_SLEPT * slept_s)
    last = max(ends, key=lambda one: one["rounds"])
    return {
        "s": max(one["s"] for one in ends),
        "slept_s": max(one["slept_s"] for one in ends),
        "judged": last["judged"],
        "rounds": last["rounds"],
        "in_time_share": sum(one["in_time"] for one in ends) / (n * training.steps),
    }


def _train(training: Training, begin: Begin) -> dict[str, Any]:
    import torch

    import mlfabric

    torch.set_num_threads(1)
    example = TASKS[training.task](training.seed)
    how: dict[str, Any] = (
        {"method": "all-reduce"}
        if training.method == SYNCHRONOUS
        else {"method": "partial", "quorum": training.method, "full_every": training.full_every}
    )
    optimizer = mlfabric.wrap(
        torch.optim.SGD(example.model.parameters(), lr=training.rate),
        example.model,
        workers=training.workers,
        settings=settings_of(training.scheduler, training.rank),
        **how,
    )
    slept_s = 0.0
    begins_s = begin()
    sleep_until(begins_s)
    for step in range(training.steps):
        began_s = time.monotonic()
        for group in optimizer.param_groups:
            group["lr"] = training.rate * (1 - step / training.steps)
        loss, work = example.loss(training.rank, step)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        takes_s = training.schedule.step_s(training.rank, training.workers, step) * (work if training.works else 1.0)
        slept_s += takes_s
        sleep_until(began_s + takes_s)
        optimizer.step()
    ended_s = time.monotonic()
    optimizer.finish()
    optimizer.leave()
    return {
        "s": ended_s - begins_s,
        "slept_s": slept_s,
        "judged": example.judged(),
        "rounds": optimizer.version,
        "in_time": training.steps - optimizer.tally.kept,
    }
