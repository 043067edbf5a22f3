"""Real ``mlfabric`` processes for the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import Start, commands, fabric_up


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start ``mlfabric`` with the given arguments."""
    with commands(tmp_path) as begin:
        yield begin


@pytest.fixture(scope="session")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Keep an embedded fabric running for all tests; gives the scheduler's address."""
    with fabric_up(tmp_path_factory.mktemp("fabric")) as address:
        yield address
