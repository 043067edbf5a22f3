"""The sequence of commits and its groups, made of columns as it is looked at; what a version is, by consistency."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from mlfabric.planning.lazy import Lazy
from mlfabric.planning.plan import Commit, Group, Transfer
from mlfabric.planning.plan_values import Candidate, Ordering, Pick, Slot
from mlfabric.planning.problem import Batch, Consistency, FabricState, PlannerConfig, Shape
from mlfabric.protocol import UpdateId
from mlfabric.values import dataclass

__all__ = ["Sequenced"]


@dataclass(frozen=True, kw_only=True)
class Sequenced:
    """What a sequence of commits is made of.

    Args:
        ordering: its slots are the sequence, those that this plan does not commit included.
        transfers: all towards the primary.
        until: where each group begins, and where the last one ends.
        last: of each group, which transfer ends at the server.
        arrive_ns: by place, when its group is with the server.
        commit_ns: by place; shorter if the sequence is cut short.
        waits_for_ns: by place, until when a commit waits for the replica, 0 if it does not.
    """

    batch: Batch
    state: FabricState
    config: PlannerConfig
    ordering: Ordering
    shape: Shape
    transfers: Sequence[Transfer]
    until: Sequence[int]
    last: Sequence[int]
    arrive_ns: Sequence[int]
    commit_ns: Sequence[int]
    waits_for_ns: Sequence[int]

    @property
    def commits(self) -> Sequence[Commit]:
        """All that are committed, by position."""
        return Lazy(len(self.commit_ns), self._commit)

    @property
    def groups(self) -> Sequence[Group]:
        """All groups, in order."""
        return Lazy(len(self.until) - 1, self._group)

    @cached_property
    def _candidates(self) -> dict[UpdateId, Candidate]:
        return {candidate.update: candidate for candidate in self.batch.updates}

    @cached_property
    def _group_of(self) -> list[int]:
        return [number for number, (first, end) in enumerate(pairwise(self.until)) for _ in range(first, end)]

    def _group(self, number: int) -> Group:
        first, end = self.until[number], self.until[number + 1]
        lot = self.ordering.lot
        members = tuple(lot.updates[first:end] if lot else [slot.update for slot in self.ordering.slots[first:end]])
        last = self.last[number]
        direct = len(members) == 1 and not self.transfers[last].inputs
        return Group(members=members, shape=Shape.DIRECT if direct else self.shape, last=(last,))

    def _commit(self, place: int) -> Commit:
        slot = self.ordering.slots[place]
        iteration = self.config.consistency is Consistency.SYNCHRONOUS
        version = self.state.v_init + (0 if iteration else place)
        return Commit(
            update=slot.update,
            position=slot.position,
            version=version,
            tau=version - self._candidates[slot.update].computed_from,
            deadline=slot.deadline,
            arrive_ns=int(self.arrive_ns[place]),
            commit_ns=int(self.commit_ns[place]),
            group=self._group_of[place],
            reason=self._reason(place, slot),
        )

    def _reason(self, place: int, slot: Slot) -> str:
        group = self._group_of[place]
        others = self.until[group + 1] - self.until[group] - 1
        took_ms = (int(self.arrive_ns[place]) - self.state.now_ns) / 1e6
        reason = f"{slot.why}{', ' if slot.pick is Pick.DEADLINE else ': '}{max(0.0, took_ms):.1f} ms"
        if others:
            reason += f", summed with {others} others on the way"
        if self.waits_for_ns[place]:
            waits_ms = (self.waits_for_ns[place] - self.state.now_ns) / 1e6
            reason += f"; waits for the replica until {waits_ms:.1f} ms"
        return reason
