"""The order of a large batch (``ordering.py`` has the rules), on columns instead of objects.

All columns are by rank: by (deadline, worker, id), or (worker, id) without deadlines. What needs a loop over picks is
compiled (``fluid/reserving.py``, ``fluid/paper.py``, ``fluid/positions.py``), the rest is numpy; slots and reasons are
made when they are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlfabric.network import HORIZON_NS, MAX_SIZE_BYTES, Network
from mlfabric.network.profile import check_size
from mlfabric.protocol import UpdateId
from mlfabric.scheduler.planning import leaving
from mlfabric.scheduler.planning.fluid import paper, positions
from mlfabric.scheduler.planning.fluid.reserving import Found
from mlfabric.scheduler.planning.fluid.transfers import Field, KernelReserver
from mlfabric.scheduler.planning.fluid.world import World
from mlfabric.scheduler.planning.lazy import Lazy
from mlfabric.scheduler.planning.profiles import Ints, Placed, Profiles
from mlfabric.scheduler.planning.values import Candidate, DropRule, Ordering, Pick, Slot

__all__ = ["order", "reserver"]

reserver = KernelReserver


_FAR = 1 << 61

# What makes one of those that were left, and what it is given.
_Leaving = tuple[Any, ...]


def order(
    candidates: Sequence[Candidate],
    network: Network,
    destination: str,
    *,
    v_init: int,
    tau_max: int | None,
    now_ns: int,
    rule: DropRule,
    world: World | None = None,
) -> Ordering:
    """Order a batch of updates to one server, as ``ordering.order`` does."""
    batch = _Batch(candidates, network, destination, v_init, tau_max, now_ns, world)
    return _by_paper(batch) if rule is DropRule.PAPER else _feasible(batch)


class _Batch:
    """A batch in columns by rank; ``of`` is each one's index among the candidates."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        network: Network,
        destination: str,
        v_init: int,
        tau_max: int | None,
        now_ns: int,
        world: World | None,
    ) -> None:
        self.candidates, self.v_init, self.tau_max, self.now_ns = candidates, v_init, tau_max, now_ns
        self.left: list[_Leaving] = []
        self.updates = [c.update for c in candidates]
        self.sources = [c.source for c in candidates]
        sizes, flights = [c.size_bytes for c in candidates], [c.in_flight for c in candidates]
        self.identity = _identity(self.updates)
        self.of, self.deadline = self._ranked(_integers([c.computed_from for c in candidates]))
        self.flights = {rank: flights[i] for rank, i in enumerate(self.of.tolist()) if flights[i] is not None}
        self.is_flying = np.zeros(len(self.of), np.bool_)
        self.is_flying[list(self.flights)] = True
        if not 0 <= min(sizes) <= max(sizes) <= MAX_SIZE_BYTES:
            for i in self.of[~self.is_flying].tolist():
                check_size(sizes[i])
        self.bits = 8 * _integers(sizes)[self.of]
        self.ready_ns = np.minimum(_integers([c.ready_ns for c in candidates])[self.of], HORIZON_NS)
        self.field = self._field(network, destination, world)

    def _ranked(self, computed_from: Ints) -> tuple[Ints, Ints]:
        """Leave who is too late for any position; return the others by rank, and their deadlines."""
        counter, incarnation, worker = self.identity
        beyond = len(computed_from) + 1
        if self.tau_max is None:
            return np.lexsort((counter, incarnation, worker)), np.full(len(computed_from), beyond)
        shift = min(max(self.tau_max - self.v_init + 1, -_FAR), _FAR)
        is_late = computed_from + shift < 1
        for i in np.flatnonzero(is_late).tolist():
            self.left.append((leaving.too_late, self.candidates[i], self.v_init, self.tau_max))
        ranked = np.lexsort((counter, incarnation, worker, computed_from))
        ranked = ranked[~is_late[ranked]]
        return ranked, np.minimum(computed_from[ranked] + shift, beyond)

    def _field(self, network: Network, destination: str, world: World | None) -> Field:
        """Take the network to arrays; what is in flight is done when it ends."""
        waiting = [self.sources[i] for i in self.of[~self.is_flying].tolist()]
        number = {name: n for n, name in enumerate(dict.fromkeys(waiting or [destination]))}
        if world is None or not waiting:
            world = World(network, list(number), [destination])
        routes, lines = world.toward(list(number), destination)
        route = np.zeros(len(self.of), np.int64)
        route[~self.is_flying] = _integers([number[name] for name in waiting])
        bits = np.where(self.is_flying, 0, self.bits)
        ready_ns = np.maximum(self.ready_ns, max(self.now_ns, network.floor_ns))
        for rank, profile in self.flights.items():
            ready_ns[rank] = profile.end_ns
        return Field(routes, lines, route, bits, ready_ns)

    def candidate(self, rank: int) -> Candidate:
        """Return a candidate by its rank."""
        return self.candidates[int(self.of[rank])]

    def leave_unreachable(self, ranks: Ints) -> None:
        """Leave those that cannot be sent before the horizon."""
        self.left += [(leaving.unreachable, self.candidate(rank)) for rank in ranks.tolist()]

    def conflicts(self, staying: Ints) -> Ints:
        """Leave who is in conflict with others; return the rest."""
        due = self.deadline[staying]
        if np.all(due > np.arange(len(due))):
            return staying
        ends = self.field.end_ns
        keys = [column[self.of[staying]] for column in self.identity]
        order = np.lexsort((*keys, ends[staying], ~self.is_flying[staying]))
        badness = np.empty_like(order)
        badness[order] = np.arange(len(order))
        is_staying = np.ones(len(staying), np.bool_)
        for worst, q in positions.worst_due(due, badness):
            rank = staying[order[worst]]
            self.left.append((leaving.crowded_out, self.candidate(rank), q, int(ends[rank]) - self.now_ns))
            is_staying[order[worst]] = False
        return staying[is_staying]

    def ordering(self, ranks: Ints, is_due: NDArray[np.bool_], found: Found, pieces: Ints) -> Ordering:
        """Make the result of ``ranks`` by position, whose profiles were found or were given.

        Args:
            is_due: by rank, whether it has its place for its deadline.
        """
        flown = [(rank, self.flights[rank]) for rank in ranks[self.is_flying[ranks]].tolist()]
        for rank, profile in flown:
            found.end_ns[rank] = profile.end_ns
            found.first[rank] = len(pieces)
            pieces = np.append(pieces, np.array(profile.pieces, np.int64).reshape(-1, 3), axis=0)
            found.until[rank] = len(pieces)
        counts = (found.until - found.first)[ranks]
        first = np.concatenate(([0], np.cumsum(counts)))
        chosen = np.repeat(found.first[ranks] - first[:-1], counts) + np.arange(first[-1])
        profiles = Profiles(found.end_ns[ranks], pieces[chosen], first)
        slots = _Slots(self, ranks, is_due, profiles)
        left = self.left
        return Ordering(
            slots=Lazy(len(ranks), slots.slot),
            left=Lazy(len(left), lambda n: left[n][0](*left[n][1:])),
            placed=self._placed(ranks, profiles),
        )

    def _placed(self, ranks: Ints, profiles: Profiles) -> Placed:
        numbers, is_flying = self.of[ranks].tolist(), self.is_flying[ranks]
        return Placed(
            [self.updates[i] for i in numbers],
            [self.sources[i] for i in numbers],
            self.bits[ranks],
            np.where(is_flying, self.ready_ns[ranks], np.maximum(self.ready_ns[ranks], self.now_ns)),
            (~is_flying).tolist(),
            profiles,
        )


