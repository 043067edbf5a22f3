"""A scheduler serves while its planner is compiled and loaded, and leaves no compiler behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mlfabric.scheduler import planner_warmup

SERVE = """
import asyncio, sys
from mlfabric.planning import is_planner_compiled
from mlfabric.scheduler.planner_warmup import warm_planner

async def main():
    print(is_planner_compiled(), flush=True)
    async with warm_planner():
        print("serving", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    print("stopped", flush=True)

asyncio.run(main())
"""
LOAD = """
import asyncio
from mlfabric.planning import is_planner_loaded
from mlfabric.scheduler.planner_warmup import warm_planner

async def main():
    async with warm_planner():
        print(is_planner_loaded(), flush=True)
        while not is_planner_loaded():
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


@pytest.mark.processes
def test_a_cold_planner_is_compiled_aside_and_its_compiler_ends_with_the_scheduler(tmp_path: Path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", SERVE], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as scheduler:
        assert scheduler.stdout is not None
        assert scheduler.stdin is not None
        assert scheduler.stdout.readline() == "False\n"
        assert scheduler.stdout.readline() == "serving\n"
        (compiler,) = wait_for_child(scheduler.pid)
        assert "mlfabric.planning.fluid" in compiler.cmdline()
        scheduler.stdin.write("\n")
        scheduler.stdin.flush()
        assert scheduler.stdout.readline() == "stopped\n"
    psutil.wait_procs([compiler], timeout=30)
    assert not compiler.is_running()


@pytest.mark.processes
def test_a_planner_that_is_on_disk_is_loaded_while_the_scheduler_serves():
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


async def test_a_planner_that_cannot_be_loaded_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(log: object) -> None:
        raise ImportError("no machine code for this machine")

    monkeypatch.setattr(planner_warmup, "is_planner_compiled", lambda: True)
    monkeypatch.setattr(planner_warmup, "warm_up", broken)
    async with planner_warmup.warm_planner():
        while not caplog.messages:
            await asyncio.sleep(0.01)
    assert "no machine code for this machine; large batches are planned slowly" in caplog.text


def wait_for_child(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    while not (found := [child for child in parent.children() if "-m" in child.cmdline()]):
        assert parent.is_running(), "the scheduler ended"
    return found
