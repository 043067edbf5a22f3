"""A simulated member's side of its session: joins, keeps the stream, joins again when it breaks.

Does what ``mlfabric.shell.session`` does: what is sent while there is no stream is forgotten, because after each
admission the member announces what it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlfabric.protocol import Instruction, MemberEvent, MemberLeft, Refuse, Welcome
from mlfabric.simulator.process_states import Process
from mlfabric.simulator.simulated_connections import End, Stream
from mlfabric.simulator.world import World

if TYPE_CHECKING:
    from mlfabric.simulator.member import SimulatedMember
    from mlfabric.simulator.scheduler import SimulatedScheduler

__all__ = ["Session"]

RETRY_NS = 20_000_000
AWAY_NS = 1_000_000_000


class Session:
    """One process's session with the scheduler; ``opened`` is a stream over which no admission has come yet."""

    def __init__(
        self, world: World, scheduler: SimulatedScheduler, name: str, process: Process, member: SimulatedMember
    ) -> None:
        self.name = name
        self.process = process
        self.member = member
        self.stream: Stream | None = None
        self.opened: Stream | None = None
        self.is_alive = True
        self._world = world
        self._scheduler = scheduler

    def join(self) -> None:
        """Register; the answer comes over the stream."""
        to = self._scheduler.process
        held_ns = self._world.cuts.held_ns(self.process.host, to.host, self._world.now_ns)
        self._world.later(held_ns + self._world.latency_ns(), "registers", self._arrive, to)

    def _arrive(self) -> None:
        if self.is_alive:
            self._scheduler.register(self)

    def join_later(self) -> None:
        """Register again after a pause."""
        usual_ns = AWAY_NS if self._world.chance(self._world.config.faults.away) else RETRY_NS
        self._world.later(self._world.pause_ns(usual_ns), "tries again", self.join, self.process)

    def refused(self, refusal: Refuse) -> None:
        """Take a refusal; whoever started this process will try again, unless that is hopeless."""
        self._world.note(f"{self.name} was refused:", refusal.reason)
        if self.is_alive and self.member.refused(refusal):
            self.join_later()

    def welcomed(self, stream: Stream, welcome: Welcome) -> None:
        """Take an admission and announce what is held."""
        if not self.is_alive:
            stream.close(End.NEAR)
            return
        self._world.note(f"{self.name} joined term {welcome.term}")
        held = list(self.member.admitted(welcome))
        self.stream, self.opened = stream, None
        for event in held:
            self.send(event)

    def instructed(self, instruction: Instruction) -> None:
        """Take an instruction."""
        if self.is_alive:
            self.member.instructed(instruction)

    def send(self, event: MemberEvent) -> None:
        """Send an event in order; without a stream it is forgotten."""
        stream = self.stream
        if stream is not None:
            what = type(event).__name__
            stream.tell(End.FAR, what, lambda: self._scheduler.hear(self.name, stream, event))

    def lost(self, stream: Stream) -> None:
        """Note that the stream broke, and join again; streams of before do not matter any more."""
        if stream in (self.stream, self.opened):
            self.stream = self.opened = None
            if self.is_alive:
                self.join_later()

    def leave(self, incarnation: int) -> None:
        """Say good-bye and end."""
        self.is_alive = False
        stream, self.stream = self.stream, None
        if stream is not None:
            event = MemberLeft(name=self.name, incarnation=incarnation)
            stream.send(End.FAR, "good-bye", lambda: self._scheduler.hear(self.name, stream, event))
            stream.send(End.FAR, "end", lambda: stream.close(End.NEAR))

    def die(self) -> None:
        """End with the process: the scheduler will notice."""
        self.is_alive = False
        if self.stream is not None:
            self.stream.close(End.NEAR)
            self.stream = None
