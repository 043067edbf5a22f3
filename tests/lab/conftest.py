"""What runs in virtual time need: the compiled planner."""

from tests.validated import compiled_planner

__all__ = ["compiled_planner"]
