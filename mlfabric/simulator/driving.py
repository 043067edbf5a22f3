"""The loop around a simulated member's state machine, as ``mlfabric/shell/driving.py`` is around a real one's. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mlfabric.protocol import Tick
from mlfabric.simulator.session import Session
from mlfabric.simulator.world import Timer, World

__all__ = ["SimulatedDriver", "StateMachine"]


class StateMachine(Protocol):
    """A member's, of whatever role."""

    def handle(self, event: Any, now_ns: int, /) -> Sequence[Any]:
        """Take in an event and return what follows."""
        ...

    def next_wakeup_ns(self) -> int | None:
        """Return when a Tick is due."""
        ...

    def validate(self) -> None:
        """Check that all of its tables agree."""
        ...


class SimulatedDriver:
    """Hands events to a state machine one after the other, has it checked after each, and sends it a Tick when due.

    Args:
        world: whose clock counts.
        session: of the member; while that does not run, nothing is taken in.
        state: its state machine.
        do: carries out an action.
        rested: called when nothing is left to be done.
    """

    def __init__(
        self,
        world: World,
        session: Session,
        state: StateMachine,
        do: Callable[[Any], None],
        rested: Callable[[], None] = lambda: None,
    ) -> None:
        self._world = world
        self._session = session
        self._state = state
        self._do = do
        self._rested = rested
        self._queue: deque[object] = deque()
        self._is_draining = False
        self._timer: Timer | None = None

    def take_in(self, event: object) -> None:
        """Take in an event, now or after those that came before."""
        if not self._session.is_alive:
            return
        self._queue.append(event)
        if self._is_draining:
            return
        self._is_draining = True
        while self._queue:
            taken = self._queue.popleft()
            actions = self._state.handle(taken, self._now_ns())
            self._world.note(f"{self._session.name} <-", taken, "->", *actions)
            for action in actions:
                self._do(action)
            self._state.validate()
        self._is_draining = False
        self._rested()
        self._set_timer()

    def _now_ns(self) -> int:
        """Return what the process's clock shows."""
        return self._world.now_ns + self._session.process.ahead_ns

    def close(self) -> None:
        """Send no Tick any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self.close()
        due_ns = self._state.next_wakeup_ns()
        if due_ns is not None:
            delay_ns = max(0, due_ns - self._now_ns())
            self._timer = self._world.later(delay_ns, "tick", self._wake_up, self._session.process)

    def _wake_up(self) -> None:
        self._timer = None
        self.take_in(Tick())
