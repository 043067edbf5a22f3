"""Takes demands to the compiled kernel and its results back to profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlfabric.network import HORIZON_NS, LinkId, Network, Piece, Profile
from mlfabric.scheduler.planning import kernel
from mlfabric.scheduler.planning.layout import Groups, Ints, Lines
from mlfabric.scheduler.planning.shortest import Demand

__all__ = ["KernelReserver", "kernel_reserver", "load"]


def load(log: Callable[[str], None]) -> None:
    """Load the kernel's machine code, or compile it and keep it on disk."""
    cold = not _is_compiled()
    if cold:
        log("compiling the planner's kernel; this happens once and takes some tens of seconds")
    network = Network.star(1)
    network.add_host("a")
    network.add_host("b")
    reserver = KernelReserver([Demand(network.path("a", "b"), 1, 0)], network, 1)
    reserver.solo_ends()
    reserver.reserve([[0]])
    log("compiled the planner's kernel" if cold else "loaded the planner's kernel")


def _is_compiled() -> bool:
    """Whether machine code that is not older than the kernel's source lies on disk."""
    stats: Any = getattr(kernel.reserve, "stats", None)
    codes = Path(stats.cache_path).glob("kernel.reserve-*.nbi")
    newest = max((code.stat().st_mtime for code in codes), default=0.0)
    return newest >= Path(kernel.__file__).stat().st_mtime


def kernel_reserver(demands: Sequence[Demand], network: Network) -> KernelReserver | None:
    """Return a reserver that uses the kernel; None if the demands do not all share one of two hops.

    Demands that cross no link do not count.
    """
    paths = {demand.path for demand in demands if demand.path}
    if any(len(path) != 2 for path in paths):
        return None
    for hop in (1, 0):
        if len({path[hop] for path in paths}) == 1:
            return KernelReserver(demands, network, hop)
    return None


class KernelReserver:
    """The reserver for transfers through one shared link; ``hop`` says which of their two it is."""

    def __init__(self, demands: Sequence[Demand], network: Network, hop: int) -> None:
        self._demands = demands
        self._sent = [i for i, d in enumerate(demands) if d.path and d.size_bytes and d.ready_ns < HORIZON_NS]
        own = {demands[i].path[1 - hop]: 0 for i in self._sent}
        for number, link in enumerate(own):
            own[link] = number
        floor_ns = network.floor_ns
        self._own = np.zeros(len(demands), np.int64)
        self._own[self._sent] = [own[demands[i].path[1 - hop]] for i in self._sent]
        self._bits = np.array([8 * d.size_bytes for d in demands], np.int64)
        self._ready_ns = np.array([min(max(d.ready_ns, floor_ns), HORIZON_NS) for d in demands], np.int64)
        shared = next(d.path[hop] for d in demands if d.path)
        self._last_bps = np.array([network.free_line(link).values[-1] for link in own], np.int64)
        self._lines, self._head = _lines([shared, *own], network)

    def solo_ends(self) -> list[int]:
        """Return when each transfer would end if it were alone; HORIZON_NS for never."""
        alone = np.array(self._sent, np.int64)
        ends = np.array([HORIZON_NS if d.path and d.size_bytes else 0 for d in self._demands], np.int64)
        ends = np.maximum(ends, self._ready_ns)
        ends[alone] = kernel.solo_ends(self._lines, self._groups(alone, np.arange(len(alone) + 1), alone))
        found: list[int] = ends.tolist()
        return found

    def reserve(self, batches: Iterable[Sequence[int]]) -> dict[int, Profile | None]:
        """Reserve batch after batch, each shortest transfer first; once, after ``solo_ends``."""
        profiles: dict[int, Profile | None] = {}
        sent, numbers = frozenset(self._sent), []
        listed: list[int] = []
        for number, batch in enumerate(batches):
            for i in batch:
                if i in sent:
                    listed.append(i)
                    numbers.append(number)
                else:
                    profiles[i] = self._unsent(i)
        if listed:
            self._reserve(np.array(listed, np.int64), np.array(numbers, np.int64), profiles)
        return profiles

    def _reserve(self, listed: Ints, batch: Ints, profiles: dict[int, Profile | None]) -> None:
        rank = np.arange(len(listed))
        own, bits, ready_ns = self._own[listed], self._bits[listed], self._ready_ns[listed]
        sorting = np.lexsort((rank, ready_ns, own, self._last_bps[own], bits, batch))
        parts = [part[sorting] for part in (batch, own, bits, ready_ns)]
        begins = np.flatnonzero(np.any([part[1:] != part[:-1] for part in parts], axis=0)) + 1
        first = np.concatenate(([0], begins, [len(listed)]))
        of_group = parts[0][first[:-1]]
        batches = np.concatenate(([0], np.flatnonzero(of_group[1:] != of_group[:-1]) + 1, [len(of_group)]))
        groups = self._groups(listed[sorting][first[:-1]], first, sorting, batches)
        done, pieces = kernel.reserve(self._lines, groups)
        rows: list[Piece] = list(map(Piece._make, pieces.tolist()))
        names = listed.tolist()
        for number, end_ns, begin, end in done[1:].tolist():
            reachable = begin < end
            profiles[names[number]] = Profile(rows[begin][0], end_ns, tuple(rows[begin:end])) if reachable else None

    def _groups(self, members: Ints, first: Ints, rank: Ints, batch: Ints | None = None) -> Groups:
        one = np.array([0, len(members)]) if batch is None else batch
        own, bits, ready_ns = self._own[members], self._bits[members], self._ready_ns[members]
        return Groups(self._head, own, bits, ready_ns, self._last_bps[own], first, rank, one)

    def _unsent(self, i: int) -> Profile | None:
        ready_ns = int(self._ready_ns[i])
        nothing = not self._demands[i].path or not self._demands[i].size_bytes
        return Profile(ready_ns, ready_ns, ()) if nothing else None


def _lines(links: Sequence[LinkId], network: Network) -> tuple[Lines, Ints]:
    """Lay residual capacities out as linked lists; return them and the heads of all but the first, the shared one."""
    at_ns, bps, following, heads = [HORIZON_NS], [0], [0], []
    for link in links:
        line = network.free_line(link)
        head = len(at_ns)
        heads.append(head)
        at_ns += line.times[:-1]
        bps += line.values
        following += range(head + 1, len(at_ns))
        following.append(0)
    count = np.array([len(at_ns)], np.int64)
    columns = np.array((at_ns, bps, following), np.int64)
    shared = np.array(heads[:1], np.int64)
    return Lines(columns[0], columns[1], columns[2], count, shared), np.array(heads[1:], np.int64)
