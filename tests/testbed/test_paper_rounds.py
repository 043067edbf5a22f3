from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.testbed import reference
from benchmarks.testbed.catalogue import BEST_MEMBERS, SYSTEMS
from benchmarks.testbed.comparing import Measured
from benchmarks.testbed.judging import Curve
from benchmarks.testbed.logs import RunLogs
from benchmarks.testbed.rounds_row import rounds, shown, shown_in_short
from benchmarks.testbed.runs import Snapshot, WorkerLog
from benchmarks.testbed.spec import Commits, result_from
from benchmarks.testbed.tuning import Setting, train
from benchmarks.testbed.workload import WorkloadSpec
from tests.testbed.digits import needs_digits
from tests.testbed.made_up import SPEC, run_of

S = 1_000_000_000
ROUNDS = replace(SPEC, system="elastic", workers=2)
LATE = Commits(workers=(0, 1, 0, 0, 1), delays=(0, 0, 0, 0, 1), rounds=(1, 1, 2, 3, 3))
"""Worker 1 misses the second round and is in the third with a delay of one."""


def _log(rank, rounds, *, snapshots=()):
    times = np.array([number * S + rank for number in rounds], dtype=np.int64)
    return WorkerLog(
        rank=rank,
        began_ns=0,
        started_ns=times - S // 2,
        computed_ns=times - S // 4,
        ended_ns=times,
        losses=np.zeros(len(rounds), np.float32),
        overruns=0,
        snapshots=snapshots,
        applied_ns=times,
        delays=np.array([0] * len(rounds), np.int32),
        rounds=np.array(rounds, dtype=np.int64),
    )


def _snapshots(*at):
    return tuple(Snapshot(time_ns=ns, updates=updates, weights=np.full(1, updates, np.float32)) for ns, updates in at)


def test_a_round_is_in_the_curve_once_and_counts_the_gradients_of_all_its_workers():
    first = _log(0, (1, 3), snapshots=_snapshots((0, 0), (S, 1), (3 * S, 3)))
    second = _log(1, (1, 2, 3), snapshots=_snapshots((0, 0), (S + 1, 1), (2 * S + 1, 2), (3 * S + 1, 3)))
    logs = RunLogs.of({"w0": first, "w1": second})

    assert [(s.time_ns, s.updates) for s in logs.snapshots] == [(0, 0), (S, 1), (2 * S + 1, 2), (3 * S, 3)]
    assert [logs.gradients_after(ROUNDS)(updates) for updates in range(4)] == [0, 2, 3, 5]
    assert logs.commits().rounds == (1, 1, 2, 3, 3)


def test_gradients_of_a_run_stand_round_by_round():
    assert LATE.by_round() == [[(0, 0), (1, 0)], [(0, 0)], [(0, 0), (1, 1)]]
    assert LATE.least_share(2) == pytest.approx(2 / 2.5)


def test_rounds_survive_a_file():
    run = replace(run_of("elastic"), commits=LATE, slow_curve=run_of("ring").curve)
    assert result_from(run.as_json()) == run


@needs_digits
def test_a_recorded_round_is_one_step_along_the_mean_of_its_gradients_each_from_the_model_that_it_read():
    """But for the last round: those few make it who are left when the others have ended."""
    workload = WorkloadSpec(model="mlp-50k", batch_size=8, seed=3).build()
    setting = Setting(learning_rate=0.1, momentum=0.5)
    start, steps = workload.initial(), []
    of = lambda model, worker, step: workload.gradient(model, worker, step)[0]  # noqa: E731
    velocity = (of(start, 0, 0) + of(start, 1, 0)) / 2
    steps.append(start - 0.1 * velocity)
    velocity = 0.5 * velocity + of(steps[0], 0, 1)
    steps.append(steps[0] - 0.1 * velocity)
    velocity = 0.5 * velocity + (of(steps[1], 0, 2) + of(steps[0], 1, 1)) / 2
    steps.append(steps[1] - 0.1 * velocity)

    left = replace(LATE, workers=(*LATE.workers, 0), delays=(*LATE.delays, 0), rounds=(*LATE.rounds, 4))
    curve = train(workload, setting, left, workers=2, iterations=3)

    assert curve.gradients[:4] == (0, 2, 3, 5)
    wanted = [workload.accuracy(model.astype(np.float32)) for model in (start, *steps)]
    assert curve.accuracy[:4] == pytest.approx(wanted, abs=1e-3)


