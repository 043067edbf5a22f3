"""What takes part in the steps of a worker without a server, beside ``RoundSteps``: what is trained, a daemon, waits.

And what these tell each other: gradients that were offered, and what became of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from mlfabric.worker_daemon.attempts import GradientGrowth, ReduceBuffers
from mlfabric.worker_daemon.contributions import Contribution
from mlfabric.worker_daemon.round_actions import PassOver
from mlfabric.worker_daemon.round_inbox import RoundResult

__all__ = ["Answer", "Daemon", "Offered", "RoundOutcome", "RoundTally", "Trained", "Waits"]

T = TypeVar("T")
Known_co = TypeVar("Known_co", covariant=True)
G = TypeVar("G")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """What became of a step's gradient.

    Args:
        included: it is in a round.
        version: how many rounds the model has applied now.
        workers: how many contributed to the round that it is in; 0 if it is in none.
        delay: how many rounds were settled between the model that it was computed from and its own.
        reason: why it is not in a round; "" if it is.
    """

    included: bool
    version: int
    workers: int
    delay: int
    reason: str = ""


@dataclass(slots=True)
class RoundTally:
    """How many of this worker's gradients were in a round, were kept for the next one, or dropped."""

    included: int = 0
    kept: int = 0
    dropped: int = 0


class Answer(Protocol[Known_co]):
    """What will be known some day: a future of a thread or of an event loop."""

    def done(self) -> bool:
        """Tell whether it is known."""

    def result(self) -> Known_co:
        """Return it; of a thread's, wait for it."""

    def add_done_callback(self, told: Callable[[Any], object], /) -> None:
        """Call this once it is known."""


class Offered(NamedTuple, Generic[G]):
    """Gradients that were offered: from which version the newest is, and what will become of them.

    ``gathered`` is their sum; ``contribution`` has the bytes that leave, and says how many they are.
    """

    gathered: G
    computed_from: int
    contribution: Contribution
    outcome: Answer[RoundResult | PassOver]

    @property
    def buffers(self) -> ReduceBuffers:
        """The bytes that leave, and memory for the round's result."""
        return self.contribution.buffers

    @property
    def updates(self) -> int:
        """How many they are."""
        return self.contribution.updates


class Trained(Protocol[G]):
    """What a worker trains; G is memory for the sum of its gradients."""

    @property
    def size_bytes(self) -> int:
        """Size of what travels."""

    @property
    def dtype(self) -> str:
        """Of its elements, as in a layout."""

    def empty(self) -> G:
        """Return memory for gradients."""

    def bytes_of(self, gathered: G) -> memoryview:
        """Return the bytes that travel."""

    def add_earlier(self, gathered: G, earlier: G) -> None:
        """Add to gradients those of earlier steps."""

    def rates(self) -> tuple[float, ...]:
        """Return the numbers of the optimizer as they are now."""

    def apply(self, result: RoundResult, total: memoryview) -> None:
        """Make a step with a round's sum; its bytes are as those of gradients."""

    def write(self) -> memoryview:
        """Return weights and optimizer state; called in any thread."""

    def read(self, image: memoryview) -> None:
        """Install what a peer's ``write`` has returned."""

    def included(self, offered: Offered[G], outcome: RoundOutcome) -> None:
        """Take the news that gradients are in a round."""

    def dropped(self, gathered: G) -> None:
        """Take the news that gradients are in no round and never will be."""


class Daemon(Protocol):
    """What carries out what is asked for; see ``WorkerDaemon``."""

    def offer(self, contribution: Contribution, /) -> Answer[RoundResult | PassOver]:
        """Offer gradients for a round."""

    def withdraw(self, growth: GradientGrowth, reason: str, /) -> None:
        """Have gradients that are offered while they are made be in no round."""

    def applied(self, version: int, /) -> None:
        """Say that all rounds up to this version are applied."""


class Waits(Protocol):
    """How a worker waits; ``wake`` may be called in any thread."""

    def wake(self) -> None:
        """End the wait for news, or the next one."""

    async def news(self) -> None:
        """Wait until ``wake`` was called since the last wait."""

    async def known(self, answer: Answer[T]) -> T:
        """Wait for an answer."""

    async def crossing(self) -> None:
        """Let the time pass that news takes from one thread to another."""
