"""The paper's own rule for drops (section 5.1.3, algorithm 2), kept as an option.

In iteration i the update due at i is picked, else the shortest transfer. A pick that the next one (chosen the same way
for i + 1, over what the pick leaves free) would overtake is dropped. Only a pick by deadline can be overtaken: a
shortest transfer is the least already over more capacity. As everywhere, the deadline has the + 1 that the paper lacks.

Two cases that the algorithm leaves open: several updates due at one i go by (t_en, worker, id), and whoever can no
longer be placed within its bound is left in conflict; what is in flight is never dropped for speed.
"""

from __future__ import annotations

from mlfabric.network import HORIZON_NS, Draft, Network, Profile
from mlfabric.scheduler.planning import leaving
from mlfabric.scheduler.planning.contest import Contest
from mlfabric.scheduler.planning.values import Ordering

__all__ = ["order_by_paper"]

_Choice = tuple[int, Profile]


def order_by_paper(batch: Contest, network: Network) -> Ordering:
    """Order a batch by algorithm 2."""
    draft, flying = network.draft(), frozenset(batch.profiles)
    waiting, bounds = _reachable(batch, draft, flying)
    by_position: list[int] = []
    batch.due = picked_as_due = set[int]()
    for iteration in range(1, len(waiting) + 1):
        _leave_late(batch, waiting, len(by_position))
        chosen = _choose(batch, waiting, draft, iteration, bounds)
        if chosen is None:
            break
        index, profile = chosen
        waiting.remove(index)
        if index not in flying:
            after = draft.fork()
            after.reserve(batch.demands[index].path, profile)
            due = batch.deadlines[index] == iteration
            if due and _is_overtaken(
                batch, index, profile, _choose(batch, waiting, after, iteration + 1, bounds.copy())
            ):
                continue
            draft = after
            if due:
                picked_as_due.add(index)
        batch.profiles[index] = profile
        by_position.append(index)
    for index in waiting:
        batch.leave_unreachable(index)
    return batch.ordering(by_position)


def _reachable(batch: Contest, draft: Draft, flying: frozenset[int]) -> tuple[list[int], dict[int, int]]:
    """Leave who cannot come at all; return the others by rank, and when each would end if it were alone."""
    bounds = {}
    for index, demand in enumerate(batch.demands):
        profile = batch.profiles[index] if index in flying else draft.transfer(*demand)
        if profile is None:
            batch.leave_unreachable(index)
        else:
            bounds[index] = profile.end_ns
    return list(bounds), bounds


def _leave_late(batch: Contest, waiting: list[int], placed: int) -> None:
    for index in [i for i in waiting if batch.deadlines[i] <= placed]:
        waiting.remove(index)
        batch.profiles.pop(index, None)
        batch.left.append(leaving.unplaced(batch.candidates[index], placed, batch.deadlines[index]))


def _choose(batch: Contest, waiting: list[int], draft: Draft, due: int, bounds: dict[int, int]) -> _Choice | None:
    """Choose who is due, else the shortest transfer; ``bounds`` are lower bounds of ``t_en``, and are raised."""
    at_deadline = [i for i in waiting if batch.deadlines[i] == due]
    return _shortest(batch, at_deadline, draft, bounds) or _shortest(batch, waiting, draft, bounds)


def _shortest(batch: Contest, pool: list[int], draft: Draft, bounds: dict[int, int]) -> _Choice | None:
    best: _Choice | None = None
    for index in sorted(pool, key=lambda i: (bounds[i], i)):
        if best is not None and bounds[index] > best[1].end_ns:
            break
        profile = batch.profiles.get(index) or draft.transfer(*batch.demands[index])
        bounds[index] = HORIZON_NS if profile is None else profile.end_ns
        if profile is not None and (best is None or (profile.end_ns, index) < (best[1].end_ns, best[0])):
            best = (index, profile)
    return best


def _is_overtaken(batch: Contest, index: int, profile: Profile, following: _Choice | None) -> bool:
    """Drop a pick that the next one would overtake."""
    if following is None or profile.end_ns <= following[1].end_ns:
        return False
    ahead_ns = profile.end_ns - following[1].end_ns
    batch.left.append(leaving.overtaken(batch.candidates[index], batch.candidates[following[0]], ahead_ns))
    return True
