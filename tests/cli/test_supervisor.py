"""What is started again, what takes over, and what stays away."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mlfabric.launch import supervisor
from mlfabric.launch.output import Output
from mlfabric.launch.processes import Nursery, Process, Program
from mlfabric.launch.supervisor import EXIT_FENCED, Start, Supervised

from .test_processes import ENDLESS, Lines

STANDS_BY = f"import sys; print('stands by', flush=True); sys.stdin.readline() or sys.exit(1); {ENDLESS}"


@asynccontextmanager
async def keeping(codes: dict[Start, str]) -> AsyncIterator[tuple[Supervised, Lines, Lines]]:
    """Keep a service that is a line of Python for each way of starting it."""
    out, err = Lines(), Lines()

    def program(start: Start) -> Program | None:
        if start not in codes:
            return None
        argv = (sys.executable, "-c", codes[start])
        return Program(name="it", argv=argv, environment=dict(os.environ), stands_by=start is Start.SPARE)

    async with Nursery(Output(out, err), grace_s=0.1) as nursery:
        supervised = Supervised(nursery, program)
        task = asyncio.create_task(supervised.keep())
        yield supervised, out, err
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def both(supervised: Supervised) -> list[Process]:
    """Return the service and its spare, whose first line may come before it is noted."""
    while len(supervised.processes) < 2:
        await asyncio.sleep(0.001)
    return supervised.processes


async def test_a_spare_takes_over_from_who_was_killed_and_has_a_spare_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor, "SPARE_AFTER_S", 0.0)
    first_of_all = ENDLESS.replace("ready", "first")
    async with keeping({Start.FIRST: first_of_all, Start.SPARE: STANDS_BY}) as (supervised, out, err):
        await out.wait_for(b"stands by")
        first, spare = await both(supervised)
        first.tell(signal.SIGKILL)
        await out.wait_for(b"[it] ready\n")
        while out.getvalue().count(b"[it] stands by\n") < 2:
            await asyncio.sleep(0.001)
        assert b"it was killed by SIGKILL (signal 9); its spare takes over\n" in err.getvalue()
        service, another = await both(supervised)
        assert service is spare
        assert another.is_running


async def test_a_spare_that_has_died_as_well_is_not_counted_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor, "SPARE_AFTER_S", 0.0)
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.0)
    again = ENDLESS.replace("ready", "again")
    async with keeping({Start.FIRST: ENDLESS, Start.AGAIN: again, Start.SPARE: STANDS_BY}) as (supervised, out, err):
        await out.wait_for(b"stands by")
        first, spare = await both(supervised)
        spare.tell(signal.SIGKILL)
        await spare.wait()
        first.tell(signal.SIGKILL)
        await out.wait_for(b"[it] again\n")
        assert b"; starting it again in 0 s\n" in err.getvalue()


async def test_who_was_fenced_off_is_not_started_again():
    async with keeping({Start.FIRST: f"raise SystemExit({EXIT_FENCED})"}) as (supervised, _, err):
        await err.wait_for(b"it was fenced off by a newer one; it is not started again\n")
        assert supervised.spare is None


async def test_a_spare_ends_when_nobody_can_tell_it_to_begin_any_more():
    async with Nursery(Output(Lines(), Lines())) as nursery:
        program = Program(name="it", argv=(sys.executable, "-c", STANDS_BY), stands_by=True)
        spare = await nursery.start(program)
        spare.begin()
        await spare.end()
        assert not spare.is_running
        spare.begin()
