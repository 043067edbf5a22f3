"""A scheduler serves while its planner is compiled, and leaves no compiler behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SERVE = """
import asyncio, sys
from mlfabric.scheduler.planning import is_planner_compiled
from mlfabric.scheduler.warming import warm_planner

async def main():
    print(is_planner_compiled(), flush=True)
    async with warm_planner():
        print("serving", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    print("stopped", flush=True)

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
        assert "mlfabric.scheduler.planning.fluid" in compiler.cmdline()
        scheduler.stdin.write("\n")
        scheduler.stdin.flush()
        assert scheduler.stdout.readline() == "stopped\n"
    psutil.wait_procs([compiler], timeout=30)
    assert not compiler.is_running()


def wait_for_child(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    while not (found := [child for child in parent.children() if "-m" in child.cmdline()]):
        assert parent.is_running(), "the scheduler ended"
    return found
