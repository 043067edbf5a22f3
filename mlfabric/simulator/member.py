"""What all simulated members are: a process with a session, and the loop around its state machine.

The loop is as ``mlfabric/shell/driving.py`` is around a real one; what is told to nobody alive is not taken in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from mlfabric.model.specs import NO_TERM, Member, Role, Term
from mlfabric.protocol import Instruction, MemberEvent, MemberJoined, MonitorAt, Refuse, Tick, Welcome
from mlfabric.simulator.process_states import Process
from mlfabric.simulator.session import Session
from mlfabric.simulator.surroundings import Surroundings
from mlfabric.simulator.world import Timer

__all__ = ["SimulatedMember"]


class SimulatedMember(ABC):
    """One process of a member.

    Attributes:
        state: its state machine, which is checked after each event.
        doing: what carries out each kind of action.
    """

    state: Any

    def __init__(self, around: Surroundings, name: str, incarnation: int, address: str, process: Process) -> None:
        self.name = name
        self.incarnation = incarnation
        self.address = address
        self.session = Session(around.world, around.scheduler, name, process, self)
        self._around = around
        self._world = around.world
        self._doing: dict[type, Callable[[Any], object]] = {}
        self._queue: deque[object] = deque()
        self._is_draining = False
        self._timer: Timer | None = None

    @property
    def process(self) -> Process:
        """Return its process."""
        return self.session.process

    @property
    def is_alive(self) -> bool:
        """Tell whether its process runs."""
        return self.session.is_alive

    @property
    def host(self) -> str:
        """Return where it is."""
        return self.process.host

    # The session

    @abstractmethod
    def joining(self) -> MemberJoined:
        """Return how it registers."""

    @abstractmethod
    def admitted(self, welcome: Welcome) -> Iterable[MemberEvent]:
        """Begin under a scheduler; return what it announces."""

    def instructed(self, instruction: Instruction) -> None:
        """Take in an instruction."""
        if not isinstance(instruction, MonitorAt):
            self._take_in(instruction)

    def refused(self, refusal: Refuse) -> bool:
        """Tell whether it tries again."""
        return True

    def _member(self, role: Role, bps: int, seen: Term = NO_TERM) -> Member:
        return Member(
            name=self.name,
            role=role,
            incarnation=self.incarnation,
            host=self.host,
            address=self.address,
            up_bps=bps,
            down_bps=bps,
            seen=seen,
        )

    # The state machine

    def _take_in(self, event: object) -> None:
        """Hand an event to the state machine, now or after those that came before, and do what follows."""
        if not self.is_alive:
            return
        self._queue.append(event)
        if self._is_draining:
            return
        self._is_draining = True
        while self._queue:
            taken = self._queue.popleft()
            actions = self.state.handle(taken, self._now_ns())
            self._world.note(f"{self.name} <-", taken, "->", *actions)
            for action in actions:
                self._doing[type(action)](action)
            self.state.validate()
        self._is_draining = False
        self._rested()
        self._set_timer()

    def _rested(self) -> None:
        """Check what must hold when nothing is left to be done."""
        assert not self._queue, f"{self.name} rests, and has not taken in {self._queue}"

    def _now_ns(self) -> int:
        """Return what the process's clock shows."""
        return self._world.now_ns + self.process.ahead_ns

    def _stop_timer(self) -> None:
        """Send no Tick any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self._stop_timer()
        due_ns = self.state.next_wakeup_ns()
        if due_ns is not None:
            delay_ns = max(0, due_ns - self._now_ns())
            self._timer = self._world.later(delay_ns, "tick", self._wake_up, self.process)

    def _wake_up(self) -> None:
        self._timer = None
        self._take_in(Tick())
