"""Real ``mlfabric`` processes for the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes import fabric_up


@pytest.fixture(scope="session")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Keep an embedded fabric running for all tests; gives the scheduler's address."""
    with fabric_up(tmp_path_factory.mktemp("fabric")) as address:
        yield address
