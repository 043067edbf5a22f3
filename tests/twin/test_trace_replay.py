"""A live fabric is recorded, and the twin replays it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from mlfabric.cli.recording import read_trace, record_fabric
from mlfabric.launch.status import StatusReader
from mlfabric.scheduler.planning import warm_up
from mlfabric.twin.run import simulate
from tests.twin.test_trace_record import COMPUTE_S, UP_BPS, training


def test_the_twin_replays_what_was_recorded_of_a_live_fabric(tmp_path: Path):
    """How near the twin comes depends on how busy this machine is, so only what holds on any machine is asked."""
    warm_up(print)
    file = tmp_path / "live.trace"
    with training(3) as scheduler:
        asyncio.run(record_fabric(file, StatusReader(scheduler), "", 4.0, 0.2))
    recorded = read_trace(file)
    replayed = simulate(recorded.cluster(iterations=30))
    assert replayed.ended_s.shape == (3, 30)
    assert replayed.mean_iteration_s >= COMPUTE_S + 2 * 8 * recorded.model_bytes / UP_BPS * 0.95
    assert np.array_equal(replayed.ended_s, simulate(recorded.cluster(iterations=30)).ended_s)
