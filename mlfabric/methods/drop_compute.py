"""DropCompute: a worker stops to compute when a threshold has passed, and joins the step with what it has. Pure.

A worker's batch is cut into micro-batches. It begins the next one while less than the threshold, tau, has passed since
the step began (Giladi et al., 2023, algorithm 1). tau is chosen from what steps have taken (algorithm 2): the one
with the greatest *effective speed-up*, which counts a micro-batch that is dropped as lost time.

The rule by which tau is chosen is the rule by which it is enforced, micro-batch by micro-batch, on the same clock. The
paper stops a worker in the midst of a micro-batch, so that its times are at most tau; here what has begun is ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from mlfabric.values import dataclass

__all__ = [
    "NO_THRESHOLD",
    "UNLIMITED",
    "Threshold",
    "Timings",
    "begun_before",
    "best_threshold",
    "expected_completed",
    "expected_slowest_s",
    "expected_speedup",
    "speedup_at",
]

NO_THRESHOLD = math.inf
CANDIDATES, FEWEST_CANDIDATES = 200, 20
MOST_TIMES, MOST_LOOKED_AT = 200_000, 4_000_000
"""Of so many times at most a threshold is chosen, and of more times fewer are tried: a scheduler waits for it."""
WORTH_IT = 1.01
"""A threshold that brings less is not set: without variance there is nothing to gain, and micro-batches to lose."""

_NORMAL = NormalDist()
_EULER = 0.5772156649015329


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """What some steps took without a threshold.

    Args:
        computed_s: of each micro-batch; float64, steps x workers x micro-batches, each > 0.
        rest_s: what each step took beside computing, as communication; float64, steps, each >= 0.
    """

    computed_s: NDArray[np.float64]
    rest_s: NDArray[np.float64]

    @classmethod
    def beside(cls, workers: Sequence[tuple[Sequence[int], Sequence[int]]], micro_batches: int) -> Timings:
        """Put the last steps of some workers beside each other; the slowest one of a step waits for nobody.

        Args:
            workers: of each what its micro-batches took, step by step, and what each step took besides; ns. There are
                some, and each has some steps.
            micro_batches: of each step.
        """
        steps = min(len(rest_ns) for _, rest_ns in workers)
        computed = [np.array(computed_ns).reshape(-1, micro_batches)[-steps:] for computed_ns, _ in workers]
        rest = np.array([rest_ns[-steps:] for _, rest_ns in workers])
        return cls(computed_s=np.stack(computed, axis=1) / 1e9, rest_s=rest.min(axis=0) / 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A threshold, and what it is expected to do.

    Args:
        tau_s: > 0; ``NO_THRESHOLD`` for none.
        speedup: effective: of samples per second.
        dropped: the share of the micro-batches that are not computed, 0 to 1.
    """

    tau_s: float
    speedup: float
    dropped: float


UNLIMITED = Threshold(tau_s=NO_THRESHOLD, speedup=1.0, dropped=0.0)


def begun_before(tau_s: float, computed_s: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return which micro-batches are begun under a threshold, and when each ends.

    Args:
        tau_s: > 0.
        computed_s: what each takes, those of a step along the last axis.
    """
    ends_s = computed_s.cumsum(axis=-1)
    return ends_s - computed_s < tau_s, ends_s


def speedup_at(timings: Timings, tau_s: float) -> Threshold:
    """Return what a threshold would have done to these steps (section 4.4, equation 6).

    Args:
        tau_s: > 0.
    """
    begun, ends_s = begun_before(tau_s, timings.computed_s)
    whole_s = ends_s[:, :, -1].max(axis=1) + timings.rest_s
    took_s = np.where(begun, ends_s, 0.0).max(axis=(1, 2)) + timings.rest_s
    completed = begun.mean(axis=(1, 2))
    return Threshold(
        tau_s=tau_s, speedup=float((completed * whole_s / took_s).mean()), dropped=float(1.0 - begun.mean())
    )


def best_threshold(timings: Timings) -> Threshold:
    """Return the threshold with the greatest effective speed-up; none if that is not worth it (algorithm 2).

    Up to ``CANDIDATES`` are tried, evenly from where the first worker has half of its micro-batches up to where nothing
    is dropped. Of very many times the last steps' count.
    """
    steps = max(1, MOST_TIMES // timings.computed_s[0].size)
    last = Timings(computed_s=timings.computed_s[-steps:], rest_s=timings.rest_s[-steps:])
    ends_s = last.computed_s.cumsum(axis=2)
    half = max(0, ends_s.shape[2] // 2 - 1)
    candidates = max(FEWEST_CANDIDATES, min(CANDIDATES, MOST_LOOKED_AT // ends_s.size))
    tried_s = np.linspace(ends_s[:, :, half].min(), ends_s[:, :, -1].max(), candidates)
    best = max((speedup_at(last, float(tau_s)) for tau_s in tried_s), key=lambda one: (one.speedup, one.tau_s))
    return best if best.speedup >= WORTH_IT else UNLIMITED


def expected_slowest_s(workers: int, micro_batches: int, mean_s: float, variance_s2: float) -> float:
    """Return how long the slowest of some workers is expected to compute in a step (equations 4 and 7).

    Args:
        workers: >= 1.
        micro_batches: of each, >= 1.
        mean_s, variance_s2: of the time that one takes; they are independent.
    """
    whole_s = micro_batches * mean_s
    if workers == 1:
        return whole_s
    quantile = (1 - _EULER) * _NORMAL.inv_cdf(1 - 1 / workers) + _EULER * _NORMAL.inv_cdf(1 - 1 / (math.e * workers))
    return whole_s + math.sqrt(micro_batches * variance_s2) * quantile


def expected_completed(tau_s: float, micro_batches: int, mean_s: float, variance_s2: float) -> float:
    """Return how many micro-batches a worker is expected to complete in tau (equations 5 and 9)."""
    return sum(
        _share_below(tau_s, done * mean_s, math.sqrt(done * variance_s2)) for done in range(1, micro_batches + 1)
    )


def _share_below(limit: float, mean: float, deviation: float) -> float:
    return float(mean < limit) if deviation == 0 else _NORMAL.cdf((limit - mean) / deviation)


def expected_speedup(
    tau_s: float,
    *,
    workers: int,
    micro_batches: int,
    mean_s: float,
    variance_s2: float,
    rest_s: float,
    slowest_s: float | None = None,
) -> float:
    """Return the effective speed-up that is expected of a threshold at which workers stop at once (equation 11).

    Args:
        tau_s: > 0.
        workers, micro_batches, mean_s, variance_s2: as for :func:`expected_slowest_s`.
        rest_s: what a step takes beside computing, >= 0.
        slowest_s: how long the slowest worker computes, if that is known better than the formula has it.
    """
    if slowest_s is None:
        slowest_s = expected_slowest_s(workers, micro_batches, mean_s, variance_s2)
    completed = expected_completed(tau_s, micro_batches, mean_s, variance_s2) / micro_batches
    return completed * (slowest_s + rest_s) / (min(tau_s, slowest_s) + rest_s)
