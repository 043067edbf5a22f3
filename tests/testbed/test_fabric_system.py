"""mlfabric as a system of the testbed: its own processes on real hosts, a few steps, and complete logs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.testbed.processes import Launcher
from benchmarks.testbed.runs import Consistency, Forwarded, WorkerLog, worker_name
from benchmarks.testbed.systems import fabric, fabric_overlap
from tests.testbed import steps
from tests.testbed.digits import needs_digits
from tests.testbed.on_hosts import hosts_of, run_on
from tests.testbed.steps import STEPS, in_one_process, in_order

pytestmark = [
    pytest.mark.processes,
    pytest.mark.root,
    pytest.mark.timeout(300),
    needs_digits,
]

WORKERS = 4
PLAN = replace(steps.PLAN, delay_bound=2 * WORKERS)

BOTH = pytest.mark.parametrize("system", [fabric, fabric_overlap], ids=["fabric", "fabric_overlap"])


@pytest.fixture(scope="module")
def bed():
    with hosts_of(fabric, WORKERS) as made:
        yield made


@pytest.fixture(scope="module")
def launcher():
    with Launcher(preloaded=[fabric.__name__, fabric_overlap.__name__]) as made:
        yield made


def came_to(log: WorkerLog) -> Forwarded:
    """Return what came to a worker's host to be summed."""
    assert log.forwarded is not None, f"worker {log.rank} does not say"
    return log.forwarded


@BOTH
def test_asynchronous_workers_log_every_step_and_what_became_of_every_update(bed, launcher, system):
    logs = run_on(bed, launcher, system, replace(PLAN, consistency=Consistency.ASYNCHRONOUS), WORKERS)

    assert [log.rank for log in logs.workers] == list(range(WORKERS))
    for log in logs.workers:
        in_order(log)
        assert len(log.ended_ns) == STEPS
        assert len(log.applied_ns) == len(log.delays) == STEPS - log.dropped
        assert all(0 <= delay <= PLAN.delay_bound for delay in log.delays)
        assert bool(log.snapshots) == (log.rank == 0)
        assert came_to(log).to == worker_name(log.rank)
    taken = sum(len(log.applied_ns) for log in logs.workers)
    assert len(logs.commits().workers) == taken > 0
    last = logs.workers[0].snapshots[-1]
    assert STEPS - logs.workers[0].dropped <= last.updates <= taken
    assert not np.array_equal(last.weights, PLAN.workload.build().initial())
    assert np.isfinite(last.weights).all()


@BOTH
def test_synchronous_workers_step_as_one_process_would_with_all_batches(bed, launcher, system):
    logs = run_on(bed, launcher, system, replace(PLAN, consistency=Consistency.SYNCHRONOUS), WORKERS)

    n_bytes = PLAN.workload.build().n_parameters * 4
    came = [came_to(log) for log in logs.workers]
    assert sum(int(one.n_bytes.sum()) for one in came) >= STEPS * (WORKERS - 1) * n_bytes
    for log in logs.workers:
        in_order(log)
        assert came_to(log).to == worker_name(log.rank)
        assert len(log.ended_ns) == STEPS
        assert log.dropped == 0
    last = logs.workers[0].snapshots[-1]
    assert last.updates == STEPS
    np.testing.assert_allclose(last.weights, in_one_process(PLAN, WORKERS)[-1], atol=1e-6)
