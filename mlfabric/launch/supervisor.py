"""Keeps a service running: starts it again when it dies, later and later while it keeps dying, and says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from mlfabric.errors import UsageError
from mlfabric.launch.processes import Nursery, Process, Program, ending_text

__all__ = ["EXIT_UNUSABLE", "Supervised", "backoff_s"]

EXIT_UNUSABLE = 2
FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
WELL_AFTER_S = 30.0


def backoff_s(deaths_in_a_row: int) -> float:
    """Return how long to wait before the next start, after so many deaths (>= 1) without a good run between them."""
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** (deaths_in_a_row - 1))


@dataclass(slots=True)
class Supervised:
    """One service under supervision.

    Args:
        nursery: starts it.
        program: given whether it is the first start, what to start.
    """

    nursery: Nursery
    program: Callable[[bool], Program]
    process: Process | None = None

    async def keep(self) -> None:
        """Run it, again and again, until cancelled.

        Raises:
            UsageError: it cannot use its settings (code 2), so that another start would be in vain.
        """
        deaths = 0
        first = True
        while True:
            program = self.program(first)
            started_s = time.monotonic()
            self.process = await self.nursery.start(program)
            returncode = await self.process.wait()
            first = False
            if returncode == EXIT_UNUSABLE:
                raise UsageError(f"{program.name} cannot run with these settings; its own message is above")
            deaths = 1 if time.monotonic() - started_s >= WELL_AFTER_S else deaths + 1
            self.nursery.output.say(
                f"{program.name} {ending_text(returncode)}; starting it again in {backoff_s(deaths):g} s"
            )
            await asyncio.sleep(backoff_s(deaths))
