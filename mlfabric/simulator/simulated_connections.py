"""What members of a simulated fabric talk through: control streams and data connections.

Both keep the order of what is sent in one direction, and both can break at any instant: what is on its way is lost, and
each end notices in its own time. Nothing keeps two of them in step. What is said across a partition is held, also that
an end was closed; whether the line breaks before the partition is over is left to chance.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial

from mlfabric.simulator.link_sharing import Flow, Flows
from mlfabric.simulator.process_states import NATURE, Process
from mlfabric.simulator.world import Timer, World

__all__ = ["Connection", "End", "Line", "Stream"]


class End(Enum):
    """One end of a line; a member's is NEAR, the scheduler's or a server's FAR."""

    NEAR = "near"
    FAR = "far"

    __hash__ = object.__hash__  # several times an event; that of Enum is written in Python

    @property
    def other(self) -> End:
        """The other end."""
        return End.FAR if self is End.NEAR else End.NEAR


BOTH = (End.NEAR, End.FAR)


class Line:
    """Ordered messages between two ends until it breaks or is closed."""

    def __init__(self, world: World, name: str, broke: Callable[[End], None], near: Process, far: Process) -> None:
        self.world = world
        self.name = name
        self.is_open = True
        self.ends = {End.NEAR: near, End.FAR: far}
        self._broke = broke
        self._quiet: set[End] = set()
        self._free_ns = {End.NEAR: world.now_ns, End.FAR: world.now_ns}
        world.lines[self] = None

    @property
    def hosts(self) -> tuple[str, str]:
        """Return where its two ends are."""
        return self.ends[End.NEAR].host, self.ends[End.FAR].host

    def send(self, towards: End, what: str, action: Callable[[], None]) -> None:
        """Let ``action`` happen at an end after all that was sent to it before, unless the line breaks first."""
        if not self.is_open:
            return
        world, free_ns = self.world, self._free_ns
        now_ns, latency_ns = world.now_ns, world.latency_ns()
        at_ns = now_ns + latency_ns + (self._held_ns(towards) if world.cuts else 0)
        free_ns[towards] = at_ns = max(free_ns[towards], at_ns)
        deliver = partial(self._deliver, towards, action)
        world.later(at_ns - now_ns, what, deliver, self.ends[towards])

    def _held_ns(self, towards: End) -> int:
        """Return for how long what is said to an end is held by a partition."""
        world = self.world
        return world.cuts.held_ns(self.ends[towards.other].host, self.ends[towards].host, world.now_ns)

    def _deliver(self, towards: End, action: Callable[[], None]) -> None:
        if self.is_open and towards not in self._quiet:
            action()

    def close(self, end: End) -> None:
        """End the line from one end, which hears nothing more; the other end notices as if it broke."""
        self._quiet.add(end)
        self._break_up(self._held_ns(end.other))

    def mute(self, end: End) -> None:
        """Let an end hear nothing more; what it has said arrives."""
        self._quiet.add(end)

    def end(self) -> None:
        """End the line for both ends without a word: it has served its purpose."""
        self.is_open = False
        self.world.lines.pop(self, None)
        self._quiet.update(BOTH)

    def break_up(self) -> None:
        """Break the line; each end that is not quiet notices after a while."""
        self._break_up(0)

    def _break_up(self, held_ns: int) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self.world.lines.pop(self, None)
        for end in BOTH:
            delay_ns = held_ns + self.world.pause_ns(self.world.config.notice_ns)
            self.world.later(delay_ns, "broke", partial(self._notice, end), self.ends[end])

    def _notice(self, end: End) -> None:
        if end not in self._quiet:
            self._quiet.add(end)
            self._broke(end)


class Stream(Line):
    """A member's stream with the scheduler; some messages arrive twice."""

    def tell(self, towards: End, what: str, action: Callable[[], None]) -> None:
        """Send a message, sometimes twice."""
        self.send(towards, what, action)
        if self.world.chance(self.world.config.faults.repeated):
            self.send(towards, what + " (again)", action)


class Connection(Line):
    """One transfer's data connection; ``number`` is the server's name for it."""

    def __init__(
        self,
        world: World,
        flows: Flows,
        number: int,
        name: str,
        broke: Callable[[End], None],
        near: Process,
        far: Process,
    ) -> None:
        super().__init__(world, name, broke, near, far)
        self.number = number
        self._flows = flows
        self._flow: Flow | None = None
        self._doom: Timer | None = None
        if world.is_stormy and world.config.faults.connection_hz > 0:
            gap_ns = world.gap_ns(world.config.faults.connection_hz)
            self._doom = world.later(gap_ns, "fault", self._fault, NATURE)

    def _fault(self) -> None:
        if self.is_open and self.world.is_stormy:
            self.world.fault("connection broke", self.name)
            self.break_up()

    def move(self, towards: End, size_bytes: int, pace_bps: int, done: Callable[[], None]) -> None:
        """Move bytes to an end; ``done`` is called at the sending end when the last one has left."""
        source, destination = self.ends[towards.other].host, self.ends[towards].host
        self._flow = self._flows.start(source, destination, size_bytes, pace_bps, done)

    def _break_up(self, held_ns: int) -> None:
        self._stop()
        super()._break_up(held_ns)

    def end(self) -> None:
        """End the connection for both ends without a word: it has served its purpose."""
        self._stop()
        super().end()

    def _stop(self) -> None:
        if self._flow is not None:
            self._flows.stop(self._flow)
        if self._doom is not None:
            self._doom.cancel()
