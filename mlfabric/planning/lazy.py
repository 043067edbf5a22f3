"""Sequences whose items are made when they are first read: of a thousand plans per second most are never read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, overload

__all__ = ["Lazy", "joined"]

T = TypeVar("T")


class Lazy(Sequence[T]):
    """A sequence that makes item ``i`` by ``make(i)`` when it is first asked for; it equals and prints as a tuple."""

    __slots__ = ("_count", "_made", "_make")

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count = count
        self._make = make
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        """Return how many items there are."""
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        """Make one item, or a tuple of some."""
        places = range(self._count)[index]
        return self._item(places) if isinstance(places, int) else tuple(map(self._item, places))

    def __iter__(self) -> Iterator[T]:
        """Make one item after the other; an error in making one does not count as the end."""
        return map(self._item, range(self._count))

    def _item(self, place: int) -> T:
        made = self._made
        if place not in made:
            made[place] = self._make(place)
        return made[place]

    def __eq__(self, other: object) -> bool:
        """Compare as tuples do."""
        return tuple(self) == tuple(other) if isinstance(other, Lazy | tuple) else NotImplemented

    def __hash__(self) -> int:
        """Hash as a tuple does."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Print as a tuple does."""
        return repr(tuple(self))


def joined(first: Sequence[T], second: Sequence[T]) -> Sequence[T]:
    """Return two sequences one after the other; no item is made for it."""
    count = len(first)
    return Lazy(count + len(second), lambda i: first[i] if i < count else second[i - count]) if second else first
