"""What DropCompute would bring on a cluster: by formula, and by steps that are drawn. Nothing is trained.

Each micro-batch takes what a step of the cluster takes. What a step takes besides is a ring's time (``closed_forms``).
"""

from __future__ import annotations

import numpy as np

from mlfabric.methods.drop_compute import (
    CANDIDATES,
    NO_THRESHOLD,
    Threshold,
    Timings,
    best_threshold,
    expected_completed,
    expected_slowest_s,
    expected_speedup,
)
from mlfabric.twin.closed_forms import ring_all_reduce_s
from mlfabric.twin.cluster import Cluster
from mlfabric.twin.draws import ComputeTimes
from mlfabric.values import dataclass

__all__ = ["Dropping", "predict_dropping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropping:
    """What DropCompute would bring.

    Args:
        mean_s, deviation_s: of a micro-batch.
        rest_s: what a step takes besides.
        slowest_s, slowest_by_formula_s: how long the slowest worker of a step computes, on average.
        best: the threshold that fits the drawn steps best; workers end the micro-batch that they are at.
        by_formula: the best threshold by equation 11; workers stop at once.
    """

    mean_s: float
    deviation_s: float
    rest_s: float
    slowest_s: float
    slowest_by_formula_s: float
    best: Threshold
    by_formula: Threshold


def predict_dropping(cluster: Cluster, micro_batches: int) -> Dropping:
    """Draw the cluster's steps, and find the threshold.

    Args:
        micro_batches: of each step, >= 1.
    """
    times, workers = ComputeTimes(cluster), len(cluster.workers)
    drawn_s = np.array(
        [[times.of(worker, n) for n in range(cluster.iterations * micro_batches)] for worker in range(workers)]
    )
    computed_s = drawn_s.reshape(workers, cluster.iterations, micro_batches).transpose(1, 0, 2) / 1e9
    rest_s = ring_all_reduce_s(cluster.model_bytes, cluster.workers, cluster.latency_s) if workers > 1 else 0.0
    timings = Timings(computed_s=computed_s, rest_s=np.full(cluster.iterations, rest_s))
    mean_s, variance_s2 = float(computed_s.mean()), float(computed_s.var())
    return Dropping(
        mean_s=mean_s,
        deviation_s=variance_s2**0.5,
        rest_s=rest_s,
        slowest_s=float(computed_s.sum(axis=2).max(axis=1).mean()),
        slowest_by_formula_s=expected_slowest_s(workers, micro_batches, mean_s, variance_s2),
        best=best_threshold(timings),
        by_formula=_by_formula(workers, micro_batches, mean_s, variance_s2, rest_s),
    )


def _by_formula(workers: int, micro_batches: int, mean_s: float, variance_s2: float, rest_s: float) -> Threshold:
    slowest_s = expected_slowest_s(workers, micro_batches, mean_s, variance_s2)
    best_s, best = NO_THRESHOLD, 1.0
    for tau_s in np.linspace(micro_batches * mean_s / 2, slowest_s, CANDIDATES):
        speedup = expected_speedup(
            float(tau_s),
            workers=workers,
            micro_batches=micro_batches,
            mean_s=mean_s,
            variance_s2=variance_s2,
            rest_s=rest_s,
        )
        if speedup > best:
            best_s, best = float(tau_s), speedup
    completed = expected_completed(best_s, micro_batches, mean_s, variance_s2)
    return Threshold(tau_s=best_s, speedup=best, dropped=1.0 - completed / micro_batches)
