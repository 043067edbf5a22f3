"""Keeps a service running: starts it again when it dies, later and later while it keeps dying, and says so.

Of a service that nobody should have to wait for there may be a *spare*: a second process that has loaded everything and
waits to be told to begin. It takes over at once; what takes a second and more to start is ready then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn

from mlfabric.errors import UsageError
from mlfabric.launch.processes import Nursery, Process, Program, ending_text

__all__ = ["EXIT_FENCED", "EXIT_UNUSABLE", "Start", "Supervised", "backoff_s"]

EXIT_UNUSABLE = 2
EXIT_FENCED = 3
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
WELL_AFTER_S = 30.0
SPARE_AFTER_S = 10.0
"""A spare is started so long after the service itself: before that, workers load PyTorch and need the processors."""


class Start(Enum):
    """What a service is started as."""

    FIRST = "for the first time"
    AGAIN = "after it died"
    SPARE = "to stand by"


def backoff_s(deaths_in_a_row: int) -> float:
    """Return how long to wait before the next start, after so many deaths without a good run between them.

    After none, 0: so it is for a spare, which counts one less.
    """
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** (deaths_in_a_row - 1)) if deaths_in_a_row else 0.0


@dataclass(slots=True)
class Supervised:
    """One service under supervision.

    Args:
        nursery: starts it.
        program: given what to start it as, what to start; None for ``Start.SPARE`` if there is to be none.
        prepare: settles what it is started as after it died; None if there is nothing to settle.
    """

    nursery: Nursery
    program: Callable[[Start], Program | None]
    prepare: Callable[[], Awaitable[None]] | None = None
    process: Process | None = None
    spare: Process | None = None

    @property
    def processes(self) -> list[Process]:
        """Return what was started and may be running."""
        return [process for process in (self.process, self.spare) if process is not None]

    async def keep(self) -> NoReturn:
        """Run it, again and again, until cancelled; one that was fenced off stays away.

        Raises:
            UsageError: it cannot use its settings (code 2), so that another start would be in vain.
        """
        deaths = 0
        self.process = await self._start(Start.FIRST)
        while True:
            started_s = time.monotonic()
            returncode = await self._ended(self.process)
            name = self.process.program.name
            if returncode == EXIT_UNUSABLE:
                raise UsageError(f"{name} cannot run with these settings; its own message is above")
            if returncode == EXIT_FENCED:
                words = f"{name} was fenced off by a newer one; it is not started again"
                self.nursery.output.say(words, is_warning=True)
                await asyncio.get_running_loop().create_future()
            deaths = 1 if time.monotonic() - started_s >= WELL_AFTER_S else deaths + 1
            self.process = await self._successor(f"{name} {ending_text(returncode)}", deaths)

    async def _ended(self, process: Process) -> int:
        """Wait for its end, and have a spare stand by from a little later on."""
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait([ended], timeout=SPARE_AFTER_S)
            if not ended.done() and self.spare is None and (program := self.program(Start.SPARE)) is not None:
                self.spare = await self.nursery.start(program)
            return await ended
        finally:
            ended.cancel()

    async def _successor(self, what: str, deaths: int) -> Process:
        """Return the process that goes on, after a pause if need be."""
        spare, self.spare = self.spare, None
        if spare is not None and spare.is_running:
            pause_s = backoff_s(deaths - 1)
            when = f" in {pause_s:g} s" if pause_s else ""
            self.nursery.output.say(f"{what}; its spare takes over{when}", is_warning=True)
            self.process = spare
            await asyncio.sleep(pause_s)
            spare.begin()
            return spare
        pause_s = backoff_s(deaths)
        self.nursery.output.say(f"{what}; starting it again in {pause_s:g} s", is_warning=True)
        await asyncio.sleep(pause_s)
        if self.prepare is not None:
            await self.prepare()
        return await self._start(Start.AGAIN)

    async def _start(self, start: Start) -> Process:
        program = self.program(start)
        assert program is not None, "only a spare may be none"
        return await self.nursery.start(program)