def _in_rounds(system="elastic", seconds=0.25, **more):
    run = run_of(system, seconds, **more)
    taken = run.spec.workers * 2
    return replace(run, commits=replace(run.commits, rounds=tuple(1 + i // run.spec.workers for i in range(taken))))


def test_each_figure_of_a_system_stands_beside_the_ring_of_its_cell_and_seed():
    ring = [run_of("ring", 0.5, seed=seed) for seed in range(2)]
    row = rounds(Measured([*ring, _in_rounds(seed=0), _in_rounds(seconds=0.2, seed=1)]), 0.8)
    values = row["systems"]["elastic"]["C1-N1"]

    assert values["to_target"]["pairs"] == pytest.approx([2.0, 2.5])
    assert values["iterations"]["mean"] == pytest.approx(2.25)
    assert values["accuracy"]["mean"] == pytest.approx(0.0)
    assert values["least_share"]["mean"] == pytest.approx(1.0)
    assert values["contributions"]["mean"] == pytest.approx(30.0)
    assert values["rounds_per_s"]["pairs"] == pytest.approx([4.0, 5.0])
    assert values["to_further_target"] is None, "neither gets to 92 %"
    assert values["reached"] is None
    assert "| C1-N1 | mlfabric elastic, all who are ready | 2.25 (2.00 to 2.50) | - |" in shown(row)


def test_what_only_the_ring_reaches_is_reached_in_no_time_by_the_other_and_is_missed():
    never = replace(_in_rounds(), curve=Curve(time_s=(0.0, 20.0), gradients=(0, 1200), accuracy=(0.1, 0.5)))
    row = rounds(Measured([run_of("ring"), never]), 0.8)

    assert row["systems"]["elastic"]["C1-N1"]["to_target"]["mean"] == 0.0
    assert row["systems"]["elastic"]["C1-N1"]["reached"] is False
    assert "to target 1.40" in shown(row)
    assert shown_in_short(row) == "elastic 0 of 11"


def test_accuracy_is_compared_only_once_as_many_gradients_are_applied_as_the_ring_makes():
    short = replace(_in_rounds(), curve=Curve(time_s=(0.0, 20.0), gradients=(0, 1079), accuracy=(0.1, 0.9)))
    row = rounds(Measured([run_of("ring"), short]), 0.8)

    assert row["systems"]["elastic"]["C1-N1"]["accuracy"] is None


def test_slow_hosts_classes_are_compared_with_synchronous_training():
    curve = run_of("ring").curve
    runs = [
        replace(_in_rounds(name, cell="C0-four"), slow_curve=replace(curve, accuracy=(share,) * len(curve.accuracy)))
        for name, share in (("synchronous", 0.9), ("elastic", 0.89))
    ]
    row = rounds(Measured([run_of("ring", cell="C0-four"), *runs]), 0.8)

    values = row["systems"]["elastic"]["C0-four"]
    assert values["slow_classes"]["mean"] == pytest.approx(-0.01)
    assert values["verdicts"] == {"to_target": True, "least_share": True, "slow_classes": True}
    assert "less the synchronous one's, in points: -1.00" in shown(row)


def test_rings_that_shut_workers_out_are_compared_with_the_best_of_them():
    rings = [_in_rounds(f"ring-best-{members}", s) for members, s in zip(BEST_MEMBERS, (0.3, 0.2, 0.4), strict=True)]
    row = rounds(Measured([run_of("ring"), _in_rounds("elastic", 0.25), *rings]), 0.8)

    values = row["systems"]["elastic"]["C1-N1"]
    assert values["best_ring"] == "ring-best-14"
    assert values["to_target_best"]["mean"] == pytest.approx(0.8)
    assert "the same against the ring of the best 14 workers" in shown(row)


def test_what_is_demanded_is_measured():
    for system, cells in reference.DEMANDS.items():
        assert set(cells) <= set(SYSTEMS[system].cells)
