from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.testbed.logs import RunLogs
from benchmarks.testbed.runs import ServerLog, Snapshot, WorkerLog
from mlfabric.errors import UnavailableError
from tests.testbed.made_up import SPEC

S = 1_000_000_000
SYNCHRONOUS = replace(SPEC, workers=2)


def _worker(rank, *, began=0.0, compute=(0.2, 0.4), **more):
    """A worker whose every step starts at the next full second."""
    steps = np.arange(len(compute))
    started = ((began + steps) * S).astype(np.int64)
    return WorkerLog(
        rank=rank,
        began_ns=int(began * S),
        started_ns=started,
        computed_ns=started + (np.array(compute) * S).astype(np.int64),
        ended_ns=started + S,
        losses=np.zeros(len(compute), np.float32),
        overruns=1,
        **more,
    )


def test_without_a_server_a_gradient_is_applied_when_its_step_ends():
    logs = RunLogs.of({"w1": _worker(1), "w0": _worker(0, began=0.5)})

    assert logs.began_ns == 0.5 * S
    assert logs.ended_ns == 2.5 * S
    assert logs.commits().workers == (1, 0, 1, 0)
    assert logs.commits().delays == (0, 0, 0, 0)


def test_workers_that_know_when_their_updates_were_applied_are_believed():
    first = _worker(0, applied_ns=np.array([3 * S, 5 * S]), delays=np.array([1, 4], np.int32), dropped=1)
    logs = RunLogs.of({"w0": first, "w1": _worker(1, applied_ns=np.array([4 * S]), delays=np.array([2], np.int32))})

    assert logs.commits().workers == (0, 1, 0)
    assert logs.commits().delays == (1, 2, 4)


def test_a_server_that_says_what_it_applied_is_believed():
    server = ServerLog(
        began_ns=S,
        applied_ns=np.array([2 * S, 3 * S]),
        workers=np.array([1, 0], np.int32),
        delays=np.array([0, 1], np.int32),
        snapshots=(Snapshot(time_ns=2 * S, updates=1, weights=np.zeros(1, np.float32)),),
    )
    logs = RunLogs.of({"server": server, "w0": _worker(0), "w1": _worker(1)})

    assert logs.began_ns == S
    assert logs.commits().workers == (1, 0)
    assert [s.updates for s in logs.snapshots] == [1]


def test_computation_is_the_slowest_workers_in_synchronous_runs_and_everyones_in_asynchronous_ones():
    logs = RunLogs.of({"w0": _worker(0, compute=(0.2, 0.4)), "w1": _worker(1, compute=(0.3, 0.3))})

    assert logs.compute_s(SYNCHRONOUS) == pytest.approx((0.3 + 0.4) / 2 / 2.0)
    assert logs.compute_s(replace(SYNCHRONOUS, system="ps-async")) == pytest.approx(0.3 / 2.0)


def test_late_steps_are_counted_over_all_workers():
    assert RunLogs.of({"w0": _worker(0), "w1": _worker(1)}).overrun_share() == 0.5


def test_a_run_that_applied_nothing_or_kept_no_model_says_so():
    logs = RunLogs.of({"w0": _worker(0, compute=())})

    with pytest.raises(UnavailableError, match="longer --duration"):
        _ = logs.ended_ns
    with pytest.raises(UnavailableError, match="snapshot"):
        _ = logs.snapshots
