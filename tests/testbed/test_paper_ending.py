"""The command that makes the paper's table is told to end in the middle of a run, and leaves nothing of it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.paper import QUICK_WORKERS
from benchmarks.testbed.systems import fabric
from tests.processes import wait_until
from tests.testbed.quick import begin_quick, skip_without_hosts
from tests.testbed.waiting import namespaces_of, pids_in, runs

pytestmark = [pytest.mark.processes, pytest.mark.root, pytest.mark.timeout(300)]

GRACE_S = 30.0
LOOK_EVERY_S = 0.1
"""At who runs where, which takes milliseconds."""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command in a folder of its own; ends it with the test if it still runs."""
    skip_without_hosts()
    with ExitStack() as stack:

        def started(name: str, *options: str) -> subprocess.Popen[str]:
            process = stack.enter_context(begin_quick(tmp_path / name, *options))
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


def test_ctrl_c_in_the_middle_of_a_run_leaves_nothing_and_disturbs_no_other(begin, tmp_path: Path):
    other = begin("other", "--systems", "ring")
    told = begin("told", "--systems", "fabric-async")
    _wait_for_processes(other, QUICK_WORKERS)
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
    assert not [file.name for file in (folder / "runs").glob("*") if not file.name.startswith("tuning-")]
