"""The baselines do what they claim: real processes over the loopback address, against the same steps in one process."""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from benchmarks.testbed.logs import RunLogs
from benchmarks.testbed.networks import FOUR, Forecast
from benchmarks.testbed.recording import SnapshotKeeper, StepRecorder
from benchmarks.testbed.runs import (
    NS_PER_S,
    Consistency,
    Goal,
    Place,
    RunPlan,
    ServerLog,
    WorkerLog,
    worker_name,
)
from benchmarks.testbed.systems import parameter_server, ring, ring_best, ring_overlap, tree
from mlfabric.errors import TransferError
from mlfabric.twin.settings import COMPUTE, NETWORK
from tests.testbed.digits import needs_digits
from tests.testbed.steps import PLAN, STEPS, TIMEOUT_S, in_one_process, in_order

WORKERS = 5

Log = WorkerLog | ServerLog
Part = Callable[[Place, RunPlan], Log]

pytestmark = [
    pytest.mark.processes,
    needs_digits,
]


def place(rank: int | None, port: int, workers: int = WORKERS) -> Place:
    names = [*map(worker_name, range(workers)), parameter_server.SERVER]
    return Place(
        name=parameter_server.SERVER if rank is None else worker_name(rank),
        rank=rank,
        workers=workers,
        addresses=dict.fromkeys(names, "127.0.0.1"),
        interface="lo",
        port=port,
    )


def _run_part(part: Part, at: Place, plan: RunPlan, ours: Connection) -> None:
    ours.send(part(at, plan))


