"""Recordings: rows from what the scheduler says, and of a fabric that really trains."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mlfabric
from mlfabric.channels import TcpOptions
from mlfabric.cli.record_command import Recorder, read_trace, record_fabric
from mlfabric.config import WorkerSettings
from mlfabric.errors import ConfigError, UsageError
from mlfabric.lab.simulation import simulate
from mlfabric.launch.scheduler_status import StatusReader
from mlfabric.model.specs import Method
from mlfabric.twin.settings import Direction
from mlfabric.twin.trace import Trace
from mlfabric.v1 import fabric_pb2
from tests.fabric.harness import Fabric, wait_until

COMPUTE_S = 0.05
UP_BPS = 40_000_000


def status(
    *, steps: int = 0, compute_s: tuple[float, ...] = (), up_bps: int = 100_000, age_s: float | None = None
) -> fabric_pb2.GetStatusResponse:
    link = fabric_pb2.LinkStatus(host="h", up=True, nominal_bps=100_000, estimate_bps=up_bps)
    if age_s is not None:
        link.age_s = age_s
    return fabric_pb2.GetStatusResponse(
        members=[
            fabric_pb2.MemberStatus(name="w", role="worker", host="h", state="here"),
            fabric_pb2.MemberStatus(name="s", role="server", host="hs", state="here"),
        ],
        models=[
            fabric_pb2.ModelStatus(
                name="net", server="s", method="asynchronous", tau_max=4, size_bytes=80, committed=7, dropped=1
            )
        ],
        workers=[fabric_pb2.WorkerStatus(name="w", model="net", steps=steps, compute_s=compute_s)],
        links=[link],
    )


def of_kind(rows: Any, kind: str) -> list[Any]:
    return [row[kind] for row in rows if kind in row]


def test_only_computations_that_are_new_are_written():
    recorder = Recorder(status(steps=2, compute_s=(1.0, 2.0)))
    assert of_kind(recorder.look(status(steps=2, compute_s=(1.0, 2.0)), 0.0), "compute") == []
    assert of_kind(recorder.look(status(steps=4, compute_s=(1.0, 2.0, 3.0, 4.0)), 1.0), "compute") == [
        ["w", [3.0, 4.0]]
    ]


def test_a_scheduler_that_began_anew_counts_from_nothing():
    recorder = Recorder(status(steps=9, compute_s=(1.0,)))
    assert of_kind(recorder.look(status(steps=1, compute_s=(5.0,)), 1.0), "compute") == [["w", [5.0]]]


def test_a_new_measurement_holds_since_it_was_made():
    recorder = Recorder(status())
    list(recorder.look(status(), 0.0))
    (row,) = (row for row in recorder.look(status(up_bps=50_000, age_s=0.3), 2.0) if "rate" in row)
    assert row["at_s"] == pytest.approx(1.7)
    assert row["rate"] == ["h", "up", 50_000]


def test_an_old_measurement_that_ages_counts_since_it_was_looked_at():
    recorder = Recorder(status())
    list(recorder.look(status(), 0.0))
    list(recorder.look(status(up_bps=50_000, age_s=0.3), 2.0))
    (row,) = (row for row in recorder.look(status(up_bps=60_000, age_s=1.3), 3.0) if "rate" in row)
    assert row["at_s"] == 3.0


def test_an_estimate_that_hardly_moves_is_the_same_rate():
    recorder = Recorder(status())
    assert len(of_kind(recorder.look(status(), 0.0), "rate")) == 1
    assert of_kind(recorder.look(status(up_bps=100_900), 1.0), "rate") == []


def test_a_fabric_without_a_job_is_refused():
    with pytest.raises(UsageError, match="nothing"):
        Recorder(fabric_pb2.GetStatusResponse())
    with pytest.raises(UsageError, match="allowed: net"):
        Recorder(status(), "other")


def test_a_model_on_several_servers_is_refused():
    cut = status()
    cut.models[0].name = "net.0"
    with pytest.raises(UsageError, match="several servers"):
        Recorder(cut)


@contextmanager
def training(workers: int) -> Iterator[str]:
    """Train on loopback with emulated cards until the end; yield the scheduler's address."""
    ended = threading.Event()
    with Fabric() as fabric:
        fabric.server(host="host-s")
        threads = [threading.Thread(target=_train, args=(fabric.scheduler.address, n, ended)) for n in range(workers)]
        for thread in threads:
            thread.start()
        try:
            wait_until(
                lambda: sum(w.steps > 0 for w in fabric.status().workers) == workers, "every worker has made a step"
            )
            yield fabric.scheduler.address
        finally:
            ended.set()
            for thread in threads:
                thread.join()


