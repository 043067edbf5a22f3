"""Backups of the fabric's server as systems of the testbed, and the topics that are no gradients: real processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.testbed.logs import RunLogs
from benchmarks.testbed.news import TEXTS
from benchmarks.testbed.processes import Launcher
from benchmarks.testbed.runs import Backup, BackupKind, Consistency, Place, RunPlan
from benchmarks.testbed.systems import chained, checkpointed, fabric, replicated
from benchmarks.testbed.systems.fabric_members import SCHEDULER, monitor_config
from benchmarks.testbed.workload import WorkloadSpec
from tests.testbed import steps
from tests.testbed.digits import needs_digits
from tests.testbed.on_hosts import hosts_of, run_on
from tests.testbed.steps import STEPS

WORKERS = 3
IMAGE_BYTES = 50_890 * 4
PLAN = replace(steps.PLAN, consistency=Consistency.ASYNCHRONOUS, delay_bound=10 * WORKERS)
TOPICS = WorkloadSpec(model="lda-12", batch_size=1, seed=2, workers=WORKERS)


def real(test: Any) -> Any:
    """Mark a test that starts processes on hosts."""
    for mark in (pytest.mark.processes, pytest.mark.root, pytest.mark.timeout(300)):
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    workloads = (*PLAN.workload.preloaded, *TOPICS.preloaded)
    with Launcher(
        preloaded=[*(system.__name__ for system in (replicated, chained, checkpointed, fabric)), *workloads]
    ) as made:
        yield made


def run(launcher: Launcher, system: Any, plan: RunPlan) -> RunLogs:
    with hosts_of(system, WORKERS) as bed:
        return run_on(bed, launcher, system, plan, WORKERS)


def _taken(logs: RunLogs) -> int:
    return len(logs.commits().workers)


@pytest.fixture(scope="module")
def strict(launcher: Launcher) -> RunLogs:
    """Run with a replica that may not be behind."""
    return run(launcher, replicated, replace(PLAN, max_steps=3 * STEPS, backup=Backup(kind=BackupKind.REPLICA)))


def all_is_replicated(logs: RunLogs) -> None:
    cost = logs.backup()
    assert cost is not None
    assert cost.times == cost.disk_s == 0
    # What was summed on its way travels as one image, and a sum with its velocities as two.
    assert cost.n_bytes >= IMAGE_BYTES
    assert cost.n_bytes <= 2 * _taken(logs) * IMAGE_BYTES


@real
@needs_digits
def test_a_replica_that_may_not_be_behind_gets_all_that_was_committed(strict: RunLogs):
    all_is_replicated(strict)


@real
@needs_digits
def test_the_follower_in_a_chain_gets_all_that_was_committed(launcher: Launcher):
    all_is_replicated(run(launcher, chained, replace(PLAN, backup=Backup(kind=BackupKind.CHAIN))))


@real
@needs_digits
def test_a_replica_that_may_be_behind_gets_less(launcher: Launcher, strict: RunLogs):
    backup = Backup(kind=BackupKind.REPLICA, lead_updates=6 * WORKERS)
    bounded = run(launcher, replicated, replace(PLAN, max_steps=3 * STEPS, backup=backup))

    of_strict, of_bounded = strict.backup(), bounded.backup()
    assert of_strict is not None
    assert of_bounded is not None
    assert of_bounded.n_bytes / _taken(bounded) < of_strict.n_bytes / _taken(strict)


@real
@needs_digits
def test_a_checkpoint_is_written_for_every_so_many_updates(launcher: Launcher):
    logs = run(launcher, checkpointed, replace(PLAN, backup=Backup(kind=BackupKind.CHECKPOINT, lead_updates=2)))

    cost = logs.backup()
    assert cost is not None
    assert _taken(logs) // 2 - 1 <= cost.times <= _taken(logs) // 2, "the last may have been begun too late"
    assert cost.n_bytes >= cost.times * IMAGE_BYTES
    assert cost.disk_s > 0


@real
def test_no_word_is_lost_or_counted_twice_through_the_fabric_though_changes_are_turned_away(launcher: Launcher):
    plan = replace(PLAN, workload=TOPICS, learning_rate=WORKERS, momentum=0.0, delay_bound=0, max_steps=4 * STEPS)
    logs = run(launcher, fabric, plan)

    assert sum(log.dropped for log in logs.workers) > 0, "no delay is allowed, and all push at once"
    last = logs.workers[0].snapshots[-1]
    counts = last.weights.reshape(TEXTS.shape[1], -1)
    assert last.updates > 0
    assert np.array_equal(counts, np.rint(counts))
    assert np.array_equal(counts.sum(axis=1), TEXTS.sum(axis=0))
    assert counts.min() >= 0
    assert not np.array_equal(last.weights, TOPICS.build().initial())


def test_the_monitor_reports_as_often_as_the_plan_says_in_dilated_time():
    place = Place(
        name=SCHEDULER,
        rank=None,
        workers=1,
        addresses={SCHEDULER: "127.0.0.1"},
        interface="lo",
    )
    assert monitor_config(place, replace(PLAN, dilation=2.0)).report_interval_s == 0.4
    assert monitor_config(place, replace(PLAN, report_every_s=2.0, dilation=3.0)).report_interval_s == 6.0
