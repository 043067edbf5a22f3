"""Which samples were trained on, dropped, repeated and lost: exact, whoever dies, through a real fabric."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlfabric import Committed, Dropped, Lost, Method, UsageError
from mlfabric.channels import FrameKind
from mlfabric.v1 import fabric_pb2
from tests.fabric.harness import Fabric, fabric, gradients, small_model, wait_until
from tests.fabric.several import spread

EMPTY: dict[str, list[tuple[int, ...]]] = {
    "trained": [],
    "repeated": [],
    "dropped": [],
    "lost": [],
    "in_flight": [],
    "missing": [],
}


def account(running: Fabric) -> dict[str, list[tuple[int, ...]]]:
    """Return the ranges of the first model's status; of what was trained on with how often."""
    models = running.status().models
    found = models[0].samples if models else fabric_pb2.SampleStatus()
    out: dict[str, list[tuple[int, ...]]] = {}
    for kind in EMPTY:
        ranges = getattr(found, f"{kind}_ranges")
        assert getattr(found, kind) == sum(r.stop - r.start for r in ranges), f"{kind}: {found}"
        out[kind] = [(r.start, r.stop, r.times) if r.times else (r.start, r.stop) for r in ranges]
    assert found.ranges_left_out == 0
    return out


def comes_to(running: Fabric, **expected: list[tuple[int, ...]]) -> None:
    """Wait until the status says exactly this; what is not named is empty."""
    seen: list[Any] = [None]

    def is_there() -> bool:
        seen[0] = account(running)
        return bool(seen[0] == {**EMPTY, **expected})

    try:
        wait_until(is_there, "the account")
    except AssertionError as error:
        raise AssertionError(f"{expected} expected, {seen[0]} found") from error


def step(worker: Any, start: int, stop: int, *, good: bool = True) -> object:
    """Get, compute from these samples, push; return the outcome."""
    worker.get()
    gradients(worker._model, start)
    if not good:
        next(iter(worker._model.parameters())).grad[0] = float("nan")
    return worker.push(samples=[(start, stop)]).result(15)


def test_what_is_trained_on_dropped_and_repeated_is_in_the_status_and_in_the_log(tmp_path: Path) -> None:
    with fabric(checkpoint_dir=tmp_path) as running:
        a, b = running.worker(small_model(), "a"), running.worker(small_model(), "b")
        for worker, start in ((a, 0), (b, 8), (a, 24)):
            assert isinstance(step(worker, start, start + 8), Committed)
        assert isinstance(step(b, 40, 48, good=False), Dropped)
        assert isinstance(step(a, 4, 8), Committed)
        comes_to(
            running,
            trained=[(0, 4, 1), (4, 8, 2), (8, 16, 1), (24, 32, 1)],
            repeated=[(4, 8, 2)],
            dropped=[(40, 48)],
            missing=[(16, 24), (32, 40)],
        )
        assert isinstance(step(b, 40, 48), Committed)
        comes_to(
            running,
            trained=[(0, 4, 1), (4, 8, 2), (8, 16, 1), (24, 32, 1), (40, 48, 1)],
            repeated=[(4, 8, 2)],
            missing=[(16, 24), (32, 40)],
        )
    logged = [json.loads(line) for line in (tmp_path / "model.commits.jsonl").read_text().splitlines()]
    expected = ((0, 8), (8, 16), (24, 32), (4, 8), (40, 48))
    assert [entry["samples"] for entry in logged] == [[[[start, stop]]] for start, stop in expected]


def test_where_nobody_says_what_updates_are_computed_from_there_is_no_account() -> None:
    with fabric() as running:
        worker = running.worker(small_model())
        worker.get()
        gradients(worker._model)
        assert isinstance(worker.push().result(15), Committed)
        assert not running.status().models[0].HasField("samples")


def test_several_batches_in_one_update_are_counted_together() -> None:
    with fabric() as running:
        worker = running.worker(small_model())
        worker.get()
        worker.trains_on([(8, 16)])
        worker.trains_on([(0, 4)])
        gradients(worker._model)
        assert isinstance(worker.exchange().result(15), Committed)
        comes_to(running, trained=[(0, 4, 1), (8, 16, 1)], missing=[(4, 8)])


def test_what_a_worker_had_under_way_when_it_died_is_dropped() -> None:
    with fabric() as running:
        steady = running.worker(small_model(), "steady")
        assert isinstance(step(steady, 0, 8), Committed)
        raw = running.raw_worker(small_model())
        raw.tell(raw.request(samples=((8, 16),)))
        line = raw.offer(raw.told("send"))
        granted = line.receive()
        assert granted is not None
        assert granted.kind is FrameKind.GRANT
        raw.tell(raw.request(samples=((16, 24),)))
        comes_to(running, trained=[(0, 8, 1)], in_flight=[(8, 24)])
        raw.__exit__()
        comes_to(running, trained=[(0, 8, 1)], dropped=[(8, 24)])
        assert isinstance(step(steady, 16, 24), Committed)
        comes_to(running, trained=[(0, 8, 1), (16, 24, 1)], dropped=[(8, 16)])


def test_the_account_outlives_the_scheduler() -> None:
    with fabric() as running:
        worker = running.worker(small_model())
        assert isinstance(step(worker, 0, 8), Committed)
        assert isinstance(step(worker, 8, 16, good=False), Dropped)
        worker.get()
        running.scheduler.stop()
        gradients(worker._model)
        handle = worker.push(samples=[(16, 24)])
        running.start_scheduler()
        assert isinstance(handle.result(15), Committed)
        comes_to(running, trained=[(0, 8, 1), (16, 24, 1)], dropped=[(8, 16)])


