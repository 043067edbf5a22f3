"""Tickets of transfers that have ended: whoever comes late with one is told so at once. Pure."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["Spent"]

KEPT = 4096


class Spent:
    """The latest tickets that are good for nothing any more, and why."""

    def __init__(self) -> None:
        self._reasons: OrderedDict[bytes, str] = OrderedDict()

    def add(self, ticket: bytes, reason: str) -> None:
        """Remember a ticket; the oldest is forgotten for it if there are many."""
        self._reasons[ticket] = reason
        while len(self._reasons) > KEPT:
            self._reasons.popitem(last=False)

    def reason(self, ticket: bytes) -> str | None:
        """Return why a ticket is good for nothing, None if it may be good."""
        return self._reasons.get(ticket)
