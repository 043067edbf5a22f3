"""The updates of one batch while they are being ordered, and what every rule for drops shares.

Candidates are kept sorted by (deadline, worker, id): an index into them is their rank at equal ``t_en``. Without a
delay bound no deadline ever binds, and all count as equal.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from mlfabric.network import HORIZON_NS, Network
from mlfabric.network.profile import check_size
from mlfabric.scheduler.planning import leaving
from mlfabric.scheduler.planning.shortest import Demand
from mlfabric.scheduler.planning.values import Candidate, Left, Ordering, Pick, Slot

__all__ = ["Contest"]


class Contest:
    """Candidates, their deadlines and demands; the profiles found so far; who was left."""

    __slots__ = (
        "binding",
        "candidates",
        "deadlines",
        "demands",
        "due",
        "left",
        "now_ns",
        "profiles",
        "tau_max",
        "v_init",
    )

    def __init__(
        self,
        candidates: Iterable[Candidate],
        network: Network,
        destination: str,
        *,
        v_init: int,
        tau_max: int | None,
        now_ns: int,
    ) -> None:
        self.v_init, self.tau_max, self.now_ns = v_init, tau_max, now_ns
        self.left: list[Left] = []
        if tau_max is None:
            self.candidates = sorted(candidates, key=_update)
            self.deadlines = [HORIZON_NS] * len(self.candidates)
        else:
            shift = tau_max - v_init + 1
            self.candidates = self._within_bound(candidates, shift)
            self.deadlines = [c.computed_from + shift for c in self.candidates]
        self.demands = [self._demand(c, network, destination) for c in self.candidates]
        self.profiles = {i: c.in_flight for i, c in enumerate(self.candidates) if c.in_flight is not None}
        self.binding = 0  # deadlines up to here decide who reserves first (the default rule)
        self.due: Container[int] = ()  # those picked because they were due (the paper's rule)

    def _within_bound(self, candidates: Iterable[Candidate], shift: int) -> list[Candidate]:
        """Leave who is too late for any position; sort the others."""
        kept = []
        for candidate in candidates:
            if candidate.computed_from + shift >= 1:
                kept.append(candidate)
            else:
                self.left.append(leaving.too_late(candidate, self.v_init, self.tau_max))
        if len(kept) > 1:
            kept.sort(key=_rank)
        return kept

    def _demand(self, candidate: Candidate, network: Network, destination: str) -> Demand:
        if candidate.in_flight is not None:
            return _NOTHING
        check_size(candidate.size_bytes)
        path = network.path(candidate.source, destination)
        return Demand(path, candidate.size_bytes, max(candidate.ready_ns, self.now_ns))

    def leave_unreachable(self, index: int) -> None:
        """Leave a candidate that cannot be sent before the horizon."""
        self.profiles.pop(index, None)
        self.left.append(leaving.unreachable(self.candidates[index]))

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
                    deadline=None if self.tau_max is None else self.deadlines[i],
                    planned_ns=self.now_ns,
                )
            )
        return Ordering(slots=tuple(slots), left=tuple(self.left))

    def _pick(self, i: int) -> Pick:
        if self.candidates[i].in_flight is not None:
            return Pick.IN_FLIGHT
        return Pick.DEADLINE if self.deadlines[i] <= self.binding or i in self.due else Pick.SHORTEST


_NOTHING = Demand((), 0, 0)


def _update(candidate: Candidate) -> tuple[str, int, int]:
    return candidate.update


def _rank(candidate: Candidate) -> tuple[int, tuple[str, int, int]]:
    return candidate.computed_from, candidate.update
