"""The world that all simulated parts share: a virtual clock, its queue of events, chance, and the story so far.

Time is integer nanoseconds. Events of one instant happen in the order in which they were put into the queue, so a run
follows from its seed alone. An event belongs to a process, that which put it into the queue unless another is given;
what belongs to a process that is stopped waits until that goes on.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import log
from typing import TYPE_CHECKING

from mlfabric.simulator.config import SimulationConfig
from mlfabric.simulator.cuts import Cuts
from mlfabric.simulator.process_states import NATURE, Process

if TYPE_CHECKING:
    from mlfabric.simulator.simulated_connections import Line

__all__ = ["STORY_LINES", "Timer", "World"]

STORY_LINES = 60
NEVER_NS = 1 << 60


class Timer:
    """Something that will happen, unless it is called off; ``process`` takes it in; ``what`` says it in a word."""

    __slots__ = ("action", "process", "what")

    def __init__(self, what: str, action: Callable[[], None], process: Process) -> None:
        self.what = what
        self.action: Callable[[], None] | None = action
        self.process = process

    def cancel(self) -> None:
        """Call it off."""
        self.action = None


class World:
    """Clock, queue, chance and story."""

    def __init__(self, config: SimulationConfig, story_lines: int = STORY_LINES) -> None:
        self.config = config
        self.rng = random.Random(config.seed)
        self._clocks = random.Random(f"clocks {config.seed}")
        self.now_ns = 1_000_000_000
        self.is_stormy = True
        self.counts: Counter[str] = Counter()
        self.digest = 0
        self.cuts = Cuts()
        self.full_until_ns: dict[str, int] = {}
        self.lines: dict[Line, None] = {}
        self._running = NATURE
        self._queue: list[tuple[int, int, Timer]] = []
        self._count = 0
        self._story: deque[tuple[int, str, tuple[object, ...]]] = deque(maxlen=story_lines)

    # Time

    @property
    def running(self) -> Process:
        """The process whose event happens now."""
        return self._running

    def later(self, delay_ns: int, what: str, action: Callable[[], None], process: Process | None = None) -> Timer:
        """Let something happen after a while, to the process that runs now unless another is given."""
        assert delay_ns >= 0, f"{what} {delay_ns} ns from now"
        timer = Timer(what, action, process or self._running)
        self._count += 1
        heappush(self._queue, (self.now_ns + delay_ns, self._count, timer))
        return timer

    def step(self) -> bool:
        """Let the next thing happen; return False if there is nothing left."""
        return self.play(1) == 1

    def play(self, events: int) -> int:
        """Let the next things happen, one after the other; return how many, fewer if there is nothing left."""
        queue, taken = self._queue, 0
        while queue and taken < events:
            at_ns, number, timer = heappop(queue)
            action = timer.action
            if action is None:
                continue
            process = timer.process
            if process.kept is not None:
                process.kept.append(timer)
                continue
            self.now_ns, self._running = at_ns, process
            self.digest = hash((self.digest, at_ns, number))
            action()
            taken += 1
        return taken

    # Processes

    def process(self, name: str, host: str) -> Process:
        """Start a process; the clocks of hosts differ, and a host's may have been set since it ran there before.

        What they show comes from chance of its own, so a run goes the same way whatever it is.
        """
        return Process(name, host, self._clocks.randrange(self.config.skew_ns + 1))

    def stop(self, process: Process) -> None:
        """Let a process take nothing in until it goes on."""
        if process.kept is None:
            process.kept = []

    def go_on(self, process: Process) -> None:
        """Let a process that was stopped take in what came meanwhile."""
        kept, process.kept = process.kept, None
        for timer in kept or ():
            self._count += 1
            heappush(self._queue, (self.now_ns, self._count, timer))

    def lines_across(self, one: str, other: str) -> list[Line]:
        """Return the lines between two hosts that are open."""
        return [line for line in self.lines if set(line.hosts) == {one, other}]

    def has_full_disk(self, host: str) -> bool:
        """Tell whether nothing can be written at a host at present."""
        return self.full_until_ns.get(host, 0) > self.now_ns

    # Chance

    def chance(self, share: float) -> bool:
        """Decide whether something goes wrong that does so with this probability; never once the storm is over."""
        return self.is_stormy and share > 0 and self.rng.random() < share

    def pause_ns(self, mean_ns: int) -> int:
        """Draw a duration: exponential with this mean, at most ten times as long."""
        drawn_ns = round(-log(1.0 - self.rng.random()) * mean_ns)
        return drawn_ns if drawn_ns <= 10 * mean_ns else 10 * mean_ns

    def gap_ns(self, hz: float) -> int:
        """Draw the time until something happens next that happens so often; never, if it does not."""
        return round(self.rng.expovariate(hz) * 1e9) if hz > 0 else NEVER_NS

    def latency_ns(self) -> int:
        """Draw how long a message takes."""
        config = self.config
        usual_ns = self.pause_ns(config.latency_ns)
        return usual_ns * self.rng.randrange(10, 100) if self.chance(config.faults.late) else usual_ns

    # Story

    def note(self, words: str, *details: object) -> None:
        """Add a line to the story; it is put into words only if somebody wants to read it."""
        self._story.append((self.now_ns, words, details))

    def fault(self, kind: str, *details: object) -> None:
        """Note and count something that went wrong."""
        self.counts[kind] += 1
        self.note("*** " + kind, *details)

    def story(self) -> str:
        """Tell the last events, one a line."""
        return "\n".join(f"{_ms(at_ns):>12} ms  {words} {_told(details)}" for at_ns, words, details in self._story)


def _ms(at_ns: int) -> str:
    """Say a time, also one that is beyond floats: a run that never gets quiet looks again ever later."""
    return f"{at_ns // 10**6}.{at_ns // 1000 % 1000:03}"


def _told(details: tuple[object, ...]) -> str:
    return " ".join(str(d) for d in details)
