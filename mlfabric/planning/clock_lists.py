"""Stale-synchronous planning (paper, section 6): lists by clock instead of one order with deadlines.

A worker's clock is the number of iterations that it has finished; an update's clock is its worker's clock before it. A
worker that is behind delays all others. So all updates of a lower clock are ordered, reserved and committed before any
of a higher one; each list is planned shortest transfer first, over the capacity that earlier lists leave free. Each
update makes a version.

A get whose worker has finished more than ``slowest_clock + slack`` iterations is held back: it is deferred until the
slowest worker has come closer. ``slowest_clock`` counts as it was given; commits of the same plan do not change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from mlfabric.network import Network
from mlfabric.planning.fluid.world import World
from mlfabric.planning.lazy import Lazy
from mlfabric.planning.ordering import order
from mlfabric.planning.plan import Deferred
from mlfabric.planning.plan_values import Candidate, GetCandidate, Left, Ordering, Pick, Slot

__all__ = ["held_back", "order_lists"]


def order_lists(
    candidates: Sequence[Candidate],
    network: Network,
    destination: str,
    *,
    v_init: int,
    now_ns: int,
    world: World | None = None,
) -> Ordering:
    """Order updates to one server, list by list; ``network`` is not changed.

    Args:
        world: as for ``order``.

    Raises:
        UsageError: an unknown host, or a size out of range.
    """
    left: list[Left] = []
    while len({candidate.clock for candidate in candidates}) > 1:
        # Lists become deadlines: if each update is due by the last position of its list, every deadline binds, lists
        # are reserved one after the other, and each fills its positions. An update that is left out would leave a gap,
        # so the rest is ordered again.
        due = _last_positions(candidates)
        dated = [replace(candidate, computed_from=due[candidate.clock]) for candidate in candidates]
        found = order(dated, network, destination, v_init=1, tau_max=0, now_ns=now_ns, world=world)
        if not found.left:
            return replace(found, slots=_undated(found.slots), left=tuple(left))
        left += found.left
        gone = {one.update for one in found.left}
        candidates = [candidate for candidate in candidates if candidate.update not in gone]
    found = order(candidates, network, destination, v_init=v_init, tau_max=None, now_ns=now_ns, world=world)
    return replace(found, left=(*left, *found.left)) if left else found


def _last_positions(candidates: Sequence[Candidate]) -> dict[int, int]:
    """Return by clock the last position of its list."""
    counts = sorted(Counter(candidate.clock for candidate in candidates).items())
    return dict(zip((clock for clock, _ in counts), accumulate(count for _, count in counts), strict=True))


def _undated(slots: Sequence[Slot]) -> Sequence[Slot]:
    """Remove the lists' deadlines from slots."""

    def undated(place: int) -> Slot:
        slot = slots[place]
        return replace(slot, deadline=None, pick=Pick.SHORTEST if slot.pick is Pick.DEADLINE else slot.pick)

    return Lazy(len(slots), undated)


def held_back(
    gets: Sequence[GetCandidate], *, slowest_clock: int, slack: int
) -> tuple[list[GetCandidate], list[Deferred]]:
    """Split gets into those that may be answered and those that wait for the slowest worker."""
    most = slowest_clock + slack
    why = f"the slowest worker has finished {slowest_clock} iterations, so {most} are allowed; this one has finished"
    late = [Deferred(what=get.get, reason=f"{why} {get.clock}") for get in gets if get.clock > most]
    return [get for get in gets if get.clock <= most], late
