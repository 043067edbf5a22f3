"""What plans ask about a model's replica. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mlfabric.planning import Plan
from mlfabric.planning.problem import DivergenceBound, Replica
from mlfabric.protocol import Instruction, UpdateId

__all__ = ["Follower"]


class Follower(Protocol):
    """A model's replica, as the plans of its updates see it."""

    def bound(self) -> DivergenceBound | None:
        """Return what plans must keep to, None where they have no say in what the replica gets."""

    def for_planner(self) -> Replica | None:
        """Return the replica and its lead; what is on its way already counts as there."""

    def there_ns(self, update: UpdateId) -> int:
        """Return when an update will be with the replica that is on its way there by itself; 0 if it is not."""

    def carry_out(self, plan: Plan, now_ns: int) -> Iterator[Instruction]:
        """Send what a plan sends to the replica."""
