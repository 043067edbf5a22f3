"""The demonstration with real processes, shortened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mlfabric import demo
from mlfabric.demo.demo_events import Accuracy, Applied, EventTail, Moved, NotApplied, log_path
from mlfabric.demo.main import REPORT_FILES, RUN_FOLDER
from mlfabric.errors import UsageError

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SHORT = demo.Scenario(
    updates=50,
    slowness=(1.0, 2.5, 1.0),
    rates=("500M", "500M", "125M"),
    pause_share=0.1,
    least_accuracy=0.0,
    most_difference=1.0,
    compared_pace_s=0.05,
    compared_accuracy=0.2,
)


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("report")
    (folder / "summary.json").write_text("of an earlier run")
    assert demo.run(folder, seed=3, scenario=SHORT) == 0
    return folder


def test_counts_agree_and_the_delay_bound_holds(report):
    summary = json.loads((report / "summary.json").read_text())
    events = [e for rank in range(3) for e in EventTail(log_path(report / RUN_FOLDER, rank)).read()]
    applied = [e for e in events if isinstance(e, Applied)]
    assert summary["updates_applied"] == len(applied) >= SHORT.updates
    assert summary["updates_dropped"] == sum(isinstance(e, NotApplied) for e in events)
    assert summary["delay_max"] == max(e.tau for e in applied) <= summary["delay_bound"] == SHORT.tau_max
    assert sorted(e.version for e in applied) == list(range(1, len(applied) + 1))
    assert summary["details"]["broken_promises"] == []
    assert {e.worker for e in applied} == {"worker-0", "worker-1", "worker-2"}


def test_transfers_took_no_less_than_their_wire_time(report):
    events = [e for rank in range(3) for e in EventTail(log_path(report / RUN_FOLDER, rank)).read()]
    moved = [e for e in events if isinstance(e, Moved)]
    assert {e.is_push for e in moved} == {True, False}
    narrow_s = [(e.ended_ns - e.started_ns) / 1e9 for e in moved if e.worker == "worker-2"]
    assert min(narrow_s) > 0.8 * moved[0].size_bytes * 8 / 125e6


def test_elastic_rounds_and_a_ring_were_trained_to_the_same_accuracy(report):
    summary = json.loads((report / "summary.json").read_text())
    compared = summary["details"]["comparison"]
    assert set(compared) == {"elastic", "ring"}
    begins = set()
    for method, found in compared.items():
        events = EventTail(log_path(report / RUN_FOLDER / method, 0)).read()
        accuracies = [e for e in events if isinstance(e, Accuracy)]
        assert found["reached"]
        assert [e.accuracy >= SHORT.compared_accuracy for e in accuracies] == [False] * (len(accuracies) - 1) + [True]
        assert (accuracies[0].version, accuracies[-1].version) == (0, found["rounds"])
        assert not list((report / RUN_FOLDER / method).glob("*.snapshot"))
        begins.add(accuracies[0].accuracy)
    assert len(begins) == 1  # both have the same initial weights


def test_pictures_and_a_checkpoint_that_plain_pytorch_reads_are_left(report):
    import torch

    assert {p.name for p in report.iterdir()} == {*REPORT_FILES, RUN_FOLDER}
    checkpoint = torch.load(max((report / RUN_FOLDER / "checkpoints").glob("*.pt")), weights_only=True)
    assert checkpoint["version"] == json.loads((report / "summary.json").read_text())["updates_applied"]


@pytest.mark.parametrize("moment", ["starting scheduler", "updates"])
def test_ctrl_c_leaves_nothing_behind(tmp_path, moment):
    command = [sys.executable, "-m", "mlfabric", "demo", "--report", str(tmp_path)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, process_group=0) as process:
        assert process.stdout is not None
        assert any(moment in line for line in process.stdout)
        started = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        process.stdout.read()
        assert process.wait(30) == 130
    assert started
    gone, alive = psutil.wait_procs(started, timeout=5)
    assert not alive, [p.cmdline() for p in alive]
    assert len(gone) == len(started)


def test_a_report_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="give a folder that this process may write"):
        demo.run(tmp_path / "file")
