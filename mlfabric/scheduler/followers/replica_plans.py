"""What plans of updates ask about a model's replica, and what of them is carried out (paper, section 5.3). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from mlfabric.model.divergence import as_norm
from mlfabric.planning import Plan
from mlfabric.planning.plan import Toward
from mlfabric.planning.problem import DivergenceBound, Pending, Replica
from mlfabric.protocol import Instruction, UpdateId
from mlfabric.scheduler.followers.replica_sending import Phase, ReplicaSending
from mlfabric.scheduler.records import LONGEST_STEP

__all__ = ["ReplicaPlans"]


class ReplicaPlans(ReplicaSending):
    """One model's replica, as plans see it."""

    def bound(self) -> DivergenceBound | None:
        """Return what plans must keep to, None where they have no say in what the replica gets."""
        if self.following is None or not self._is_planned:
            return None
        return DivergenceBound(norm=self.following.norm, updates=self.following.updates)

    def for_planner(self) -> Replica | None:
        """Return the replica and its lead; what is on its way already counts as there, its links are reserved."""
        if self.replica is None or not self._is_planned:
            return None
        size_bytes = self._pushes.spec.layout.size_bytes
        pending = tuple(
            Pending(
                update=update,
                source=self._context.host(update.worker),
                size_bytes=size_bytes,
                step_norm=min(as_norm(entry.step), LONGEST_STEP),
            )
            for entry in self._entries
            for update in entry.members
            if self._is_pending(update)
        )
        history = self._last_step if self._pushes.spec.rule.server_momentum > 0 else 0.0
        return Replica(host=self.replica.member.host, pending=pending, history_norm=min(history, LONGEST_STEP))

    def there_ns(self, update: UpdateId) -> int:
        """Return when an update will be with the replica that is on its way there by itself; 0 if it is not."""
        found = self._in_flight.get(update)
        return 0 if found is None else found.arrive_ns

    @property
    def _is_planned(self) -> bool:
        """Whether plans say what the replica gets: without any lead each update goes there as soon as it is known."""
        return self.phase is Phase.FOLLOWING and self._limit.commits != 0

    def carry_out(self, plan: Plan, now_ns: int) -> Iterator[Instruction]:
        """Send what a plan sends of what was committed; what it sends before that goes only if nothing else helps."""
        for step in plan.replica_steps:
            for number in step.transfers:
                transfer = plan.transfers[number]
                if transfer.toward is Toward.REPLICA and all(map(self._is_windowed, transfer.members)):
                    yield from self._send_window(transfer.members[0].worker, now_ns, transfer.profile, "as planned")
