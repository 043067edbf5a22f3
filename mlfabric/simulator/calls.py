"""What the two ends of a simulated data connection can do to each other: one method or function for each frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from mlfabric.protocol import GetId, ModelVersion, Outcome, TransferId, UpdateId
from mlfabric.simulator.exact import Image
from mlfabric.simulator.lines import Connection
from mlfabric.simulator.processes import Process
from mlfabric.values import dataclass

__all__ = ["Book", "Caller", "Receiver"]


def _unexpected(*frame: Any) -> NoReturn:
    raise AssertionError(f"a frame came that was not asked for: {frame}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What the end that opened a connection does on each frame.

    Args:
        process: that opened it.
        refused: this transfer will not be.
        granted: its bytes may come.
        answered: what became of the updates in its transfer.
        chunks: in how many a model is sent to it.
        comes: a model of this version begins to arrive.
        payload: a chunk of the model.
    """

    process: Process
    refused: Callable[[str], None]
    granted: Callable[[], None] = _unexpected
    answered: Callable[[dict[UpdateId, Outcome]], None] = _unexpected
    chunks: int = 1
    comes: Callable[[ModelVersion], None] = _unexpected
    payload: Callable[[int, Image | None], None] = _unexpected


class Receiver(Protocol):
    """The end that is connected to: a server or an aggregator.

    Attributes:
        name: of the member.
        host: where it is.
        is_alive: whether its process runs.
        chunks: in how many it takes what is sent to it.
    """

    name: str
    host: str
    chunks: int

    @property
    def is_alive(self) -> bool:
        """Tell whether its process runs."""
        ...

    def connect(self, name: str, caller: Caller, broke: Callable[[], None]) -> Connection:
        """Open a connection."""
        ...

    def offered(
        self, number: int, transfer: TransferId, ticket: bytes, length: int, digest: int, whole: dict[int, Image | None]
    ) -> None:
        """Read an OFFER frame; ``whole`` are the chunks of what is so small that it comes with its offer."""
        ...

    def payload(self, number: int, place: int, chunk: Image | None) -> None:
        """Read a chunk of a payload."""
        ...

    def sealed(self, number: int) -> None:
        """Read the seal of a payload."""
        ...

    def taken_back(self, number: int) -> None:
        """Read a REFUSE frame: the sender takes its payload back."""
        ...

    def wanted(self, number: int, get: GetId, ticket: bytes) -> None:
        """Read a WANT frame."""
        ...


class Book:
    """Who answers at which address: a process that is gone does not."""

    def __init__(self) -> None:
        self._receivers: dict[str, Receiver] = {}

    def add(self, address: str, receiver: Receiver) -> None:
        """Enter a new process."""
        assert address not in self._receivers, f"{address} was given twice"
        self._receivers[address] = receiver

    def find(self, address: str) -> Receiver | None:
        """Return who answers."""
        receiver = self._receivers.get(address)
        return receiver if receiver is not None and receiver.is_alive else None