def run(parts: Sequence[tuple[Part, Place]], plan: RunPlan) -> list[Any]:
    """Run each part in a process of its own and return their logs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["pytest", ring.__name__, ring_overlap.__name__, tree.__name__, parameter_server.__name__]
    )
    started = []
    try:
        for part, at in parts:
            theirs, ours = context.Pipe(duplex=False)
            process = context.Process(target=_run_part, args=(part, at, plan, ours))
            process.start()
            ours.close()
            started.append((process, theirs))
        logs = []
        for _, theirs in started:
            assert theirs.poll(TIMEOUT_S), "a part did not end"
            logs.append(theirs.recv())
        return logs
    finally:
        for process, theirs in started:
            process.kill()
            process.join()
            theirs.close()


def losses_of(plan: RunPlan, models: Sequence[np.ndarray], rank: int) -> list[float]:
    workload = plan.workload.build()
    return [workload.gradient(model, rank, step)[1] for step, model in enumerate(models[:STEPS])]


@pytest.mark.parametrize("system", [ring, ring_overlap, tree], ids=["ring", "ring_overlap", "tree"])
def test_an_all_reduce_trains_as_one_process_would_with_all_batches(system: Any, free_port: int):
    logs = run([(system.worker, place(rank, free_port)) for rank in range(WORKERS)], PLAN)

    models = in_one_process(PLAN, WORKERS)
    first, last = logs[0].snapshots[0], logs[0].snapshots[-1]
    assert (first.updates, last.updates) == (0, STEPS)
    np.testing.assert_array_equal(first.weights, models[0])
    np.testing.assert_allclose(last.weights, models[-1], atol=1e-6)
    for rank, log in enumerate(logs):
        assert log.rank == rank
        assert log.began_ns == logs[0].began_ns
        assert log.losses == pytest.approx(losses_of(PLAN, models, rank), abs=1e-5)
        assert (log.snapshots == ()) == (rank > 0)
        in_order(log)
    if system is tree:
        sent_to_parents(logs)


def sent_to_parents(logs: Sequence[WorkerLog]) -> None:
    """Check that workers of a tree say what they sent to which parent, and when."""
    assert logs[0].forwarded is None
    sent = [log.forwarded for log in logs[1:] if log.forwarded is not None]
    assert [one.to for one in sent] == ["w0", "w0", "w1", "w1"]
    for log, one in zip(logs[1:], sent, strict=True):
        np.testing.assert_array_equal(one.began_ns, log.computed_ns)
        assert one.n_bytes.tolist() == [50_890 * 4] * STEPS


@pytest.mark.parametrize("workers", [1, 2])
def test_a_tree_of_few_workers_sums_too(workers: int, free_port: int):
    logs = run([(tree.worker, place(rank, free_port, workers)) for rank in range(workers)], PLAN)
    np.testing.assert_allclose(logs[0].snapshots[-1].weights, in_one_process(PLAN, workers)[-1], atol=1e-6)


@pytest.mark.parametrize("system", [ring, ring_overlap], ids=["ring", "ring_overlap"])
def test_workers_end_after_the_same_step_when_the_time_is_over(system: Any, free_port: int):
    plan = replace(PLAN, duration_s=0.05, max_steps=None, compute=COMPUTE["C2"], base_compute_s=0.004)
    logs = run([(system.worker, place(rank, free_port)) for rank in range(WORKERS)], plan)
    assert len({len(log.ended_ns) for log in logs}) == 1
    assert all(log.ended_ns[-1] - log.began_ns >= plan.duration_s * NS_PER_S for log in logs)
    # A worker may look at the clock before it notes the time; they go on only if all of them found time left.
    earliest_ns = np.min([log.computed_ns[:-1] - log.began_ns for log in logs], axis=0)
    assert (earliest_ns < plan.duration_s * NS_PER_S).all(), "a step that finds the time over is the last"


@pytest.mark.parametrize("system", [ring, ring_overlap], ids=["ring", "ring_overlap"])
def test_a_ring_ends_for_all_workers_when_one_finds_the_goal_reached(system: Any, free_port: int):
    plan = replace(PLAN, max_steps=None, goal=Goal(least_steps=3, accuracy=0.01))
    logs = run([(system.worker, place(rank, free_port)) for rank in range(WORKERS)], plan)

    assert [len(log.ended_ns) for log in logs] == [3] * WORKERS
    assert [snapshot.updates for snapshot in logs[0].snapshots] == [0, 1, 2, 3]


def test_a_ring_of_the_best_changes_its_members_with_the_weather_and_trains_as_one_process_would(free_port: int):
    forecast = Forecast(rates=NETWORK["N3"], seed=4, began_ns=time.monotonic_ns(), period_ns=60_000_000)
    plan = replace(PLAN, members=3, forecast=forecast, duration_s=1.0, max_steps=20, base_compute_s=0.01)
    logs = run([(ring_best.worker, place(rank, free_port)) for rank in range(WORKERS)], plan)

    members = [[log.rank for log in logs if step in log.rounds] for step in range(1, 21)]
    assert all(len(ranks) == 3 for ranks in members)
    assert len({tuple(ranks) for ranks in members}) > 1
    workload, weights = plan.workload.build(), plan.workload.build().initial()
    velocity, own = np.zeros_like(weights), [0] * WORKERS
    for ranks in members:
        gradients = [workload.gradient(weights, rank, own[rank])[0] for rank in ranks]
        velocity = plan.momentum * velocity + np.mean(gradients, axis=0)
        weights = (weights - plan.learning_rate * velocity).astype(np.float32)
        for rank in ranks:
            own[rank] += 1
    taken = RunLogs(workers=logs, servers=()).snapshots
    assert [snapshot.updates for snapshot in taken] == list(range(21))
    np.testing.assert_allclose(taken[-1].weights, weights, atol=1e-5)
    for log in logs:
        in_order(log)


def test_the_best_hosts_are_those_whose_slower_direction_is_fastest():
    forecast = Forecast(rates=FOUR, seed=0, began_ns=100, period_ns=10)
    hosts = [f"w{rank}" for rank in range(8)]

    assert [forecast.period_at(ns) for ns in (100, 109, 110)] == [0, 0, 1]
    assert forecast.best(hosts, 4, 0) == ("w0", "w1", "w2", "w7")
    assert len({forecast.best(hosts, 2, period) for period in range(8)}) > 1, "of equals, others in each period"


def served(plan: RunPlan, port: int) -> tuple[ServerLog, list[WorkerLog]]:
    parts: list[tuple[Part, Place]] = [(parameter_server.worker, place(rank, port)) for rank in range(WORKERS)]
    server, *workers = run([(parameter_server.SERVICES[parameter_server.SERVER], place(None, port)), *parts], plan)
    return server, workers


def test_a_synchronous_server_trains_as_one_process_would_with_all_batches(free_port: int):
    server, workers = served(PLAN, free_port)
    models = in_one_process(PLAN, WORKERS)
    assert server.snapshots[-1].updates == STEPS
    np.testing.assert_allclose(server.snapshots[-1].weights, models[-1], atol=1e-6)
    assert server.workers.tolist() != []
    assert np.bincount(server.workers).tolist() == [STEPS] * WORKERS
    assert not server.delays.any()
    for rank, log in enumerate(workers):
        assert (log.rank, log.began_ns) == (rank, server.began_ns)
        assert log.losses == pytest.approx(losses_of(PLAN, models, rank), abs=1e-5)
        in_order(log)


def test_an_asynchronous_server_takes_every_gradient_on_the_model_that_it_had_answered_with(free_port: int):
    plan = replace(PLAN, consistency=Consistency.ASYNCHRONOUS, base_compute_s=0.002, compute=COMPUTE["C2"])
    server, workers = served(plan, free_port)
    assert np.bincount(server.workers).tolist() == [STEPS] * WORKERS
    assert server.snapshots[-1].updates == STEPS * WORKERS
    for log in workers:
        in_order(log)

    model, losses = replayed(plan, server)
    np.testing.assert_allclose(server.snapshots[-1].weights, model, atol=1e-6)
    for log in workers:
        assert log.losses == pytest.approx(losses[log.rank], abs=1e-5)


def replayed(plan: RunPlan, server: ServerLog) -> tuple[np.ndarray, list[list[float]]]:
    """Take the steps that a server's log tells of: each gradient as late as it says; return model and losses."""
    workload = plan.workload.build()
    models = [workload.initial()]
    velocity = np.zeros_like(models[0])
    losses: list[list[float]] = [[] for _ in range(WORKERS)]
    for version, (worker, delay) in enumerate(zip(server.workers, server.delays, strict=True)):
        gradient, loss = workload.gradient(models[version - delay], int(worker), len(losses[worker]))
        losses[worker].append(loss)
        velocity = plan.momentum * velocity + gradient
        models.append(models[-1] - np.float32(plan.learning_rate / WORKERS) * velocity)
    return models[-1], losses


