"""What a server begins with that was a replica until now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlfabric.channels import TcpChannel
from mlfabric.model.specs import Term
from mlfabric.protocol import GroupOf, ServerHolds
from mlfabric.server.store import ModelStore

__all__ = ["Inheritance"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Inheritance:
    """A replica's models, and its place in the network.

    Args:
        replica: its name.
        token: returns what shows the scheduler that the replica speaks.
        seen: the scheduler that told it to take its primary's place.
        held: what it holds of each model, and the store.
        made: what it has made since the end of its primary's log, for its own.
        channel, address: where it listens; the server closes the channel in the end if it was admitted.
        admitted: called when the scheduler has admitted the server.
    """

    replica: str
    token: Callable[[], bytes]
    seen: Term
    held: tuple[tuple[ServerHolds, ModelStore], ...]
    made: tuple[GroupOf, ...]
    channel: TcpChannel
    address: str
    admitted: Callable[[], None]
