"""The paper's table in small: the real command on real hosts. Whether ratios are reached is not looked at here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.paper import QUICK_WORKERS
from benchmarks.testbed.digits import digits_file
from benchmarks.testbed.hosts import testbed
from benchmarks.testbed.spec import FORMAT
from benchmarks.testbed.systems import fabric
from mlfabric.errors import UnavailableError
from tests.testbed.waiting import namespaces_of, pids_in, runs, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.root, pytest.mark.alone, pytest.mark.timeout(240)]

GRACE_S = 30.0
LOOK_EVERY_S = 0.1
"""At who runs where, which takes milliseconds."""

ROWS = {
    "asynchronous_vs_ring",
    "advised_vs_ring",
    "accuracy_at_the_end",
    "synchronous_vs_ring",
    "synchronous_vs_tree",
    "dropped",
    "forwarded",
    "reporting_lag",
    "topics",
    "backups",
    "overlap",
    "twin",
    "speed",
}


@pytest.fixture(scope="module")
def _hosts_can_be_made():
    if not digits_file().exists():
        pytest.skip("no digits here: scripts/fetch_digits (needs npm)")
    try:
        with testbed(["a"], link_bps=10_000_000):
            pass
    except UnavailableError as error:
        pytest.skip(f"no network namespaces here: {error}")


def _begin(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start the command; its files, temporary ones too, are in a folder."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    command = [sys.executable, "-m", "mlfabric", "bench", "paper", "--quick", "--results", str(folder / "runs")]
    command += ["--json", str(folder / "paper.json"), "--report", str(folder / "report"), *options]
    environment = os.environ | {"NO_COLOR": "1", "TMPDIR": str(temporary)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, _hosts_can_be_made) -> Path:
    """Run the whole command once; return its folder."""
    folder = tmp_path_factory.mktemp("whole")
    bench = _begin(folder)
    _, told = bench.communicate()
    assert bench.returncode == 0, told
    return folder


@pytest.fixture
def begin(tmp_path: Path, whole: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command in a folder of its own, with what was tuned; ends it with the test if it still runs."""
    with ExitStack() as stack:

        def started(name: str, *options: str) -> subprocess.Popen[str]:
            (tmp_path / name / "runs").mkdir(parents=True)
            for tuned in (whole / "runs").glob("tuning-*"):
                shutil.copy(tuned, tmp_path / name / "runs")
            process = stack.enter_context(_begin(tmp_path / name, *options))
            stack.callback(_end, process)
            return process

        yield started


def _end(bench: subprocess.Popen[str]) -> None:
    """Have a command end in order, so that its hosts go too."""
    bench.terminate()
    try:
        bench.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        bench.kill()


def _processes_of(bench: subprocess.Popen[str]) -> list[int]:
    """Return what runs in the hosts of a command."""
    return pids_in(namespaces_of(bench.pid))


def _wait_for_processes(bench: subprocess.Popen[str], least: int) -> list[int]:
    wait_until(
        lambda: bench.poll() is not None or len(_processes_of(bench)) >= least,
        f"{least} processes in hosts",
        LOOK_EVERY_S,
    )
    assert bench.poll() is None, bench.communicate()
    return _processes_of(bench)


def test_the_table_in_small_runs_and_is_complete(whole: Path):
    found = json.loads((whole / "paper.json").read_text())
    assert found["format"] == FORMAT
    assert set(found["rows"]) == ROWS
    assert found["settings"]["cells"] == ["C1-N1"]
    assert [run["system"] for run in found["runs"]] == ["ring", "fabric-async"]
    assert found["settings"]["server_weather"] is False
    assert found["failed"] == []
    for run in found["runs"]:
        assert run["seconds_per_iteration"] > 0.1, "a step computes for 0.1 s"
        assert run["saturated"] or run["seconds_per_iteration_of_twin"] > 0.1, "the twin predicts what counts"
        assert run["accuracy_at_end"] > 0.3, "it learns"
        assert 0 < run["cpu_used_share"] <= 1
        kept = json.loads((whole / "runs" / run["file"]).read_text())
        assert len(kept["commits"]["workers"]) == len(kept["commits"]["delays"]) > 0
        assert len(kept["curve"]["time_s"]) == len(kept["curve"]["accuracy"]) > 2
        assert kept["spec"]["workers"] == len(kept["dropped_by_worker"])
    kept = json.loads((whole / "runs" / found["runs"][1]["file"]).read_text())
    assert kept["spec"]["delay_bound"] == kept["spec"]["workers"] == found["settings"]["workers"]
    assert max(kept["commits"]["delays"]) <= kept["spec"]["delay_bound"]
    assert {file.name for file in (whole / "report").iterdir()} == {"report.md", "accuracy.png", "ratios.png"}


def test_ctrl_c_in_the_middle_of_a_run_leaves_nothing_and_disturbs_no_other(begin, tmp_path: Path):
    other = begin("other", "--systems", "ring")
    _wait_for_processes(other, QUICK_WORKERS)
    told = begin("told", "--systems", "fabric-async")
    members = _wait_for_processes(told, 2 * QUICK_WORKERS + len(fabric.SERVICES))

    _told_to_end(told, signal.SIGINT, 130, members, tmp_path / "told")

    _, words = other.communicate()
    assert other.returncode == 0, words
    assert [run["system"] for run in json.loads((tmp_path / "other" / "paper.json").read_text())["runs"]] == ["ring"]


def test_sigterm_in_the_middle_of_a_run_leaves_nothing(begin, tmp_path: Path):
    told = begin("told", "--systems", "ps-sync", "--duration", "60")
    members = _wait_for_processes(told, QUICK_WORKERS)

    _told_to_end(told, signal.SIGTERM, 143, members, tmp_path / "told")


def _told_to_end(told: subprocess.Popen[str], kind: int, code: int, members: list[int], folder: Path) -> None:
    told.send_signal(kind)
    _, words = told.communicate()

    assert told.returncode == code, words
    assert not [pid for pid in members if runs(pid)]
    assert not namespaces_of(told.pid)
    assert list((folder / "tmp").iterdir()) == []
    assert not [file.name for file in (folder / "runs").iterdir() if not file.name.startswith("tuning-")]