def _train(scheduler: str, rank: int, ended: threading.Event) -> None:
    tcp = TcpOptions(up_bps=UP_BPS, down_bps=UP_BPS)
    settings = WorkerSettings(scheduler=scheduler, name=f"w{rank}", host=f"host-{rank}", tcp=tcp)
    model = torch.nn.Linear(250, 250, bias=False)
    with mlfabric.register_as_worker(model, settings=settings) as worker:
        computing = threading.Event()
        while not ended.is_set():
            worker.get(model)
            model.weight.grad = torch.full_like(model.weight, 1e-3)
            computing.wait(COMPUTE_S)
            worker.push(model)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    file = tmp_path_factory.mktemp("traces") / "live.trace"
    with training(3) as scheduler:
        asyncio.run(record_fabric(file, StatusReader(scheduler), "", 4.0, 0.2))
    return read_trace(file)


def test_a_live_fabric_is_recorded_with_its_model_and_its_links(recorded: Trace):
    assert (recorded.method, recorded.model_bytes, recorded.server) == (Method.ASYNCHRONOUS, 250_000, "host-s")
    assert recorded.workers == {"w0": "host-0", "w1": "host-1", "w2": "host-2"}
    assert recorded.lines["host-1", Direction.UP].bps == (UP_BPS,)


def test_a_live_workers_computations_are_as_long_as_they_were_but_for_socket_buffers(recorded: Trace):
    """What the kernels hold when the sender is done comes later: up to 200 kB."""
    buffered_s = 8 * 200_000 / UP_BPS
    for times_s in recorded.compute_s.values():
        usual_s = sorted(times_s)[len(times_s) // 2]
        assert COMPUTE_S <= usual_s <= 1.2 * COMPUTE_S + buffered_s


def test_the_steps_of_a_live_fabric_are_counted(recorded: Trace):
    wire_s = 8 * recorded.model_bytes / UP_BPS
    assert recorded.iteration_s >= COMPUTE_S + 2 * wire_s * 0.9
    # Every update that is committed was computed; at the beginning and the end some of them are under way.
    computed = sum(len(times_s) for times_s in recorded.compute_s.values())
    committed = recorded.progress[-1].committed - recorded.progress[0].committed
    assert abs(computed - committed) <= 6


def test_the_twin_replays_what_was_recorded_of_a_live_fabric(compiled_planner: None, recorded: Trace):
    """How near the twin comes depends on how busy this machine is, so only what holds on any machine is asked."""
    replayed = simulate(recorded.cluster(iterations=30))
    assert replayed.ended_s.shape == (3, 30)
    assert replayed.mean_iteration_s >= COMPUTE_S + 2 * 8 * recorded.model_bytes / UP_BPS * 0.95
    assert np.array_equal(replayed.ended_s, simulate(recorded.cluster(iterations=30)).ended_s)


def test_a_file_that_is_there_is_left_alone(tmp_path: Path):
    file = tmp_path / "kept.trace"
    file.write_text("mine")
    with training(1) as scheduler, pytest.raises(UsageError, match="there already"):
        asyncio.run(record_fabric(file, StatusReader(scheduler), "", 1.0, 0.2))
    assert file.read_text() == "mine"


def test_a_trace_that_cannot_be_read_is_an_error_in_words(tmp_path: Path):
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "none.trace")
    (tmp_path / "binary.trace").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no text"):
        read_trace(tmp_path / "binary.trace")
