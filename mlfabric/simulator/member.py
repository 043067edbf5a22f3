"""What all simulated members are: a process with a session, and a state machine in its loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from mlfabric.model.specs import NO_TERM, Member, Role, Term
from mlfabric.protocol import Instruction, MemberEvent, MemberJoined, MonitorAt, Refuse, Welcome
from mlfabric.simulator.driving import SimulatedDriver, StateMachine
from mlfabric.simulator.processes import Process
from mlfabric.simulator.session import Session
from mlfabric.simulator.surroundings import Surroundings

__all__ = ["SimulatedMember"]


class SimulatedMember(ABC):
    """One process of a member."""

    def __init__(self, around: Surroundings, name: str, incarnation: int, address: str, process: Process) -> None:
        self.name = name
        self.incarnation = incarnation
        self.address = address
        self.session = Session(around.world, around.scheduler, name, process, self)
        self._around = around
        self._world = around.world

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

    def _drive(self, state: StateMachine, do: Callable[[Any], None], rested: Callable[[], None] = lambda: None) -> None:
        self._driver = SimulatedDriver(self._world, self.session, state, do, rested)

    def _take_in(self, event: object) -> None:
        """Hand an event to the state machine and do what follows."""
        self._driver.take_in(event)
