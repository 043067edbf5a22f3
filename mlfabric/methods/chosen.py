"""Which workers make a round, so that training gets on fastest (design, section 3). Pure.

A step along the mean of n gradients brings ``n / (n + n_crit)`` of what one along the exact gradient would
(``gradient_noise.py``), so beyond n_crit further workers bring little, and one with a slow link costs much. The others
are *guests*: of every eighth round, which has everybody. Guests are lent the model's weights for that beforehand.

What counts is the progress per second over one such turn of eight rounds. A round of n workers takes at least as long
as one tensor takes over the slowest link, and as 2 (n - 1) tensors take over all ways up, or all ways down, together.
So only the workers with the fastest links can be the best choice of n: one pass over them in that order finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["FULL_EVERY", "LEAST_CHOSEN", "Links", "Turn", "choose", "least_of", "lend_ns"]

FULL_EVERY = 8
"""Every round of this number has everybody."""
LEAST_CHOSEN = 6
"""Of fewer than twelve workers half of them are chosen at the least."""
_STRETCH = 1.25
"""A round takes so many times its lower bound."""
_HOPS_NS = 10_000_000
_NEARLY = 0.95
"""With so much of the most progress the greatest number of workers is chosen: what links carry is roughly known."""
_CHANGES_AT = 1.1
"""Others are chosen when they bring so many times the progress: whoever comes in anew has to fetch the model."""
_BIT_NS_PER_BYTE = 8 * 10**9


class Links(NamedTuple):
    """What a worker's links carry."""

    up_bps: int
    down_bps: int

    @property
    def slower_bps(self) -> int:
        """The one that holds a round up."""
        return min(self)


class Turn(NamedTuple):
    """What a turn of rounds depends on.

    Args:
        size_bytes: of a gradient.
        compute_ns: how long workers usually compute.
        tau_max: how many rounds may be made while guests fetch the weights and compute.
        n_crit: see above, in workers.
    """

    size_bytes: int
    compute_ns: int
    tau_max: int
    n_crit: float


class _Load:
    """The links of some workers: what a round of them takes at least."""

    def __init__(self) -> None:
        self.n = self._up_bps = self._down_bps = 0
        self._slowest_bps = 0

    def add(self, links: Links) -> None:
        self._slowest_bps = min(self._slowest_bps, links.slower_bps) if self.n else links.slower_bps
        self.n, self._up_bps, self._down_bps = self.n + 1, self._up_bps + links.up_bps, self._down_bps + links.down_bps

    def takes_ns(self, turn: Turn) -> float:
        """Return what a round takes, with the step that it is of."""
        slowest, together = max(1, self._slowest_bps), max(1, min(self._up_bps, self._down_bps))
        tensors_per_bps = max(1 / slowest, 2 * (self.n - 1) / together)
        return turn.compute_ns + _HOPS_NS + _STRETCH * turn.size_bytes * _BIT_NS_PER_BYTE * tensors_per_bps

    def progress(self, turn: Turn) -> float:
        return self.n / (self.n + turn.n_crit)


def choose(links: Mapping[str, Links], turn: Turn, before: frozenset[str]) -> frozenset[str]:
    """Return the workers that make rounds, until links change.

    Args:
        links: of all workers that are here; at least one.
        before: those that were chosen before; they stay while nobody else would do much better.
    """
    order = sorted(links, key=lambda worker: (-links[worker].slower_bps, -sum(links[worker]), worker))
    everybody = _load(links.values())
    slowest_down = _least_from(order, links)
    load, least = _Load(), least_of(len(order))
    found: list[tuple[int, float]] = []
    for n, worker in enumerate(order, 1):
        load.add(links[worker])
        if n >= least:
            found.append((n, _per_ns(load, everybody, slowest_down[n], turn)))
    best = max(each for _, each in found)
    kept = frozenset(worker for worker in order if worker in before)
    if len(kept) >= least:
        outside = min((links[worker].down_bps for worker in order if worker not in kept), default=0)
        if _CHANGES_AT * _per_ns(_load(links[worker] for worker in kept), everybody, outside, turn) >= best:
            return kept
    return frozenset(order[: max(n for n, each in found if each >= _NEARLY * best)])


def least_of(workers: int) -> int:
    """Return how many of so many workers are chosen at the least."""
    return min(LEAST_CHOSEN, (workers + 1) // 2)


def lend_ns(down_bps: int, size_bytes: int) -> int:
    """Return how long it takes to lend somebody the weights."""
    return size_bytes * _BIT_NS_PER_BYTE // max(1, down_bps)


def _load(links: Iterable[Links]) -> _Load:
    load = _Load()
    for each in links:
        load.add(each)
    return load


def _least_from(order: list[str], links: Mapping[str, Links]) -> list[int]:
    """Return, for each place in the order, the slowest way down from there on; 0 behind the last."""
    least = [0] * (len(order) + 1)
    for place in reversed(range(len(order))):
        down_bps = links[order[place]].down_bps
        least[place] = min(down_bps, least[place + 1]) if least[place + 1] else down_bps
    return least


def _per_ns(some: _Load, everybody: _Load, slowest_guest_bps: int, turn: Turn) -> float:
    """Return the progress for each nanosecond of a turn; everybody's, if nobody is a guest."""
    if some.n == everybody.n:
        return everybody.progress(turn) / everybody.takes_ns(turn)
    each_ns = some.takes_ns(turn)
    waits_ns = max(0.0, lend_ns(slowest_guest_bps, turn.size_bytes) + turn.compute_ns - turn.tau_max * each_ns)
    progress = (FULL_EVERY - 1) * some.progress(turn) + everybody.progress(turn)
    return progress / ((FULL_EVERY - 1) * each_ns + waits_ns + everybody.takes_ns(turn))
