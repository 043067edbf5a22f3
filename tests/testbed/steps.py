"""Synchronous steps as one process takes them, and the times of steps that a log tells of."""

from __future__ import annotations

import numpy as np

from benchmarks.testbed.runs import RunPlan, WorkerLog
from benchmarks.testbed.workload import WorkloadSpec
from mlfabric.twin.settings import COMPUTE

__all__ = ["LINK_BPS", "PLAN", "STEPS", "TIMEOUT_S", "in_one_process", "in_order"]

STEPS = 4
LINK_BPS = 100_000_000
TIMEOUT_S = 120.0
PLAN = RunPlan(
    workload=WorkloadSpec(model="mlp-50k", batch_size=8, seed=2),
    compute=COMPUTE["C0"],
    seed=2,
    learning_rate=0.1,
    momentum=0.9,
    duration_s=TIMEOUT_S,
    max_steps=STEPS,
    base_compute_s=0.0,
    link_bps=LINK_BPS,
)


def in_one_process(plan: RunPlan, workers: int) -> list[np.ndarray]:
    """Return the models before each of the synchronous steps and after the last, computed the dumb way."""
    assert plan.max_steps is not None
    workload = plan.workload.build()
    weights = workload.initial().astype(np.float64)
    velocity = np.zeros_like(weights)
    models = [workload.initial()]
    for step in range(plan.max_steps):
        gradients = [workload.gradient(models[-1], worker, step)[0] for worker in range(workers)]
        velocity = plan.momentum * velocity + np.mean(gradients, axis=0)
        weights -= plan.learning_rate * velocity
        models.append(weights.astype(np.float32))
    return models


def in_order(log: WorkerLog) -> None:
    """Check that a log has the times of all steps, one after the other."""
    assert len(log.started_ns) == len(log.computed_ns) == len(log.ended_ns) == len(log.losses)
    times_ns = np.stack([log.started_ns, log.computed_ns, log.ended_ns], axis=1).ravel()
    assert (np.diff(np.concatenate([[log.began_ns], times_ns])) >= 0).all()
