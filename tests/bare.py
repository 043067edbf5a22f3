"""Actions of a state machine without the reasons that some of them carry in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

__all__ = ["bare"]

ActionT = TypeVar("ActionT")


def bare(actions: Sequence[ActionT]) -> list[ActionT]:
    """Leave the reasons out."""
    return [replace(a, reason="") if hasattr(a, "reason") else a for a in actions]  # type: ignore[type-var]
