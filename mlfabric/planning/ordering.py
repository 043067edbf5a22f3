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

from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from mlfabric.network import HORIZON_NS, Network, Profile
from mlfabric.network.profile import check_size
from mlfabric.planning import drop_reasons
from mlfabric.planning.fluid.world import World
from mlfabric.planning.lazy import Lazy
from mlfabric.planning.placements import Places, Row, place, place_over
from mlfabric.planning.plan_values import Candidate, Left, Ordering, Pick, Slot
from mlfabric.planning.profiles import Placed, Profiles

__all__ = ["columns_of", "order"]


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
        return batch.ordering(batch.placed(network, destination, world))
    return batch.alone(network, destination)


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

    def alone(self, network: Network, destination: str) -> Ordering:
        """The most frequent case: a lone update, which competes with nobody."""
        for candidate in self.ranked:
            profile = candidate.in_flight or network.transfer(
                network.path(candidate.source, destination),
                candidate.size_bytes,
                max(candidate.ready_ns, self.now_ns),
            )
            if profile is not None:
                return Ordering(slots=(self._slot(candidate, 1, profile, 1),), left=tuple(self.left))
            self.left.append(drop_reasons.unreachable(candidate))
        return Ordering(slots=(), left=tuple(self.left))

    def placed(self, network: Network, destination: str, world: World | None) -> Places:
        """Let the kernels place all."""
        rows, routes = self._rows(network.floor_ns)
        if world is not None and routes:
            return place_over(*world.toward(list(routes), destination), rows)
        return place(network, [network.path(source, destination) for source in routes] or [()], rows)

    def _rows(self, floor_ns: int) -> tuple[list[Row], dict[str, int]]:
        """Rank all and lay them out; return also the routes of their sources, numbered as they come."""
        self.ranked.sort(key=_update)
        beyond, floor_ns, shift = len(self.ranked) + 1, max(self.now_ns, floor_ns), self.shift
        names: Sequence[int] = range(len(self.ranked))
        deadlines = [beyond] * len(self.ranked)
        if self.tau_max is not None:
            computed = [c.computed_from for c in self.ranked]
            names = sorted(names, key=computed.__getitem__)
            self.ranked = [self.ranked[name] for name in names]
            deadlines = [min(computed[name] + shift, beyond) for name in names]
        rows: list[Row] = []
        routes: dict[str, int] = {}
        for name, c, due in zip(names, self.ranked, deadlines, strict=True):
            if c.in_flight is None:
                size_bytes = c.size_bytes
                check_size(size_bytes)
                ready_ns = min(max(c.ready_ns, floor_ns), HORIZON_NS)
                rows.append((routes.setdefault(c.source, len(routes)), 8 * size_bytes, ready_ns, due, name, 0))
            else:
                rows.append((0, 0, c.in_flight.end_ns, due, name, 1))
        return rows, routes

    def ordering(self, found: Places) -> Ordering:
        """Make the result: slots and reasons are made when they are looked at."""
        ranked = [self.ranked[rank] for rank in found.ranks]

        def slot(n: int) -> Slot:
            profile = ranked[n].in_flight or found.profile(n)
            return self._slot(ranked[n], n + 1, profile, found.binding)

        for rank, position, end_ns in found.left:
            candidate = self.ranked[rank]
            if position:
                self.left.append(drop_reasons.crowded_out(candidate, position, end_ns - self.now_ns))
            else:
                self.left.append(drop_reasons.unreachable(candidate))
        profiles = found.profiles
        if any(c.in_flight for c in ranked):
            profiles = Profiles.of([c.in_flight or found.profile(n) for n, c in enumerate(ranked)])
        placed = columns_of(ranked, profiles, self.now_ns)
        return Ordering(slots=Lazy(len(ranked), slot), left=tuple(self.left), placed=placed)

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


def columns_of(chosen: Sequence[Candidate], profiles: Profiles, now_ns: int) -> Placed:
    """Return updates in the order of commits as columns."""
    return Placed(
        updates=[c.update for c in chosen],
        sources=[c.source for c in chosen],
        bits=np.array([8 * c.size_bytes for c in chosen], np.int64),
        ready_ns=np.array([c.ready_ns if c.in_flight else max(c.ready_ns, now_ns) for c in chosen], np.int64),
        planned=[c.in_flight is None for c in chosen],
        profiles=profiles,
    )


_update = attrgetter("update")
