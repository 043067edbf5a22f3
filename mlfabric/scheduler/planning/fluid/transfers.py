"""What many transfers have in common: the links that all of them cross, and the cap of each on its other links.

See ``shortest.py`` for what that is good for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from mlfabric.network import HORIZON_NS, Network, Piece, Profile
from mlfabric.scheduler.planning.fluid import reserving
from mlfabric.scheduler.planning.fluid.lines import MOST_BPS, Ints, Lines, Routes
from mlfabric.scheduler.planning.fluid.shortest import Transfers
from mlfabric.scheduler.planning.fluid.world import over_paths
from mlfabric.scheduler.planning.shortest import Demand

__all__ = ["Field", "KernelReserver"]


class Field:
    """Transfers over the lines of one network, ready for the kernels; columns by rank.

    Args:
        lines: fresh, list after list as ``World`` lays them out; what is reserved here is taken from them.
        route, bits, ready_ns: of each transfer.
    """

    def __init__(self, routes: Routes, lines: Lines, route: Ints, bits: Ints, ready_ns: Ints) -> None:
        crossed = np.arange(routes.link.shape[1]) < routes.hops[:, None]
        is_common = _common(routes, crossed, len(lines.head))
        most = np.append(np.maximum.reduceat(lines.bps, lines.head), MOST_BPS) if len(lines.head) else [MOST_BPS]
        own = np.where(crossed & ~is_common[routes.link], routes.link, -1)
        cap_bps = np.take(most, own).min(axis=1, initial=MOST_BPS)
        self.lines, shared = lines, np.flatnonzero(is_common)
        if not len(shared):
            self.lines, shared = _with_endless(lines), np.array([len(lines.head)])
        self.routes = _with_route(routes, shared)
        bits = np.where(routes.hops[route] > 0, bits, 0)
        common = np.array([len(routes.hops)], np.int64)
        self.transfers = Transfers(route, bits, ready_ns, cap_bps[route], common)
        self.end_ns: Ints = np.minimum(ready_ns, HORIZON_NS)

    def solo_ends(self) -> Ints:
        """Return when each transfer would end if it were alone; HORIZON_NS for never."""
        self.end_ns = reserving.solo_ends(self.lines, self.routes, self.transfers)
        return self.end_ns

    def sorted(self, members: Ints, batch: Ints | None = None) -> Ints:
        """Sort members by batch, and within each as the kernels want it; ``members`` ascend within a batch."""
        t = self.transfers
        keys = [t.ready_ns[members], t.route[members], -t.cap_bps[members], t.bits[members]]
        return members[np.lexsort(keys if batch is None else [*keys, batch])]

    def reserve(self, members: Ints, batch: Ints) -> tuple[reserving.Found, Ints]:
        """Reserve batch after batch, each shortest transfer first.

        Args:
            members: ranks, ascending within a batch.
            batch: of each member; ascending.

        Returns:
            What was found, by rank, and the pieces to which it points.
        """
        first = np.concatenate(([0], np.flatnonzero(batch[1:] != batch[:-1]) + 1, [len(members)]))
        found, pieces, self.lines = reserving.reserve(
            self.lines, self.routes, self.transfers, self.sorted(members, batch), first, self.end_ns
        )
        return found, pieces


def _common(routes: Routes, crossed: NDArray[np.bool_], links: int) -> NDArray[np.bool_]:
    """Return by link whether every route that crosses any link crosses it; one more for none, False."""
    counts = np.bincount(routes.link[crossed], minlength=links + 1)
    crossing = np.count_nonzero(routes.hops)
    is_common: NDArray[np.bool_] = (counts == crossing) & (counts > 0)
    return is_common


def _with_route(routes: Routes, links: Ints) -> Routes:
    """Add one more route."""
    width = max(routes.link.shape[1], len(links))
    link = np.full((len(routes.hops) + 1, width), -1, np.int64)
    link[:-1, : routes.link.shape[1]] = routes.link
    link[-1, : len(links)] = links
    return Routes(link, np.append(routes.hops, len(links)), np.append(routes.latency_ns, 0), np.zeros(width, np.int64))


def _with_endless(lines: Lines) -> Lines:
    """Add a link on which nothing is ever slow."""
    used = lines.used[0]
    columns = (np.append(a[:used], b) for a, b in zip(lines[:3], (0, MOST_BPS, 0), strict=True))
    at_ns, bps, following = columns
    return Lines(at_ns, bps, following, lines.used + 1, np.append(lines.head, used))


class KernelReserver:
    """The reserver for many transfers, over any topology."""

    def __init__(self, demands: Sequence[Demand], network: Network) -> None:
        paths = {path: n for n, path in enumerate(dict.fromkeys(demand.path for demand in demands))}
        route = np.array([paths[demand.path] for demand in demands], np.int64)
        bits = np.array([8 * demand.size_bytes for demand in demands], np.int64)
        ready_ns = np.array([max(demand.ready_ns, network.floor_ns) for demand in demands], np.int64)
        self._field = Field(*over_paths(network, list(paths)), route, bits, ready_ns)

    def solo_ends(self) -> list[int]:
        """Return when each transfer would end if it were alone; HORIZON_NS for never."""
        ends: list[int] = self._field.solo_ends().tolist()
        return ends

    def reserve(self, batches: Iterable[Sequence[int]]) -> dict[int, Profile | None]:
        """Reserve batch after batch, each shortest transfer first; once, after ``solo_ends``."""
        listed = [(i, n) for n, batch in enumerate(batches) for i in batch]
        columns = np.array(listed, np.int64).reshape(-1, 2)
        found, pieces = self._field.reserve(columns[:, 0], columns[:, 1])
        rows: list[Piece] = list(map(Piece._make, pieces.tolist()))
        ends, first, until = (column.tolist() for column in found)
        return {i: _profile(rows[first[i] : until[i]], ends[i]) for i, _ in listed}


def _profile(pieces: Sequence[Piece], end_ns: int) -> Profile | None:
    """Make a profile of its pieces; without them it took no time; None for what never ends."""
    if end_ns >= HORIZON_NS:
        return None
    return Profile(pieces[0].start_ns if pieces else end_ns, end_ns, tuple(pieces))
