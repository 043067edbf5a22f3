"""Every plan made in these tests is validated, and the planner is loaded: without it nothing is summed on its way."""

import pytest

from mlfabric.planning import warm_up
from tests.validated import every_plan_is_validated

__all__ = ["every_plan_is_validated", "planner"]


@pytest.fixture(autouse=True, scope="session")
def planner():
    """Load the compiled planner once."""
    warm_up(print)
