"""How a scheduler gets its compiled planner without keeping anybody waiting.

Machine code on disk is loaded before the scheduler serves: well under a second. If there is none yet, another process
compiles it at low priority while the scheduler serves and plans in plain Python, and it is loaded afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator

from mlfabric.scheduler.planning import is_planner_compiled, warm_up

__all__ = ["warm_planner"]

log = logging.getLogger("mlfabric.scheduler")

_NICE = 10


@contextlib.asynccontextmanager
async def warm_planner() -> AsyncIterator[None]:
    """Load the compiled planner, or have it compiled meanwhile; leave nothing running behind."""
    if is_planner_compiled():
        warm_up(log.info)
        yield
        return
    log.info("compiling the planner in another process; this happens once and takes a minute or two")
    compiling = asyncio.create_task(_compile_aside())
    try:
        yield
    finally:
        compiling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await compiling


async def _compile_aside() -> None:
    compiler = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mlfabric.scheduler.planning.fluid",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        os.setpriority(os.PRIO_PROCESS, compiler.pid, _NICE)
        code = await compiler.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            compiler.kill()
        await compiler.wait()
    if code == 0 and is_planner_compiled():
        await asyncio.to_thread(warm_up, log.info)
    else:
        log.warning("the planner could not be compiled and kept (exit code %s); large batches are planned slowly", code)
