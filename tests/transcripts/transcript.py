"""What state machines are handed and what they answer, line by line.

Each event has a line ``TIME  MACHINE <- EVENT``, in milliseconds, and each instruction or action that follows has one
below it, ``-> ...``. A line that begins with ``===`` says what befalls the fabric. How values are told: ``words.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from mlfabric.aggregator.state import AggregatorState
from mlfabric.protocol import Tick
from mlfabric.scheduler.state import SchedulerState
from mlfabric.server.replica_state import ReplicaState
from mlfabric.server.state import ServerState
from mlfabric.worker_daemon.state import DaemonState
from tests.transcripts.words import Words

__all__ = ["MACHINES", "Transcript", "recorded"]

MACHINES: dict[type, Callable[[Any], str]] = {
    SchedulerState: lambda state: "scheduler",
    ServerState: lambda state: state.config.name,
    ReplicaState: lambda state: state.name,
    AggregatorState: lambda state: state.name,
    DaemonState: lambda state: state.worker,
}
"""The state machines, and what each is called."""


class Transcript:
    """The lines of one scene; nothing is told before somebody is shown."""

    def __init__(self) -> None:
        self._shown: tuple[type, ...] = ()
        self._lines: list[str] = []
        self._words = Words()

    @property
    def text(self) -> str:
        """Return all lines."""
        return "".join(f"{line}\n" for line in self._lines)

    def show(self, *machines: type) -> None:
        """Tell of these machines from now on."""
        self._shown = machines

    def say(self, line: str) -> None:
        """Tell what befalls the fabric."""
        self._lines.append(f"=== {line}")

    def step(self, state: Any, event: object, now_ns: int, answers: list[Any]) -> None:
        """Tell an event and what follows it; a tick that nothing follows is not worth a line."""
        kind = type(state)
        if kind in self._shown and (answers or not isinstance(event, Tick)):
            self._lines.append(f"{now_ns / 1e6:9.3f}  {MACHINES[kind](state)} <- {self._words.tell(event)}")
            self._lines += [f"{'':11}-> {_receiver(answer)}{self._words.tell(answer)}" for answer in answers]


def _receiver(answer: object) -> str:
    return f"{answer.to}: " if hasattr(answer, "to") else ""


@contextmanager
def recorded() -> Iterator[Transcript]:
    """Write down what state machines are handed meanwhile, and what they answer."""
    transcript = Transcript()
    with ExitStack() as stack:
        for machine in MACHINES:
            stack.enter_context(patch.object(machine, "handle", _writing(transcript, machine)))
        yield transcript


def _writing(transcript: Transcript, machine: Any) -> Callable[[Any, object, int], list[Any]]:
    handle = machine.handle

    def handle_and_write(state: Any, event: object, now_ns: int) -> list[Any]:
        answers: list[Any] = handle(state, event, now_ns)
        transcript.step(state, event, now_ns, answers)
        return answers

    return handle_and_write
