"""How a scheduler gets its compiled planner without keeping anybody waiting.

Until it has it, it plans in plain Python. Machine code on disk is loaded by a thread: half a second, in which a
scheduler that was started again has all members back. If there is none yet, another process compiles it first, at low
priority.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import AsyncIterator

from mlfabric.errors import UnavailableError
from mlfabric.planning import is_planner_compiled, warm_up

__all__ = ["warm_planner"]

log = logging.getLogger("mlfabric.scheduler")

_NICE = 10


@contextlib.asynccontextmanager
async def warm_planner() -> AsyncIterator[None]:
    """Have the planner loaded meanwhile, and compiled before if need be; leave nothing running behind."""
    warming = asyncio.create_task(_warm_aside())
    try:
        yield
    finally:
        warming.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await warming


async def _warm_aside() -> None:
    try:
        if not await asyncio.to_thread(is_planner_compiled):
            log.info("compiling the planner in another process; this happens once and takes up to a minute")
            await _compile_aside()
        await asyncio.to_thread(warm_up, log.info)
        gc.freeze()  # as the runner did with what was loaded before: no garbage collection is to look through it
    except Exception as error:
        log.warning("the planner could not be compiled and loaded: %s; large batches are planned slowly", error)


async def _compile_aside() -> None:
    """Compile it in another process.

    Raises:
        UnavailableError: it is not on disk afterwards.
    """
    compiler = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mlfabric.planning.fluid",
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
    if code != 0 or not is_planner_compiled():
        raise UnavailableError(f"the compiler's exit code is {code}, and there is no machine code on disk")
