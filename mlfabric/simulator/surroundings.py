"""What all members of a simulated fabric share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlfabric.simulator.link_sharing import Flows
from mlfabric.simulator.scheduler import SimulatedScheduler
from mlfabric.simulator.witness import Witness
from mlfabric.simulator.world import World
from mlfabric.values import dataclass

if TYPE_CHECKING:
    from mlfabric.simulator.receiving import Receiver

__all__ = ["Book", "Surroundings"]


class Book:
    """Who answers at which address: a process that is gone does not."""

    def __init__(self) -> None:
        self._receivers: dict[str, Receiver[Any]] = {}

    def add(self, address: str, receiver: Receiver[Any]) -> None:
        """Enter a new process."""
        assert address not in self._receivers, f"{address} was given twice"
        self._receivers[address] = receiver

    def find(self, address: str) -> Receiver[Any] | None:
        """Return who answers."""
        receiver = self._receivers.get(address)
        return receiver if receiver is not None and receiver.is_alive else None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The world, what its links carry, the scheduler, the witness, and who answers where."""

    world: World
    flows: Flows
    scheduler: SimulatedScheduler
    witness: Witness
    book: Book
