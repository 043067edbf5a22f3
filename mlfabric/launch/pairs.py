"""A server and its replica under supervision: either process may be either, as the one takes the other's place.

A process of the two that died is started as a replica if somebody serves, or is about to: the other one, which was a
replica and has taken its place. Only if nobody does it is started as the server again, from its checkpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

__all__ = ["Pair"]

PATIENCE_S = 2.5
"""Longer than a replica is waited for to take its server's place, from when the scheduler says that nobody serves."""
LOOK_S = 0.1


@dataclass(slots=True)
class Pair:
    """What the two processes of a pair are; each has a number, 0 and 1.

    Args:
        serves: asks the scheduler whether there is the server; None if that does not answer.
        runs: tells of a process, by its number, whether it has not ended.
    """

    serves: Callable[[], Awaitable[bool | None]]
    runs: Callable[[int], bool]
    _is_replica: list[bool] = field(default_factory=lambda: [False, True])

    def is_replica(self, number: int) -> bool:
        """Tell whether a process is to be started as a replica."""
        return self._is_replica[number]

    async def prepare(self, number: int) -> None:
        """Settle what a process that died is started as."""
        other = 1 - number
        was_replica, self._is_replica[number] = self._is_replica[number], True
        waited_s = 0.0
        while (serves := await self.serves()) is not True:
            if self.runs(other):
                is_vacant = serves is False and self._is_replica[other] and waited_s >= PATIENCE_S
            else:  # it is started anew as well
                is_vacant = self._is_replica[other] and (number == 0 or not was_replica)
            if is_vacant:
                self._is_replica[number] = False
                return
            await asyncio.sleep(LOOK_S)
            waited_s += LOOK_S if serves is False else 0.0
