"""What plans ask about a model's replica. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mlfabric.protocol import Instruction
from mlfabric.scheduler.planning import Plan
from mlfabric.scheduler.planning.problem import DivergenceBound, Replica

__all__ = ["Follower"]


class Follower(Protocol):
    """A model's replica, as the plans of its updates see it."""

    def bound(self) -> DivergenceBound | None:
        """Return what plans must keep to, None without a replica that follows."""

    def for_planner(self) -> Replica | None:
        """Return the replica and its lead; what is on its way already counts as there."""

    def carry_out(self, plan: Plan, now_ns: int) -> Iterator[Instruction]:
        """Send what a plan sends to the replica."""
