"""Servers and schedulers lose everything, in any order, while workers sleep through it, also beside a new job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.simulator import FaultRates, Simulation, SimulationConfig
from mlfabric.simulator.config import HARSH, METHODS

MS = 1_000_000
JOBS = pytest.mark.parametrize("job_hz", [0.0, 2.0], ids=["one job", "new jobs"])


@JOBS
@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5, 6])
def test_no_version_is_given_twice_though_server_and_scheduler_begin_with_nothing_and_workers_sleep(seed, job_hz):
    faults = FaultRates(
        **{"server_hz": 6.0, "amnesia": 1.0, "scheduler_hz": 6.0, "several_hz": 2.0},
        **{"hang_hz": 4.0, "worker_stream_hz": 4.0, "job_hz": job_hz},
    )
    config = SimulationConfig(seed=seed, workers=4, tau_max=8, compute_ns=20 * MS, faults=faults)
    happened = Simulation(config).run(1500).faults
    assert min(happened["server died"], happened["scheduler died"], happened["hung"]) > 1
    assert (happened["job is over"] > 0) == (job_hz > 0)


@JOBS
@pytest.mark.parametrize("seed", [3, 12, 24, 29])
def test_nor_by_the_parts_of_a_model(seed, job_hz):
    config = SimulationConfig.drawn_with_shards(seed, HARSH, METHODS[seed % 3])
    rates = {"amnesia": 0.5, "rollback_hz": max(1.0, config.faults.rollback_hz), "job_hz": job_hz}
    config = replace(config, faults=replace(config.faults, **rates))
    happened = Simulation(config).run(3000).faults
    assert min(happened["servers died"], happened["scheduler died"], happened["hung"]) > 1
    assert (happened["job is over"] > 0) == (job_hz > 0)
