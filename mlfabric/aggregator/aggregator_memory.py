"""How much memory an aggregator has for sums and models, and who holds how much of it. Pure."""

from __future__ import annotations

from mlfabric.protocol import GetId, SumId

__all__ = ["Memory"]


class Memory:
    """A budget; what comes first in its queue may exceed it, so that crossing trees cannot block one another.

    Args:
        budget_bytes: > 0.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.held: dict[SumId | GetId, int] = {}

    def take(self, who: SumId | GetId, size_bytes: int, *, is_first: bool) -> bool:
        """Reserve ``size_bytes`` if they fit, or if ``who`` is first; tell whether that was done."""
        if not is_first and sum(self.held.values()) + size_bytes > self.budget_bytes:
            return False
        self.held[who] = size_bytes
        return True

    def give(self, who: SumId | GetId) -> bool:
        """Free what ``who`` holds; tell whether it held anything."""
        return self.held.pop(who, None) is not None
