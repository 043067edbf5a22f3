"""Asynchronous training with a delay bound (paper, section 2 #1; design, section 5). Pure.

Nobody is waited for; every applied update is one version; every update is planned as soon as its server's ingress is
about to run dry.
"""

from __future__ import annotations

from mlfabric.methods.policy import Standing, WaitingUpdate
from mlfabric.model.specs import ModelSpec
from mlfabric.planning import Consistency, PlannerConfig
from mlfabric.protocol import Dropped, GetRequested, ModelVersion, PushRequested

__all__ = ["WORKERS_TO_TAU_MAX", "Asynchronous", "least_workers"]

WORKERS_TO_TAU_MAX = 2


class Asynchronous:
    """Every update by itself, as early as it can be, and none too late."""

    waits_for_others = False
    has_barrier = False
    waiting_words = "waiting to send"

    def __init__(self, spec: ModelSpec) -> None:
        self._tau_max = spec.tau_max

    def delay_bound(self, most_workers: int) -> int:
        """Return the delay bound in force: the model's own, else twice the workers.

        With W workers that each have one update in flight a delay is about W - 1, so twice the workers leaves room for
        one that is slower than the others (law: updates/s * (read to commit) <= tau_max + 1).
        """
        return self._tau_max if self._tau_max is not None else WORKERS_TO_TAU_MAX * max(1, most_workers)

    def planner_config(self, most_workers: int) -> PlannerConfig:
        """Return how the planner is to plan."""
        return PlannerConfig(consistency=Consistency.ASYNCHRONOUS, tau_max=self.delay_bound(most_workers))

    def outdated(self, request: PushRequested, version: ModelVersion) -> Dropped | None:
        """Leave it to the planner who is too late."""
        return None

    def batch(self, waiting: list[WaitingUpdate], standing: Standing) -> list[WaitingUpdate]:
        """Return all that waits."""
        return waiting

    def holds_back(self, get: GetRequested, standing: Standing) -> str:
        """Hold nobody back."""
        return ""


def least_workers(tau: int) -> int:
    """Return the fewest workers with which a delay of ``tau`` is within the bound that follows from their number."""
    return -(-tau // WORKERS_TO_TAU_MAX)
