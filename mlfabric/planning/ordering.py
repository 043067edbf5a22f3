"""The order in which a batch of updates is sent and committed (paper, section 5.1, with its rule for drops mended).

The update at position p (from 1) is applied to version ``v_init + p - 1``, so its delay keeps the bound ``tau_max`` up
to the deadline position ``computed_from + tau_max - v_init + 1``. There are four steps:

1. *Left out at once*: a deadline below 1, or a path without capacity.
2. *Left out for others*: positions are unit slots. At the smallest q with more than q deadlines <= q, the slowest of
   those updates is left out (updates in flight last), until no such q remains.
3. *Reserved*: updates whose deadline binds (it is at most the number of updates) reserve first, by deadline, so that a
   slow one starts at once instead of waiting behind shorter ones; then the rest, shortest transfer first.
4. *Committed*: each position goes to the first update to arrive whose choice leaves the others feasible.

So an update is left out only if no order could keep its bound together with those of the others. Ties: (t_en, deadline,
worker, id). The paper's own rule is in ``paper.py``.

The steps are loops over arrays (``fluid/order_kernel.py``). Here a batch is laid out for them: a row for each update
by its rank, which is its place by (deadline, worker, id), or by (worker, id) without deadlines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

import numpy as np

from mlfabric.network import HORIZON_NS, Network, Profile
from mlfabric.network.profile import check_size
from mlfabric.planning import drop_reasons
from mlfabric.planning.fluid.world import World
from mlfabric.planning.lazy import Lazy
from mlfabric.planning.placements import Places, place, place_over
from mlfabric.planning.plan_values import Candidate, Left, Ordering, Pick, Slot
from mlfabric.planning.profiles import Ints, Lot, Profiles

__all__ = ["order"]


def order(
    candidates: Sequence[Candidate],
    network: Network,
    destination: str,
    *,
    v_init: int,
    tau_max: int | None,
    now_ns: int,
    world: World | None = None,
) -> Ordering:
    """Order a batch of updates to one server; ``network`` is not changed.

    Args:
        candidates: different updates; those in flight have their reservation in the network.
        destination: the server's host.
        v_init: the version to which the update at position 1 is applied.
        tau_max: delay bound, >= 0; None for no bound: then ties go by (t_en, worker, id).
        now_ns: nothing is planned before.
        world: of this network, if there is one already; has the ways from all sources to the server. It stays as it is.

    Returns:
        Every candidate, as a slot or left with its cause.

    Raises:
        UsageError: an unknown host, or a size out of range.
    """
    batch = _Batch(candidates, v_init, tau_max, now_ns)
    if len(batch.ranked) > 1:
        return batch.placed(network, destination, world)
    return batch.alone(network, destination, world)


class _Batch:
    """Updates by rank, and the updates left out because no position is early enough."""

    __slots__ = ("left", "now_ns", "ranked", "shift", "tau_max", "v_init")

    def __init__(self, candidates: Sequence[Candidate], v_init: int, tau_max: int | None, now_ns: int) -> None:
        self.v_init, self.tau_max, self.now_ns = v_init, tau_max, now_ns
        self.shift = 0 if tau_max is None else tau_max - v_init + 1
        self.left: list[Left] = []
        self.ranked = list(candidates)
        if tau_max is not None:
            late = [c for c in candidates if c.computed_from + self.shift < 1]
            if late:
                self.left = [drop_reasons.too_late(c, v_init, tau_max) for c in late]
                self.ranked = [c for c in candidates if c.computed_from + self.shift >= 1]

    def alone(self, network: Network, destination: str, world: World | None) -> Ordering:
        """The most frequent case: a lone update, which competes with nobody."""
        for candidate in self.ranked:
            profile = candidate.in_flight or network.transfer(
                network.path(candidate.source, destination),
                candidate.size_bytes,
                max(candidate.ready_ns, self.now_ns),
            )
            if profile is not None:
                return Ordering(
                    slots=(self._slot(candidate, 1, profile, 1),),
                    left=tuple(self.left),
                    candidates=(candidate,),
                    end_ns=(profile.end_ns,),
                    lot=self._only((candidate,), (profile,), world),
                )
            self.left.append(drop_reasons.unreachable(candidate))
        return Ordering(slots=(), left=tuple(self.left), lot=self._only((), (), world))

    def _only(self, chosen: Sequence[Candidate], profiles: Sequence[Profile], world: World | None) -> Lot | None:
        if world is None:
            return None
        return _columns(chosen, _given(chosen, world.numbers), Profiles.of(profiles), self.now_ns)

    def placed(self, network: Network, destination: str, world: World | None) -> Ordering:
        """Let the kernels place all."""
        names, dues = self._rank()
        if world:
            given = _given(self.ranked, world.numbers)
            lines, routes = world.toward(destination, int(given[0].max()) + 1)
            found = place_over(lines, routes, self._rows(given, dues, names, network.floor_ns))
            return self._ordering(found, self._lot(found, given))
        number = {host: n for n, host in enumerate(dict.fromkeys([c.source for c in self.ranked]))}
        given = _given(self.ranked, lambda sources: map(number.__getitem__, sources))
        paths = [network.path(host, destination) for host in number]
        return self._ordering(place(network, paths, self._rows(given, dues, names, network.floor_ns)), None)

    def _rank(self) -> tuple[list[int], list[int]]:
        """Rank all; return, by rank, their places among all names, and their last positions."""
        self.ranked.sort(key=_update)
        names, beyond = list(range(len(self.ranked))), len(self.ranked) + 1
        if self.tau_max is None:
            return names, [beyond] * len(names)
        computed = [c.computed_from for c in self.ranked]
        names.sort(key=computed.__getitem__)
        self.ranked = [self.ranked[name] for name in names]
        shift, binding = self.shift, beyond - self.shift
        return names, [c.computed_from + shift if c.computed_from < binding else beyond for c in self.ranked]

    def _rows(self, given: Ints, dues: Sequence[int], names: Sequence[int], floor_ns: int) -> Ints:
        """Lay all out as ``fluid.order_kernel.place_over`` wants them."""
        rows = np.empty((6, len(names)), np.int64)
        rows[:4], rows[4], rows[5] = given, dues, names
        np.minimum(np.maximum(given[2], max(self.now_ns, floor_ns)), HORIZON_NS, out=rows[2])
        for rank in np.flatnonzero(rows[3]).tolist():
            in_flight = self.ranked[rank].in_flight
            rows[:3, rank] = 0, 0, in_flight.end_ns if in_flight else 0
        return rows

    def _ordering(self, found: Places, lot: Lot | None) -> Ordering:
        """Make the result: slots and reasons are made when they are looked at."""
        chosen = [self.ranked[rank] for rank in found.ranks]

        def slot(n: int) -> Slot:
            return self._slot(chosen[n], n + 1, chosen[n].in_flight or found.profile(n), found.binding)

        for rank, position, end_ns in found.left:
            candidate = self.ranked[rank]
            if position:
                self.left.append(drop_reasons.crowded_out(candidate, end_ns - self.now_ns))
            else:
                self.left.append(drop_reasons.unreachable(candidate))
        slots = Lazy(len(chosen), slot)
        return Ordering(slots=slots, left=tuple(self.left), candidates=chosen, end_ns=found.end_ns, lot=lot)

    def _lot(self, found: Places, given: Ints) -> Lot:
        """Return updates in the order of commits as columns."""
        chosen, profiles = [self.ranked[rank] for rank in found.ranks], found.profiles
        ranks = np.fromiter(found.ranks, np.int64, len(chosen))
        if given[3].any():
            profiles = Profiles.of([c.in_flight or found.profile(n) for n, c in enumerate(chosen)])
        return _columns(chosen, given.take(ranks, axis=1), profiles, self.now_ns)

    def _slot(self, candidate: Candidate, position: int, profile: Profile, binding: int) -> Slot:
        deadline = None if self.tau_max is None else candidate.computed_from + self.shift
        is_due = deadline is not None and deadline <= binding
        pick = Pick.DEADLINE if is_due else Pick.SHORTEST
        return Slot(
            update=candidate.update,
            position=position,
            profile=profile,
            pick=pick if candidate.in_flight is None else Pick.IN_FLIGHT,
            deadline=deadline,
        )


def _given(candidates: Sequence[Candidate], numbers: Callable[[Iterable[str]], Iterable[int]]) -> Ints:
    """Columns of updates: the numbers of their sources, bits, when they are ready, and 1 for those in flight."""
    sizes = [c.size_bytes for c in candidates]
    for size_bytes in (min(sizes, default=0), max(sizes, default=0)):
        check_size(size_bytes)
    found = np.empty((4, len(sizes)), np.int64)
    found[0] = list(numbers([c.source for c in candidates]))
    found[1] = sizes
    found[1] *= 8
    found[2] = [c.ready_ns for c in candidates]
    found[3] = [c.in_flight is not None for c in candidates]
    return found


def _columns(chosen: Sequence[Candidate], given: Ints, profiles: Profiles, now_ns: int) -> Lot:
    """Return updates in the order of commits as columns."""
    source, bits, ready_ns, flies = given
    is_any = flies.any()
    return Lot(
        updates=[c.update for c in chosen],
        source=source,
        bits=bits,
        ready_ns=np.where(flies, ready_ns, np.maximum(ready_ns, now_ns)) if is_any else np.maximum(ready_ns, now_ns),
        fixed=int(np.flatnonzero(flies)[-1]) + 1 if is_any else 0,
        flies=flies,
        direct=profiles,
    )


_update = attrgetter("update")
