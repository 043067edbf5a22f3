"""The updates of one batch while they are being ordered, and what every rule for drops shares.

Candidates are kept sorted by (deadline, worker, id): an index into them is their rank at equal ``t_en``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlfabric.network import Network
from mlfabric.network.profile import check_size
from mlfabric.protocol import DropReason
from mlfabric.scheduler.planning.shortest import Demand
from mlfabric.scheduler.planning.values import Candidate, Left, Ordering, Pick, Slot

__all__ = ["Batch"]


class Batch:
    """Candidates, their deadlines and demands; the profiles found so far; who was left."""

    __slots__ = ("binding", "candidates", "deadlines", "demands", "left", "now_ns", "profiles", "tau_max", "v_init")

    def __init__(
        self,
        candidates: Iterable[Candidate],
        network: Network,
        destination: str,
        *,
        v_init: int,
        tau_max: int,
        now_ns: int,
    ) -> None:
        shift = tau_max - v_init + 1
        self.v_init, self.tau_max, self.now_ns = v_init, tau_max, now_ns
        self.left: list[Left] = []
        self.candidates = self._within_bound(candidates, shift)
        self.deadlines = [c.computed_from + shift for c in self.candidates]
        self.demands = [self._demand(c, network, destination) for c in self.candidates]
        self.profiles = {i: c.in_flight for i, c in enumerate(self.candidates) if c.in_flight is not None}
        self.binding = 0

    def _within_bound(self, candidates: Iterable[Candidate], shift: int) -> list[Candidate]:
        """Leave who is too late for any position; sort the others."""
        kept = []
        for candidate in candidates:
            if candidate.computed_from + shift >= 1:
                kept.append(candidate)
            else:
                tau = self.v_init - candidate.computed_from
                detail = f"its delay would be {tau} or more, the bound is {self.tau_max}"
                self.left.append(Left(update=candidate.update, cause=DropReason.DEADLINE_PAST, reason=detail))
        if len(kept) > 1:
            kept.sort(key=_rank)
        return kept

    def _demand(self, candidate: Candidate, network: Network, destination: str) -> Demand:
        if candidate.in_flight is not None:
            return _NOTHING
        check_size(candidate.size_bytes)
        path = network.path(candidate.source, destination)
        return Demand(path, candidate.size_bytes, max(candidate.ready_ns, self.now_ns))

    def leave(self, index: int, cause: DropReason, reason: str) -> None:
        """Leave a candidate out of the batch."""
        self.profiles.pop(index, None)
        self.left.append(Left(update=self.candidates[index].update, cause=cause, reason=reason))

    def leave_unreachable(self, index: int) -> None:
        """Leave a candidate that cannot be sent before the horizon."""
        source = self.candidates[index].source
        self.leave(index, DropReason.NO_CAPACITY, f"nothing passes from {source} to the server")

    def ordering(self, by_position: Sequence[int]) -> Ordering:
        """Make slots of these candidates, whose profiles are known."""
        slots, commit_ns = [], self.now_ns
        for position, i in enumerate(by_position, start=1):
            profile = self.profiles[i]
            commit_ns = max(commit_ns, profile.end_ns)
            slots.append(
                Slot(
                    update=self.candidates[i].update,
                    position=position,
                    profile=profile,
                    commit_ns=commit_ns,
                    pick=self._pick(i),
                    deadline=self.deadlines[i],
                    planned_ns=self.now_ns,
                )
            )
        return Ordering(slots=tuple(slots), left=tuple(self.left))

    def _pick(self, i: int) -> Pick:
        if self.candidates[i].in_flight is not None:
            return Pick.IN_FLIGHT
        return Pick.DEADLINE if self.deadlines[i] <= self.binding else Pick.SHORTEST


_NOTHING = Demand((), 0, 0)


def _rank(candidate: Candidate) -> tuple[int, tuple[str, int, int]]:
    return candidate.computed_from, candidate.update