class _Slots:
    """Makes slots when they are looked at."""

    def __init__(self, batch: _Batch, ranks: Ints, is_due: NDArray[np.bool_], profiles: Profiles) -> None:
        self.batch, self.ranks, self.is_due, self.profiles = batch, ranks, is_due, profiles
        self.commit_ns: Ints = np.maximum(np.maximum.accumulate(profiles.end_ns), batch.now_ns)

    def slot(self, place: int) -> Slot:
        """Make the slot at a place from 0."""
        batch, rank = self.batch, int(self.ranks[place])
        candidate, profile = batch.candidate(rank), batch.flights.get(rank)
        pick = Pick.DEADLINE if self.is_due[rank] else Pick.SHORTEST
        bound = batch.tau_max
        return Slot(
            update=candidate.update,
            position=place + 1,
            profile=profile or self.profiles.profile(place),
            commit_ns=int(self.commit_ns[place]),
            pick=pick if profile is None else Pick.IN_FLIGHT,
            deadline=None if bound is None else candidate.computed_from + bound - batch.v_init + 1,
            planned_ns=batch.now_ns,
        )


def _feasible(batch: _Batch) -> Ordering:
    """The default rule."""
    ends = batch.field.solo_ends()
    is_reached = ends < HORIZON_NS
    batch.leave_unreachable(np.flatnonzero(~is_reached))
    staying = batch.conflicts(np.flatnonzero(is_reached))
    waiting = staying[~batch.is_flying[staying]]
    found, pieces = batch.field.reserve(waiting, np.minimum(batch.deadline[waiting], len(staying) + 1))
    never = waiting[found.end_ns[waiting] >= HORIZON_NS]
    batch.leave_unreachable(never)
    arrived = np.setdiff1d(staying, never, assume_unique=True) if len(never) else staying
    arrivals = arrived[np.argsort(np.where(batch.is_flying, ends, found.end_ns)[arrived], kind="stable")]
    due = batch.deadline[arrivals]
    if np.any(due <= np.arange(len(due))):
        arrivals = arrivals[np.array(positions.commit_order(due), np.int64)]
    return batch.ordering(arrivals, batch.deadline <= len(staying), found, pieces)


