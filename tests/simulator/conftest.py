"""Every plan made in these tests is validated."""

from tests.validated import every_plan_is_validated

__all__ = ["every_plan_is_validated"]
