"""Asynchronous training with a delay bound (paper, section 2 #1; design, section 5). Pure.

Nobody is waited for; every applied update is one version; every update is planned as soon as its server's ingress is
about to run dry.
"""

from __future__ import annotations

from mlfabric.specs import ModelSpec

__all__ = ["WORKERS_TO_TAU_MAX", "delay_bound", "least_workers"]

WORKERS_TO_TAU_MAX = 2


def delay_bound(spec: ModelSpec, most_workers: int) -> int:
    """Return the delay bound in force.

    With W workers that each have one update in flight a delay is about W - 1, so twice the workers leaves room for
    one that is slower than the others (law: updates/s * (read to commit) <= tau_max + 1).

    Args:
        spec: the model's; its own ``tau_max`` wins.
        most_workers: the most that were ever joined at the same time.
    """
    return spec.tau_max if spec.tau_max is not None else WORKERS_TO_TAU_MAX * max(1, most_workers)


def least_workers(tau: int) -> int:
    """Return the fewest workers with which a delay of ``tau`` is within the bound that follows from their number."""
    return -(-tau // WORKERS_TO_TAU_MAX)
