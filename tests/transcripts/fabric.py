"""A small simulated fabric in which nothing is drawn: messages and steps take as long as they take, faults are told.

Each worker makes so many updates as ``calm_updates`` says. Worker 1 computes a tenth longer than worker 0, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

from mlfabric.simulator.config import SimulationConfig
from mlfabric.simulator.fabric import Fabric
from mlfabric.simulator.process_states import NATURE
from mlfabric.simulator.world import World
from tests.transcripts.transcript import MACHINES, Transcript

__all__ = ["MS", "StillFabric", "nothing_drawn"]

MS = 1_000_000
MOST_EVENTS = 5_000


class StillFabric:
    """The fabric, and what befalls it."""

    def __init__(self, transcript: Transcript, **fields) -> None:
        usual = {"seed": 0, "workers": 2, "in_flight": 1, "latency_ns": MS, "notice_ns": 5 * MS}
        self.fabric = Fabric(SimulationConfig(**(usual | fields)))
        self.world = self.fabric.world
        self.world.is_stormy = False
        self._transcript = transcript

    def show(self, ms: float, *machines: type) -> StillFabric:
        """Let the transcript tell of these machines, all of them if none is given, from so many milliseconds on."""
        show = partial(self._transcript.show, *(machines or MACHINES))
        self.world.later(round(ms * MS), "is shown", show, NATURE)
        return self

    def at(self, ms: float, what: str, action: Callable[[], None]) -> None:
        """Let something happen so many milliseconds after the beginning."""

        def happen() -> None:
            self._transcript.say(what)
            action()

        self.world.later(round(ms * MS), what, happen, NATURE)

    def play(self) -> None:
        """Let everybody join, and all happen that follows."""
        fabric = self.fabric
        for server in fabric.servers.values():
            server.session.join()
        for aggregator in fabric.aggregators:
            aggregator.session.join()
        fabric.followers.start()
        for worker in fabric.workers:
            self.world.later(5 * MS, "starts", worker.start, worker.process)
        self.world.play(MOST_EVENTS)
        assert not self.world.step(), f"something still happens after {MOST_EVENTS} events"


def _pause_ns(world: World, mean_ns: int) -> int:
    number = world.running.name.rpartition("-")[2]
    return mean_ns + (mean_ns // 10 * int(number) if number.isdigit() else 0)


@contextmanager
def nothing_drawn() -> Iterator[None]:
    """Let every pause, and every message, of all fabrics take as long as is usual."""
    with patch.multiple(World, pause_ns=_pause_ns, latency_ns=lambda world: world.config.latency_ns):
        yield
