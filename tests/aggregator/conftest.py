"""A real aggregator, with everybody else played by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.aggregator.by_hand import Stand


@pytest.fixture
def stand() -> Iterator[Stand]:
    with Stand() as stand:
        stand.aggregator()
        yield stand
