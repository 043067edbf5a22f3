"""Stale-synchronous training with slack K (paper, section 6; Ho et al., NIPS 2013; design, section 5, "Methods"). Pure.

Every applied update is one version, and no delay is too long. What is bounded is how far workers run apart: who has
finished more than K iterations more than the slowest is given no model until that has come closer. With K = 0 all begin
each iteration together. Updates of workers that are behind are sent and committed first.
"""

from __future__ import annotations

from mlfabric.methods.policy import NO_BOUND, Standing, WaitingUpdate
from mlfabric.model.specs import ModelSpec
from mlfabric.planning import Consistency, PlannerConfig
from mlfabric.protocol import Dropped, GetRequested, ModelVersion, PushRequested, UpdateKind

__all__ = ["StaleSynchronous"]


class StaleSynchronous:
    """Everybody at their own pace, but not too far from the slowest."""

    waits_for_others = True
    has_barrier = False
    waiting_words = "waiting to send"

    def __init__(self, spec: ModelSpec) -> None:
        self._slack = spec.slack

    def delay_bound(self, most_workers: int) -> int:
        """Return a bound that no delay comes near."""
        return NO_BOUND

    def planner_config(self, most_workers: int) -> PlannerConfig:
        """Return how the planner is to plan: lists by clock."""
        return PlannerConfig(consistency=Consistency.STALE_SYNCHRONOUS, slack=self._slack)

    def outdated(self, request: PushRequested, version: ModelVersion) -> Dropped | None:
        """Find no update too old."""
        return None

    def batch(self, waiting: list[WaitingUpdate], standing: Standing) -> list[WaitingUpdate]:
        """Return all that waits; no gradients before all workers have joined that the job was to begin with."""
        if standing.missing:
            return [one for one in waiting if one.request.kind is UpdateKind.INITIAL]
        return waiting

    def holds_back(self, get: GetRequested, standing: Standing) -> str:
        """Hold back a worker that is too far ahead of the slowest, and all while nobody knows who that is."""
        if awaited := sorted(standing.clocks.awaited):
            return f"how far {', '.join(awaited)} came before the scheduler began anew is not known yet"
        clock, slowest = standing.clocks.at(get), standing.clocks.slowest
        if clock <= slowest + self._slack:
            return ""
        return f"it has finished {clock} iterations, the slowest worker {slowest}; a slack of {self._slack} is allowed"
