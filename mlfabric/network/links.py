"""Names of links, for a star and for a graph alike.

A link is directed: from ``tail`` to ``head``. A star (the default topology, design section 5) has a core that is
never congested, so each host has one link up to :data:`CORE` and one down from it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

__all__ = ["CORE", "LinkId", "Path", "down_link", "up_link"]

CORE = "*"
MOST_NAMES = 4096


class LinkId(NamedTuple):
    """One direction of one connection."""

    tail: str
    head: str

    def __str__(self) -> str:
        if self.head == CORE:
            return f"{self.tail} up"
        return f"{self.head} down" if self.tail == CORE else f"{self.tail}->{self.head}"


Path = tuple[LinkId, ...]


@lru_cache(MOST_NAMES)
def up_link(host: str) -> LinkId:
    """Return the link from ``host`` into the core of a star."""
    return LinkId(host, CORE)


@lru_cache(MOST_NAMES)
def down_link(host: str) -> LinkId:
    """Return the link from the core of a star to ``host``."""
    return LinkId(CORE, host)
