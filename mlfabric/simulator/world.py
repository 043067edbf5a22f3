"""The world that all simulated parts share: a virtual clock, its queue of events, chance, and the story so far.

Time is integer nanoseconds. Events of one instant happen in the order in which they were put into the queue, so a run
follows from its seed alone.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections import Counter, deque
from collections.abc import Callable

from mlfabric.simulator.config import SimulationConfig

__all__ = ["Timer", "World"]

STORY_LINES = 60
NEVER_NS = 1 << 60


class Timer:
    """Something that will happen, unless it is called off."""

    __slots__ = ("action", "what")

    def __init__(self, what: str, action: Callable[[], None]) -> None:
        self.what = what
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Call it off."""
        self.action = None


class World:
    """Clock, queue, chance and story."""

    def __init__(self, config: SimulationConfig) -> None:
        self.config = config
        self.rng = random.Random(config.seed)
        self.now_ns = 1_000_000_000
        self.is_stormy = True
        self.counts: Counter[str] = Counter()
        self.digest = 0
        self._queue: list[tuple[int, int, Timer]] = []
        self._count = 0
        self._story: deque[tuple[int, str, tuple[object, ...]]] = deque(maxlen=STORY_LINES)

    # Time

    def later(self, delay_ns: int, what: str, action: Callable[[], None]) -> Timer:
        """Let something happen after a while."""
        assert delay_ns >= 0, f"{what} {delay_ns} ns from now"
        timer = Timer(what, action)
        self._count += 1
        heapq.heappush(self._queue, (self.now_ns + delay_ns, self._count, timer))
        return timer

    def step(self) -> bool:
        """Let the next thing happen; return False if there is nothing left."""
        while self._queue:
            at_ns, _, timer = heapq.heappop(self._queue)
            if timer.action is None:
                continue
            self.now_ns = at_ns
            self.digest = zlib.crc32(f"{at_ns} {timer.what}".encode(), self.digest)
            timer.action()
            return True
        return False

    # Chance

    def chance(self, share: float) -> bool:
        """Decide whether something goes wrong that does so with this probability; never once the storm is over."""
        return self.is_stormy and share > 0 and self.rng.random() < share

    def pause_ns(self, mean_ns: int) -> int:
        """Draw a duration: exponential with this mean, at most ten times as long."""
        return min(10 * mean_ns, round(self.rng.expovariate(1.0) * mean_ns))

    def gap_ns(self, hz: float) -> int:
        """Draw the time until something happens next that happens so often; never, if it does not."""
        return round(self.rng.expovariate(hz) * 1e9) if hz > 0 else NEVER_NS

    def latency_ns(self) -> int:
        """Draw how long a message takes."""
        usual_ns = self.pause_ns(self.config.latency_ns)
        return usual_ns * self.rng.randrange(10, 100) if self.chance(self.config.faults.late) else usual_ns

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
