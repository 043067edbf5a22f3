"""Which transfers a plan starts only after which others, in a member's table of those it was told of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol, TypeVar

from mlfabric.protocol import GetId, SumId, UpdateId

__all__ = ["Planned", "conflict", "take_out", "waits_for"]

Id = TypeVar("Id", bound=UpdateId | SumId | GetId)


class Planned(Protocol[Id]):
    """Something that the plan starts after others."""

    after: frozenset[Id]


PlannedT = TypeVar("PlannedT", bound=Planned[Any])


def conflict(a: Id, b: Id, table: Mapping[Id, Planned[Id]]) -> bool:
    """Tell whether the plan lets one start only after the other, directly or through others in ``table``."""
    return _follows(a, b, table) or _follows(b, a, table)


def waits_for(this: Id, other: Id, table: Mapping[Id, Planned[Id]]) -> bool:
    """Tell whether one that is offered waits for the end of another that runs or waits before it.

    They wait for each other whichever came first, for each would take half of the link from the other. Not so a sum
    that came early: it comes as fast as it is made, and would keep the link from those that the plan puts before it.
    """
    return _follows(this, other, table) or (not isinstance(other, SumId) and _follows(other, this, table))


def _follows(late: Id, early: Id, table: Mapping[Id, Planned[Id]]) -> bool:
    stack, seen = [late], set[Id]()
    while stack:
        known = table.get(stack.pop())
        for before in known.after - seen if known is not None else ():
            if before == early:
                return True
            seen.add(before)
            stack.append(before)
    return False


def take_out(gone: Id, table: MutableMapping[Id, PlannedT]) -> None:
    """Take a transfer out of ``table``; what was to follow it follows what it was to follow."""
    before = table.pop(gone).after
    for other in table.values():
        if gone in other.after:
            other.after = (other.after - {gone}) | before
