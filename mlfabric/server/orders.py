"""The scheduler's orders to the server of a part of a model, which take effect in the order in which they came. Pure.

An order is a unit of work, to be prepared and then committed or thrown away; or a get, whose version is pinned when its
turn comes. So all parts of the model commit the same units in the same order, and a get reads the version between the
same two of them everywhere (paper, 10.2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from mlfabric.protocol import GetId, Prepare

__all__ = ["Fate", "Orders", "Phase", "Unit"]


class Phase(Enum):
    """Where a unit is."""

    WAITING = "waiting"
    PREPARING = "preparing"
    PREPARED = "prepared"
    ENDING = "being committed or discarded"


class Fate(Enum):
    """What is to become of a unit."""

    OPEN = "open"
    COMMIT = "commit"
    DISCARD = "discard"


@dataclass(slots=True)
class Unit:
    """A unit of work."""

    order: Prepare
    phase: Phase = Phase.WAITING
    fate: Fate = Fate.OPEN


class Orders:
    """The orders that have not taken effect, the earliest first."""

    def __init__(self) -> None:
        self._queue: deque[Unit | GetId] = deque()

    def __iter__(self) -> Iterator[Unit | GetId]:
        return iter(self._queue)

    @property
    def head(self) -> Unit | GetId | None:
        """The order whose turn it is."""
        return self._queue[0] if self._queue else None

    @property
    def running(self) -> Unit | None:
        """The unit that the store has to do with, or did something for."""
        head = self.head
        return head if isinstance(head, Unit) and head.phase is not Phase.WAITING else None

    def open_unit(self, number: int) -> Unit | None:
        """Return a unit whose fate is open, or None."""
        units = (o for o in self._queue if isinstance(o, Unit))
        return next((u for u in units if u.order.unit == number and u.fate is Fate.OPEN), None)

    def add_unit(self, order: Prepare) -> None:
        """Take a unit in."""
        self._queue.append(Unit(order))

    def add_get(self, get: GetId) -> None:
        """Take a get in; one that is here already loses its place."""
        if get in self._queue:
            self._queue.remove(get)
        self._queue.append(get)

    def pop(self) -> None:
        """The head has taken effect, or never will."""
        self._queue.popleft()

    def forget_open(self) -> list[GetId]:
        """Forget what is not concluded; what the store has to do with is discarded as soon as that is possible.

        Returns:
            The gets that were here.
        """
        gets = [order for order in self._queue if isinstance(order, GetId)]
        kept: list[Unit | GetId] = []
        for order in self._queue:
            if not isinstance(order, Unit) or (order.fate is Fate.OPEN and order.phase is Phase.WAITING):
                continue
            order.fate = Fate.DISCARD if order.fate is Fate.OPEN else order.fate
            kept.append(order)
        self._queue = deque(kept)
        return gets
