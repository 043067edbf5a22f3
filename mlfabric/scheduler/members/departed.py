"""Members that have left, and how many of them a scheduler remembers. Pure.

One that left may come back and ask what became of an update; people look at what it did. But in a job whose workers
come and go under ever new names, all of them together would fill the memory. So the longest gone are forgotten beyond
a number. Nothing is lost by that: which updates were applied is the server's to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

__all__ = ["Departed"]


class Departed:
    """The members that have left, the longest gone first.

    Args:
        most: so many are remembered.
        is_needed: tells whether something is still about a member, so that it cannot be forgotten yet.
    """

    def __init__(self, most: int, is_needed: Callable[[str], bool]) -> None:
        self._most = most
        self._is_needed = is_needed
        self._names: dict[str, None] = {}

    def note(self, name: str) -> None:
        """Note that a member has left, now."""
        self._names.pop(name, None)
        self._names[name] = None

    def back(self, name: str) -> None:
        """Note that a member has joined (again)."""
        self._names.pop(name, None)

    def take_forgotten(self) -> Iterator[str]:
        """Yield the members that are too many, and remember them no more."""
        for name in list(self._names)[: max(0, len(self._names) - self._most)]:
            if not self._is_needed(name):
                del self._names[name]
                yield name
