"""Every plan made in these tests is validated; what is summed or handed on needs the compiled planner."""

from tests.validated import compiled_planner, every_plan_is_validated

__all__ = ["compiled_planner", "every_plan_is_validated"]