def test_a_worker_that_the_server_leaves_says_so(free_port: int):
    with socket.create_server(("127.0.0.1", free_port)) as listener:
        context = multiprocessing.get_context("forkserver")
        theirs, ours = context.Pipe(duplex=False)
        process = context.Process(target=_error_of_worker, args=(place(0, free_port), ours))
        process.start()
        sock, _ = listener.accept()
        sock.close()
        assert theirs.poll(TIMEOUT_S)
        assert "closed its connection" in theirs.recv()
        process.join()


def _error_of_worker(at: Place, ours: Connection) -> None:
    try:
        parameter_server.worker(at, PLAN)
    except TransferError as error:
        ours.send(str(error))


def test_snapshots_are_copies_no_closer_than_asked_and_end_with_the_last_model():
    keeper, weights = SnapshotKeeper(every_ns=10), np.zeros(2, dtype=np.float32)
    for now_ns in range(25):
        weights[:] = now_ns
        keeper.offer(now_ns, now_ns, weights)
    taken = keeper.finish(24, 24, weights)
    assert [(taken.time_ns, taken.updates, float(taken.weights[0])) for taken in taken] == [
        (0, 0, 0.0),
        (10, 10, 10.0),
        (20, 20, 20.0),
        (24, 24, 24.0),
    ]


def test_a_log_has_only_steps_that_ended():
    recorder = StepRecorder()
    for _ in range(2):
        recorder.start()
        recorder.computed(0.5)
        recorder.end()
    recorder.start()
    log = recorder.log(rank=1, began_ns=0, overruns=0)
    assert (len(log.started_ns), len(log.computed_ns), len(log.ended_ns), len(log.losses)) == (2, 2, 2, 2)
