"""Every plan made in these tests is validated; what is summed or handed on needs the compiled planner."""

import pytest

from mlfabric.planning import warm_up
from tests.validated import every_plan_is_validated

__all__ = ["compiled_planner", "every_plan_is_validated"]


@pytest.fixture(scope="session")
def compiled_planner() -> None:
    """Load the planner's kernels."""
    warm_up(print)
