"""Many members at once: all are let in and answered, over real connections."""

from __future__ import annotations

import pytest

from benchmarks import load

pytestmark = pytest.mark.processes


def test_all_simulated_workers_are_let_in_and_each_of_their_pushes_is_decided():
    found = load.run(workers=50, seconds=1.0, settle_s=0.5, every_s=0.2)
    assert (found["refused"], found["lost"], found["unanswered"]) == (0, 0, 0)
    assert found["decisions_per_s"] > 0
    assert found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]
