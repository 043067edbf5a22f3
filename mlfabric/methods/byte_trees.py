"""By which trees one range of a tensor's bytes is summed and the sum handed out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Trees"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """A tree into a root and one out of it, over workers, for one range of bytes.

    Args:
        start, end: the range; ``start`` is a multiple of ``ALIGNMENT_BYTES``, ``end`` greater.
        parents: to whom each worker that contributes, but the root, sends the sum of its own and what was sent to it.
        sources: from whom each worker but the root has the result; also workers that contribute nothing.
        rate_bps: at about which each stream is expected to go: no more is sent ahead than that needs; 0 for as much as
            TCP lets through.
        sums_bps, results_bps: by worker, at most at which its sum goes to its parent, and the result comes from its
            source; 0, or not there, if links carry more than comes.
    """

    start: int
    end: int
    root: str
    parents: Mapping[str, str]
    sources: Mapping[str, str]
    rate_bps: int = 0
    sums_bps: Mapping[str, int] = field(default_factory=dict)
    results_bps: Mapping[str, int] = field(default_factory=dict)
