"""The option ``--rewrite``. Every plan is validated; the planner is loaded, for without it nothing is summed."""

import pytest

from mlfabric.planning import warm_up
from tests.validated import every_plan_is_validated

__all__ = ["every_plan_is_validated", "planner", "pytest_addoption"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes transcripts anew."""
    parser.addoption(
        "--rewrite", action="store_true", help="write the transcripts anew; read what git says has changed"
    )


@pytest.fixture(autouse=True, scope="session")
def planner():
    """Load the compiled planner once."""
    warm_up(print)
