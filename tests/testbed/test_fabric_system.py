"""mlfabric as a system of the testbed: its own processes on real hosts, a few steps, and complete logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.testbed.cell import place_of
from benchmarks.testbed.hosts import Testbed, testbed
from benchmarks.testbed.logs import RunLogs
from benchmarks.testbed.processes import Launcher
from benchmarks.testbed.runs import Consistency, Forwarded, RunPlan, WorkerLog, worker_name
from benchmarks.testbed.systems import fabric, fabric_overlap
from benchmarks.testbed.workload import WorkloadSpec
from mlfabric.errors import UnavailableError
from mlfabric.twin.settings import COMPUTE
from tests.testbed.digits import needs_digits
from tests.testbed.steps import in_one_process, in_order

pytestmark = [
    pytest.mark.processes,
    pytest.mark.root,
    pytest.mark.timeout(300),
    needs_digits,
]

WORKERS, STEPS = 4, 3
LINK_BPS = 100_000_000
TIMEOUT_S = 120.0
RANKS = {worker_name(rank): rank for rank in range(WORKERS)}
PLAN = RunPlan(
    workload=WorkloadSpec(model="mlp-50k", batch_size=8, seed=2),
    compute=COMPUTE["C0"],
    seed=2,
    learning_rate=0.1,
    momentum=0.9,
    duration_s=TIMEOUT_S,
    max_steps=STEPS,
    base_compute_s=0.0,
    delay_bound=2 * WORKERS,
    link_bps=LINK_BPS,
)


BOTH = pytest.mark.parametrize("system", [fabric, fabric_overlap], ids=["fabric", "fabric_overlap"])


@pytest.fixture(scope="module")
def bed():
    fabric.prepare()
    try:
        with testbed([*fabric.SERVICES, *RANKS], link_bps=LINK_BPS) as made:
            yield made
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def launcher():
    with Launcher(preloaded=[fabric.__name__, fabric_overlap.__name__]) as made:
        yield made


def run(bed: Testbed, launcher: Launcher, plan: RunPlan, system: Any) -> RunLogs:
    children = {}
    for host in bed.hosts:
        part = system.SERVICES.get(host.name, system.worker)
        place = place_of(host, bed, RANKS.get(host.name), WORKERS)
        children[host.name] = launcher.start(host, part, place, plan)
    found: Mapping[str, object] = {name: child.join(TIMEOUT_S) for name, child in children.items()}
    assert found.keys() == {*fabric.SERVICES, *RANKS}
    return RunLogs.of(found)


def came_to(log: WorkerLog) -> Forwarded:
    """Return what came to a worker's host to be summed."""
    assert log.forwarded is not None, f"worker {log.rank} does not say"
    return log.forwarded


@BOTH
def test_asynchronous_workers_log_every_step_and_what_became_of_every_update(bed, launcher, system):
    logs = run(bed, launcher, replace(PLAN, consistency=Consistency.ASYNCHRONOUS), system)

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
    logs = run(bed, launcher, replace(PLAN, consistency=Consistency.SYNCHRONOUS), system)

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
