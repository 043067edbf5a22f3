"""Whole runs plan with compiled kernels."""

from __future__ import annotations

import pytest

from mlfabric.planning import warm_up


@pytest.fixture(scope="session")
def compiled() -> None:
    """Load the planner's kernels; the first test that asks for it compiles them where no machine code is kept yet."""
    warm_up(lambda line: None)
