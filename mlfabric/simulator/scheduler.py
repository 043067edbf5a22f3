"""The simulated shell of the scheduler: seats, streams, the clock. Does what ``scheduler/service.py`` does."""

from __future__ import annotations

from functools import partial

from mlfabric.model.specs import Term
from mlfabric.protocol import (
    Instruction,
    MemberEvent,
    MemberSilent,
    Refuse,
    Tick,
    Welcome,
)
from mlfabric.scheduler.context import SchedulerConfig
from mlfabric.scheduler.state import SchedulerState
from mlfabric.simulator.process_states import Process
from mlfabric.simulator.session import Session
from mlfabric.simulator.simulated_connections import End, Stream
from mlfabric.simulator.witness import Witness
from mlfabric.simulator.world import Timer, World

__all__ = ["SimulatedScheduler"]

DOWN_NS = 50_000_000
MOST_TICKS_AT_ONCE = 100


class SimulatedScheduler:
    """One scheduler, and those that come after it under newer terms."""

    def __init__(self, world: World, witness: Witness) -> None:
        self.term = 1
        self.process = world.process("scheduler", "host of scheduler")
        self.state = self._new_state(world)
        self._world = world
        self._witness = witness
        witness.term_begins(self.term)
        self._seats: dict[str, tuple[Stream, int, Session]] = {}
        self._timer: Timer | None = None
        self._is_up = True

    @property
    def now_ns(self) -> int:
        """Return what the scheduler's clock shows."""
        return self._world.now_ns + self.process.ahead_ns

    def _new_state(self, world: World) -> SchedulerState:
        config = SchedulerConfig(
            term=Term(self.term, 0),
            ticket_secret=f"secret of term {self.term}".encode(),
            batch_window_ns=world.config.batch_window_ns,
            silence_ns=world.config.silence_ns,
            default_bps=world.config.link_bps,
        )
        return SchedulerState(config)

    def restart(self) -> None:
        """Die with everything in memory, and come back after a while under a newer term."""
        if not self._is_up:
            return
        self._is_up = False
        self._world.go_on(self.process)
        for stream, _, _ in self._seats.values():
            stream.close(End.FAR)
        self._seats.clear()
        self._world.later(self._world.pause_ns(DOWN_NS), "the scheduler comes back", self._come_back)

    def _come_back(self) -> None:
        if self._world.has_full_disk(self.process.host):  # a term that cannot be written down is none
            self._world.later(DOWN_NS, "the scheduler is started again", self._come_back)
            return
        self.term += 1
        self._witness.term_begins(self.term)
        self.state = self._new_state(self._world)
        self._is_up = True

    # Members

    def register(self, session: Session) -> None:
        """Admit or refuse a member."""
        if not self._is_up:
            session.join_later()
            return
        event = session.member.joining()
        name, incarnation = session.name, event.member.incarnation
        stream = Stream(
            self._world,
            f"{name}~",
            lambda end: self._broke(session, stream, incarnation, end),
            session.process,
            self.process,
        )
        former = self._seats.get(name)
        self._seats[name] = (stream, incarnation, session)
        instructions = self._handle(event)
        answer = next(i for i in instructions if isinstance(i, (Welcome, Refuse)))
        if isinstance(answer, Refuse):
            del self._seats[name]
            if former is not None:
                self._seats[name] = former
            self._world.later(
                self._world.latency_ns(), f"{name} refused", lambda: session.refused(answer), session.process
            )
            self._post(instructions)
            self._settle()
            return
        if former is not None:
            former[0].close(End.FAR)
        session.opened = stream
        stream.send(End.NEAR, "welcome", lambda: session.welcomed(stream, answer))
        self._post(instructions)
        self._settle()

    def _broke(self, session: Session, stream: Stream, incarnation: int, end: End) -> None:
        if end is End.NEAR:
            session.lost(stream)
            return
        seat = self._seats.get(session.name)
        if seat is not None and seat[0] is stream:
            del self._seats[session.name]
            self.take_in(MemberSilent(name=session.name, incarnation=incarnation))

    def unanswered(self, process: Process) -> None:
        """Give up a member whose process has not answered a ping for long, though its stream stands."""
        for name, (stream, incarnation, session) in list(self._seats.items()):
            if session.process is process and process.is_stopped:
                stream.close(End.FAR)
                del self._seats[name]
                self.take_in(MemberSilent(name=name, incarnation=incarnation))

    def hear(self, name: str, stream: Stream, event: MemberEvent) -> None:
        """Take in an event that came over a stream."""
        seat = self._seats.get(name)
        if seat is not None and seat[0] is stream:
            self.take_in(event)

    # Events in, instructions out

    def take_in(self, event: MemberEvent) -> None:
        """Hand an event to the state machine, pass on what follows, plan."""
        if self._is_up:
            self._post(self._handle(event))
            self._settle()

    def _handle(self, event: MemberEvent) -> list[Instruction]:
        instructions = self.state.handle(event, self.now_ns)
        self._world.note("scheduler <-", event, "->", *instructions)
        self.state.validate()
        self._witness.heard(self.state, event, instructions)
        return instructions

    def _post(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            seat = self._seats.get(instruction.to)
            if seat is not None and not isinstance(instruction, (Welcome, Refuse)):
                stream, _, session = seat
                stream.tell(End.NEAR, type(instruction).__name__, partial(session.instructed, instruction))

    def _settle(self) -> None:
        """Tick while the state machine is due, and set the timer for when it will be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ns = self.now_ns
        for _ in range(MOST_TICKS_AT_ONCE):
            due_ns = self.state.next_wakeup_ns(now_ns)
            if due_ns is None:
                break
            if due_ns > now_ns:
                self._timer = self._world.later(due_ns - now_ns, "scheduler tick", self._wake_up, self.process)
                break
            self._post(self._handle(Tick()))
        else:
            raise AssertionError(f"the scheduler is due again and again at {due_ns}: it would never rest")
        self._witness.rested(self.state, now_ns)

    def _wake_up(self) -> None:
        self._timer = None
        self.take_in(Tick())
