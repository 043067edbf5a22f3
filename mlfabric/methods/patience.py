"""For how long a round waits for workers that still compute (design, section 3). Pure."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["worth_waiting_ns"]

_MARGIN = 0.05
_LEAST_MARGIN_NS = 5_000_000
"""The scheduler hears of equally long steps at times that differ by so much: threads and messages take some."""


def worth_waiting_ns(took_ns: Collection[int], round_ns: int) -> int:
    """Return how long after it began to compute a worker is worth waiting for.

    Who waits longer has more gradients in each round, and fewer rounds. If a share F(t) of steps takes t at most, and
    a round takes r once it has begun, then waiting until t makes F(t) / (t + r) gradients a second; the best t is
    returned, the longest of equals. So where rounds are long slow steps are waited for, and where they are short not.

    Args:
        took_ns: of recent steps of all workers, one at least.
        round_ns: what a round takes from its beginning on.
    """
    best, best_ns = 0.0, 0
    for number, one_ns in enumerate(sorted(took_ns), start=1):
        until_ns = one_ns + max(_LEAST_MARGIN_NS, round(_MARGIN * one_ns))
        gained = number / (until_ns + round_ns)
        if gained >= best:
            best, best_ns = gained, until_ns
    return best_ns
