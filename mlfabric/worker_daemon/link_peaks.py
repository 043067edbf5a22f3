"""What a link carried at best during a round of AllReduce: when it is looked at, and what follows from that. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["FIRST_PAUSE_S", "least_bytes", "pauses_s", "peaks_bps"]

FIRST_PAUSE_S = 0.005
LONGER = 1.25
MOST_SAMPLES = 40
LEFT_OUT = 4
"""One part of so many, of the least bytes, does not count."""
LEAST_BYTES = 32 * 1024
"""Over fewer bytes a link's buffers make it look faster than it is."""


def pauses_s(first_s: float = FIRST_PAUSE_S) -> Iterator[float]:
    """Yield how long to wait before each further look at a link: it is full at the beginning, if ever."""
    for n in range(MOST_SAMPLES):
        yield first_s * LONGER**n


def least_bytes(size_bytes: int) -> int:
    """Return over how many bytes at least a rate counts, for a tensor of so many."""
    return max(LEAST_BYTES, size_bytes // 4)


def peaks_bps(
    began_ns: ArrayLike, ended_ns: ArrayLike, carried_bytes: ArrayLike, least_bytes: int
) -> NDArray[np.float64]:
    """Return by link the highest mean rate between two looks with at least so many bytes between them, or 0.

    A look may take long, as others run meanwhile, and nobody knows when in it the counters were read: so the time
    between two looks is from when the one began until the other ended, and no rate is higher than it was. What a link
    carries first is left out, a quarter of the least bytes: what a token bucket has saved up goes at once.

    Args:
        began_ns, ended_ns: when each look did.
        carried_bytes: by look what each link had carried by then.
    """
    began, ended, carried = np.asarray(began_ns), np.asarray(ended_ns), np.asarray(carried_bytes)
    is_under_way = (carried - carried[0]) * LEFT_OUT >= least_bytes
    late, early = np.nonzero(began[:, None] > began)
    passed = carried[late] - carried[early]
    rates = 8e9 * passed / (ended[late] - began[early])[:, None]
    counts = is_under_way[early] & (passed >= least_bytes)
    found: NDArray[np.float64] = np.where(counts, rates, 0.0).max(axis=0, initial=0.0)
    return found
