"""The option ``--rewrite``. Every plan is validated; the planner is loaded, for without it nothing is summed."""

import pytest

from tests.validated import compiled_planner, every_plan_is_validated

__all__ = ["compiled_planner", "every_plan_is_validated", "pytest_addoption"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes transcripts anew."""
    parser.addoption(
        "--rewrite", action="store_true", help="write the transcripts anew; read what git says has changed"
    )
