"""What the links of a round's workers carried at best, as their interfaces would show it, in virtual time.

Each worker looks at its link from when it is told its part, at the instants and over the spans of the live meter
(``mlfabric/worker_daemon/link_peaks.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from mlfabric.worker_daemon.link_peaks import least_bytes, pauses_s, peaks_bps

__all__ = ["RoundMeter"]

_OFFSETS_NS = 1e9 * np.array([0.0, *accumulate(pauses_s())])[:-1]


class RoundMeter:
    """Looks at all links during one round.

    Args:
        told_ns: when each worker is told its part.
        size_bytes: of its tensor.
    """

    def __init__(self, told_ns: NDArray[np.float64], size_bytes: int) -> None:
        self._told_ns, self._size_bytes = told_ns, size_bytes
        self._looks_ns = np.unique(np.unique(told_ns)[:, None] + _OFFSETS_NS).tolist()
        self._at_ns: list[float] = []
        self._carried: list[NDArray[np.float64]] = []

    @property
    def next_ns(self) -> float:
        """When links are looked at next; infinity for never."""
        return self._looks_ns[len(self._at_ns)] if len(self._at_ns) < len(self._looks_ns) else np.inf

    def look(self, at_ns: float, carried_bits: NDArray[np.float64]) -> None:
        """Note what each link has carried by an instant."""
        self._at_ns.append(at_ns)
        self._carried.append(carried_bits / 8)

    def peaks_bps(self, hosts: int) -> Iterator[tuple[int, int]]:
        """Yield by worker the highest rates of its host's link, up and down; 0 where too little was carried.

        Args:
            hosts: how many up links there are; those down follow.
        """
        at_ns, carried = np.array(self._at_ns), np.array(self._carried)
        found = np.zeros(2 * hosts)
        for told_ns in np.unique(self._told_ns):
            workers = np.flatnonzero(self._told_ns == told_ns)
            own = np.isin(at_ns, told_ns + _OFFSETS_NS)
            own[-1] = True
            links = np.concatenate((workers, hosts + workers))
            found[links] = peaks_bps(at_ns[own], at_ns[own], carried[own][:, links], least_bytes(self._size_bytes))
        for worker in range(len(self._told_ns)):
            yield int(found[worker]), int(found[hosts + worker])
