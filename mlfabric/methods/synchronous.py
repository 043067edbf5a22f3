"""Synchronous training (paper, section 6; design, section 5, "Methods"). Pure.

One iteration makes one version, out of one update of every worker, all computed from the version before. A worker that
falls silent is waited for until it counts as left. Who joins, or comes back, while an iteration is under way is given
no model until that is committed, and takes part in the next.
"""

from __future__ import annotations

from mlfabric.methods.policy import Standing, WaitingUpdate
from mlfabric.model.specs import ModelSpec
from mlfabric.planning import Consistency, PlannerConfig
from mlfabric.protocol import Dropped, DropReason, GetRequested, ModelVersion, PushRequested, UpdateKind

__all__ = ["Synchronous"]


class Synchronous:
    """A barrier before every step."""

    waits_for_others = True
    has_barrier = True
    waiting_words = "waiting for the other workers"

    def __init__(self, spec: ModelSpec) -> None:
        self._model = spec.name

    def delay_bound(self, most_workers: int) -> int:
        """Return 0: an update is applied to the very version that it was computed from."""
        return 0

    def planner_config(self, most_workers: int) -> PlannerConfig:
        """Return how the planner is to plan: an iteration is as good as its last transfer."""
        return PlannerConfig(consistency=Consistency.SYNCHRONOUS)

    def outdated(self, request: PushRequested, version: ModelVersion) -> Dropped | None:
        """Turn away what was computed from another version than the present one or a coming one."""
        base = request.computed_from
        if base.epoch < version.epoch and base.number > version.number:
            detail = f"version {base.number} was lost; {self._model} is at version {version.number}: get it and go on"
            return Dropped(cause=DropReason.ROLLED_BACK, detail=detail)
        if base.number < version.number:
            made = f"computed from version {base.number}, whose iteration was made without it"
            detail = f"{made}; {self._model} is at version {version.number}: get it and go on"
            return Dropped(cause=DropReason.DEADLINE_PAST, detail=detail)
        return None

    def batch(self, waiting: list[WaitingUpdate], standing: Standing) -> list[WaitingUpdate]:
        """Return one update of each worker once all have one; while an iteration is under way, what that lacks."""
        initial = [one for one in waiting if one.request.kind is UpdateKind.INITIAL]
        if standing.is_under_way:
            return initial + [one for one in waiting if one.request.update in standing.owed]
        if standing.missing:
            return initial
        firsts: dict[str, WaitingUpdate] = {}
        for one in sorted(waiting, key=lambda one: one.request.update):
            request = one.request
            if request.kind is UpdateKind.GRADIENT and request.computed_from.number == standing.version.number:
                firsts.setdefault(request.update.worker, one)
        return initial + (list(firsts.values()) if all(worker in firsts for worker in standing.clocks) else [])

    def holds_back(self, get: GetRequested, standing: Standing) -> str:
        """Hold back whoever has no part in the iteration that is under way: it would train on what is past soon."""
        if standing.is_under_way and get.after_update not in standing.under_way:
            return f"the iteration of version {standing.version.number} is under way without this worker"
        return ""
