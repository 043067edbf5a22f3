"""What runs in virtual time need: the compiled planner, and no log, which costs more than the runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.validated import compiled_planner

__all__ = ["compiled_planner"]


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
