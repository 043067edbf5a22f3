"""What members that take transfers in hear from their data connections, and what they answer. Pure.

Servers, replicas and aggregators share it. Connections that others opened are known here by the number that the shell
gave them; each carries one transfer at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from mlfabric.protocol import GetId, MemberEvent, Outcome, ServerHolds, TransferId, UpdateId
from mlfabric.values import dataclass

__all__ = [
    "EARLY_WAIT_NS",
    "UNCLAIMED_NS",
    "WITH_OFFER_BYTES",
    "Abandon",
    "Answer",
    "Early",
    "GetBroken",
    "GetServed",
    "GetState",
    "LineEvent",
    "Offered",
    "Outcomes",
    "PayloadReceived",
    "Refuse",
    "Report",
    "SeedOffered",
    "TermBegan",
    "TransferBroken",
    "TransferState",
    "Wanted",
]

EARLY_WAIT_NS = 5_000_000_000
UNCLAIMED_NS = 10_000_000_000  # a worker comes for a transfer as soon as it hears of it
WITH_OFFER_BYTES = 16 * 1024
"""A transfer this small travels with its offer: to wait for the grant would cost more than sending it."""

Outcomes = tuple[tuple[UpdateId, Outcome], ...]
"""What became of updates."""


class TransferState(Enum):
    """Where a transfer is."""

    EXPECTED = "expected"
    OFFERED = "offered"
    RECEIVING = "receiving"
    RECEIVED = "received"
    APPLYING = "applying"


class GetState(Enum):
    """Where a get is."""

    PLANNED = "planned"
    WANTED = "wanted"
    SERVING = "serving"


# What happens


@dataclass(frozen=True, slots=True, kw_only=True)
class TermBegan:
    """A scheduler of this term admitted us: whatever an older one planned and nobody started is void.

    Args:
        server_epoch: of a server, as in ``Welcome``.
    """

    term: int
    server_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOffered:
    """What comes with weights and state: what the primary holds at that version, and how many steps ADAM made."""

    holds: ServerHolds
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A worker or an aggregator offers a transfer on connection ``connection``; or a primary a seed to its replica."""

    connection: int
    transfer: TransferId
    ticket: bytes
    length: int
    digest: int
    seed: SeedOffered | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadReceived:
    """All bytes of a transfer are here, and its sender has sealed them."""

    transfer: TransferId
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferBroken:
    """The connection of a transfer broke."""

    transfer: TransferId
    connection: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A worker or an aggregator has a buffer ready for the model on connection ``connection``."""

    connection: int
    get: GetId
    ticket: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GetServed:
    """The model has been sent for this get."""

    get: GetId
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBroken:
    """The connection of a get broke, before or while the model was sent."""

    get: GetId
    connection: int
    detail: str


LineEvent = Offered | PayloadReceived | TransferBroken | Wanted | GetServed | GetBroken


# What follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Refuse what is offered or wanted on this connection; a worker asks the scheduler again."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """Close this connection in the middle of its transfer."""

    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Tell whoever sent a transfer what became of the updates in it."""

    connection: int
    outcomes: Outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Send this event to the scheduler; ``again`` if it was sent before and may have been lost."""

    event: MemberEvent
    again: bool = False


class Early:
    """Offers and wants that came before the scheduler's word about them.

    They may overtake it (two connections, no common order), and wait for it at most ``EARLY_WAIT_NS``; a ticket that
    the scheduler never vouches for is refused then. A connection carries one of them, so one with a ticket that was
    guessed does not displace the one that is meant.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Offered | Wanted, int]] = {}

    def wait(self, request: Offered | Wanted, now_ns: int) -> None:
        """Keep one."""
        self._waiting[request.connection] = (request, now_ns + EARLY_WAIT_NS)

    def take(self, what: TransferId | GetId, ticket: bytes) -> list[Offered | Wanted]:
        """Take out those that the scheduler has vouched for: one that came later is to take the place of one before."""
        found = [r for r, _ in self._waiting.values() if (_what(r), r.ticket) == (what, ticket)]
        for request in found:
            del self._waiting[request.connection]
        return found

    def forget(self, connection: int) -> None:
        """Forget the one on a connection that has ended."""
        self._waiting.pop(connection, None)

    def next_wakeup_ns(self) -> int | None:
        """Return when one of them has waited long enough, or None."""
        return min((until_ns for _, until_ns in self._waiting.values()), default=None)

    def expire(self, now_ns: int) -> Iterator[Refuse]:
        """Refuse those that have waited long enough."""
        for connection in [number for number, (_, until_ns) in self._waiting.items() if until_ns <= now_ns]:
            del self._waiting[connection]
            yield Refuse(connection=connection, reason="the scheduler never announced this ticket")


def _what(request: Offered | Wanted) -> TransferId | GetId:
    return request.transfer if isinstance(request, Offered) else request.get