def test_what_was_dropped_while_the_scheduler_was_away_is_told_to_the_next_one() -> None:
    with fabric() as running:
        worker = running.worker(small_model())
        assert isinstance(step(worker, 0, 8), Committed)
        worker.get()
        running.scheduler.stop()
        gradients(worker._model)
        next(iter(worker._model.parameters())).grad[0] = float("inf")
        assert isinstance(worker.push(samples=[(8, 16)]).result(15), Dropped)
        running.start_scheduler()
        comes_to(running, trained=[(0, 8, 1)], dropped=[(8, 16)])


def test_a_server_that_resumes_goes_on_with_the_account_of_its_checkpoint(tmp_path: Path) -> None:
    with Fabric() as running:
        first = running.server(checkpoint_dir=tmp_path)
        worker = running.worker(small_model())
        assert isinstance(step(worker, 0, 8), Committed)
        assert isinstance(step(worker, 8, 16, good=False), Dropped)
        comes_to(running, trained=[(0, 8, 1)], dropped=[(8, 16)])
        worker.get()
        first.stop()
        running.server(checkpoint_dir=tmp_path, resume=True)
        assert isinstance(step(worker, 4, 8), Committed)
        comes_to(running, trained=[(0, 4, 1), (4, 8, 2)], repeated=[(4, 8, 2)], dropped=[(8, 16)])
        assert list(running.status().models[0].samples.rollbacks) == []


def test_what_a_server_s_crash_takes_back_is_lost_until_it_is_trained_on_again(tmp_path: Path) -> None:
    with Fabric() as running:
        first = running.server(checkpoint_dir=tmp_path / "first")
        worker = running.worker(small_model())
        assert isinstance(step(worker, 0, 8), Committed)
        worker.get()
        first.stop()
        second = running.server(checkpoint_dir=tmp_path / "first", resume=True)
        resumed = running.version(2, 0).epoch
        wait_until(lambda: list((tmp_path / "first").glob(f"model-e{resumed}-*.pt")), "it has written that it resumed")
        kept = tmp_path / "kept"
        shutil.copytree(tmp_path / "first", kept, ignore=shutil.ignore_patterns("*.tmp", "*.jsonl"))
        for start in (8, 16):
            assert isinstance(step(worker, start, start + 8), Committed)
        worker.get()
        comes_to(running, trained=[(0, 24, 1)])
        # What a crash leaves: the checkpoint of the beginning, and the log up to its last line, which may be cut off.
        shutil.copy(tmp_path / "first" / "model.commits.jsonl", kept)
        with (kept / "model.commits.jsonl").open("a") as log:
            log.write('{"epoch": 7, "vers')
        second.stop()
        running.server(checkpoint_dir=kept, resume=True)
        comes_to(running, trained=[(0, 8, 1)], lost=[(8, 24)])
        rollbacks = running.status().models[0].samples.rollbacks
        assert [(r.epoch, r.kept, r.last) for r in rollbacks] == [(resumed, 1, 3)]
        worker.get()
        assert isinstance(step(worker, 16, 24), Committed)
        comes_to(running, trained=[(0, 8, 1), (16, 24, 1)], lost=[(8, 16)])


def test_an_update_that_a_crash_of_the_server_drops_is_dropped_and_not_lost(tmp_path: Path) -> None:
    with Fabric() as running:
        first = running.server()
        worker = running.worker(small_model())
        assert isinstance(step(worker, 0, 8), Committed)
        worker.get()
        first.stop()
        gradients(worker._model)
        handle = worker.push(samples=[(8, 16)])
        running.server()
        assert isinstance(handle.result(15), Dropped)
        comes_to(running, dropped=[(8, 16)], missing=[(0, 8)])


def test_what_a_worker_leaves_without_an_outcome_is_dropped() -> None:
    with Fabric() as running:
        server = running.server()
        worker = running.worker(small_model(), "leaver", keep=True)
        assert isinstance(step(worker, 0, 8), Committed)
        comes_to(running, trained=[(0, 8, 1)])
        worker.get()
        server.stop()
        gradients(worker._model)
        handle = worker.push(samples=[(8, 16)])
        worker._daemon.leave("in a hurry", 0.0)
        assert isinstance(handle.result(15), Lost)
        wait_until(lambda: account(running)["dropped"] == [(8, 16)], "it is dropped")


def test_synchronous_iterations_and_models_on_several_servers_have_one_account() -> None:
    jobs: list[tuple[Callable[[], Any], dict[str, Any]]] = [
        (fabric, {"method": Method.SYNCHRONOUS}),
        (lambda: spread(2), {"servers": 2, "tau_max": 8}),
    ]
    for begin, options in jobs:
        with begin() as running:
            workers = [running.worker(small_model(), f"w{i}", **options) for i in range(2)]
            for worker in workers:
                worker.get()
            handles = []
            for i, worker in enumerate(workers):
                worker.trains_on([(i * 8, i * 8 + 8)])
                gradients(worker._model)
                handles.append(worker.push())
            assert all(isinstance(handle.result(15), Committed) for handle in handles)
            comes_to(running, trained=[(0, 16, 1)])


def test_with_overlap_samples_are_said_before_backward() -> None:
    with fabric() as running:
        worker = running.worker(small_model(), overlap=True)
        worker._timing.is_due = lambda tensor, now_ns: True
        for start in (0, 8):
            worker.get()
            worker.trains_on([(start, start + 8)])
            gradients(worker._model, start)
            with pytest.raises(UsageError, match="say them before"):
                worker.push(samples=[(100, 108)])
            if start:
                list(worker._model.parameters())[-1].grad[0] = 1.0
                with pytest.raises(UsageError, match="changed after backward"):
                    worker.push()
            else:
                assert isinstance(worker.push().result(15), Committed)
        comes_to(running, trained=[(0, 8, 1)], dropped=[(8, 16)])
