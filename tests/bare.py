"""A state machine on a stage: events in, and the actions that follow without the reasons that some carry in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mlfabric.protocol import Tick

__all__ = ["Scene", "bare"]

ActionT = TypeVar("ActionT")


def bare(actions: Sequence[ActionT]) -> list[ActionT]:
    """Leave the reasons out."""
    return [replace(a, reason="") if hasattr(a, "reason") else a for a in actions]  # type: ignore[type-var]


class Scene:
    """A state machine and the clock."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.now_ns = 0

    def tell(self, *events: Any) -> list[Any]:
        """Hand over events, check the invariants, return what follows."""
        actions: list[Any] = []
        for event in events:
            actions += self.state.handle(event, self.now_ns)
            self.state.validate()
        return bare(actions)

    def tick(self, seconds: float) -> list[Any]:
        self.now_ns += round(seconds * 1e9)
        return self.tell(Tick())
