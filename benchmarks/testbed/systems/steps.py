"""How long a worker's steps last in a run."""

from __future__ import annotations

from typing import TypeVar

from benchmarks.testbed.runs import Place, RunPlan
from benchmarks.testbed.workload import PaddedCompute

__all__ = ["compute_of"]

Compute = TypeVar("Compute", bound=PaddedCompute)


def compute_of(kind: type[Compute], place: Place, plan: RunPlan) -> Compute:
    """Return what makes the steps of this place's worker last as long as the plan says."""
    return kind(plan.compute, seed=plan.seed, worker=place.own_rank, base_s=plan.base_compute_s, dilation=plan.dilation)
