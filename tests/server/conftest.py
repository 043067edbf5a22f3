"""A server's state machine with one model."""

from __future__ import annotations

import pytest

from tests.server.stage import Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()
