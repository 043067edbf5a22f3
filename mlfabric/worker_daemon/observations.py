"""What a worker daemon tells whoever watches it: bytes that have passed, and what became of each update. Plain values.

An observer is called in the daemon's thread, in the order in which things happened; it should be brief. Times are of
this host's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlfabric.protocol import GetId, Outcome, UpdateId

__all__ = ["Observer", "Settled", "Transferred", "nobody"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferred:
    """All bytes of a push (an ``UpdateId``) have been sent to ``peer``, or all of a get (a ``GetId``) came from it."""

    transfer: UpdateId | GetId
    peer: str
    size_bytes: int
    started_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The outcome of an update that the worker pushed is known."""

    update: UpdateId
    outcome: Outcome
    pushed_ns: int
    settled_ns: int


Observer = Callable[[Transferred | Settled], None]


def nobody(seen: Transferred | Settled) -> None:
    """Observe nothing."""
