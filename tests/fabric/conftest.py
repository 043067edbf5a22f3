"""A scheduler and a server, for tests that need no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fabric.harness import Fabric, fabric


@pytest.fixture
def running() -> Iterator[Fabric]:
    with fabric() as made:
        yield made
