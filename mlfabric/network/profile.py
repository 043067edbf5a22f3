"""The rate of a transfer over time: ``t_en`` of the paper (figure 4).

At every instant a transfer uses the least residual capacity along its path. It ends at the first integer nanosecond
at which all its bytes have passed; within its last nanosecond the full rate stays reserved.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from mlfabric.errors import UsageError
from mlfabric.network.timeline import HORIZON_NS, Timeline
from mlfabric.values import dataclass

__all__ = ["MAX_RATE_BPS", "MAX_SIZE_BYTES", "Piece", "Profile", "check_size", "transfer_over"]

MAX_SIZE_BYTES = 1 << 50
MAX_RATE_BPS = 1 << 43
_BIT_NS_PER_BYTE = 8 * 10**9


class Piece(NamedTuple):
    """A constant rate within ``[start_ns, end_ns)``."""

    start_ns: int
    end_ns: int
    bps: int


@dataclass(frozen=True, slots=True)
class Profile:
    """The rates of one transfer over time.

    Args:
        start_ns: when its first bit moves.
        end_ns: when its last bit has passed.
        pieces: ascending, rates above zero, neighbours differ or leave a gap. Empty if no link is crossed or there is
            nothing to send; then ``start_ns`` and ``end_ns`` are when it was ready.
    """

    start_ns: int
    end_ns: int
    pieces: tuple[Piece, ...]


def check_size(size_bytes: int) -> None:
    """Refuse a size below 0 or above :data:`MAX_SIZE_BYTES` with a UsageError."""
    if not 0 <= size_bytes <= MAX_SIZE_BYTES:
        raise UsageError(f"size_bytes={size_bytes}; allowed: 0 to 2**50")


def transfer_over(lines: Sequence[Timeline], size_bytes: int, ready_ns: int) -> Profile | None:
    """Send ``size_bytes`` from ``ready_ns`` on, at every instant at the least of ``lines``.

    Args:
        lines: residual capacity of each link of the path in bit/s; below zero counts as zero.

    Returns:
        The profile, or None if it would not end before the horizon.
    """
    if not lines or not size_bytes:
        return Profile(ready_ns, ready_ns, ())
    cursors = [(line.times, line.values, bisect_right(line.times, ready_ns) - 1) for line in lines]
    need = size_bytes * _BIT_NS_PER_BYTE
    pieces: list[Piece] = []
    now = ready_ns
    while now < HORIZON_NS:
        rate = min([values[i] for _, values, i in cursors])
        change = min([times[i + 1] for times, _, i in cursors])
        if rate > 0:
            end = now - (-need // rate)
            if end <= change:
                _append(pieces, now, end, rate)
                return Profile(pieces[0].start_ns, end, tuple(pieces)) if end < HORIZON_NS else None
            _append(pieces, now, change, rate)
            need -= rate * (change - now)
        now = change
        cursors = [(times, values, i + (times[i + 1] == now)) for times, values, i in cursors]
    return None


def _append(pieces: list[Piece], start_ns: int, end_ns: int, bps: int) -> None:
    if pieces and pieces[-1].end_ns == start_ns and pieces[-1].bps == bps:
        start_ns = pieces.pop().start_ns
    pieces.append(Piece(start_ns, end_ns, bps))