def _by_paper(batch: _Batch) -> Ordering:
    """The paper's rule for drops."""
    field = batch.field
    ends = field.solo_ends()
    batch.leave_unreachable(np.flatnonzero(ends >= HORIZON_NS))
    members = field.sorted(np.flatnonzero(ends < HORIZON_NS))
    found, pieces, ranks, was_due, left = paper.place(
        field.lines, field.routes, field.transfers, members, batch.deadline, batch.is_flying, ends
    )
    for rank, cause, number, ahead_ns in left:
        candidate = batch.candidate(rank)
        if cause == paper.LATE:
            batch.left.append((leaving.unplaced, candidate, number, int(batch.deadline[rank])))
        elif cause == paper.FASTER:
            batch.left.append((leaving.overtaken, candidate, batch.candidate(number), ahead_ns))
        else:
            batch.left.append((leaving.unreachable, candidate))
    return batch.ordering(ranks, was_due, found, pieces)


def _integers(values: Sequence[int]) -> Ints:
    return np.fromiter(values, np.int64, len(values))


def _identity(updates: Sequence[UpdateId]) -> tuple[Ints, Ints, Ints]:
    """Columns that sort as updates do: the last one first, then from right to left."""
    workers, incarnations, counters = zip(*updates, strict=True)
    number = {worker: n for n, worker in enumerate(sorted(set(workers)))}
    return _integers(counters), _integers(incarnations), _integers([number[worker] for worker in workers])


def warm() -> None:
    """Run all kernels of the ordering once."""
    network = Network.star(1)
    for name in "ab":
        network.add_host(name)
    batch = [
        Candidate(update=UpdateId("a", 0, n), source="a", size_bytes=1, ready_ns=0, computed_from=computed_from)
        for n, computed_from in enumerate((1, 0, 0, 2))
    ]
    for rule in DropRule:
        order(batch, network, "b", v_init=0, tau_max=0, now_ns=0, rule=rule)
    positions.commit_order(np.array([2, 1], np.int64))
