"""Offers and wants that came before the scheduler's word about them. Pure.

They may overtake it (two connections, no common order), and wait for it at most ``EARLY_WAIT_NS``; a ticket that the
scheduler never vouches for is refused then. Each is known by its ticket too, so that one with a ticket that was guessed
does not displace the one that is meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from mlfabric.protocol import GetId, TransferId
from mlfabric.server.actions import Offered, Wanted

__all__ = ["EARLY_WAIT_NS", "Early"]

EARLY_WAIT_NS = 5_000_000_000
RequestT = TypeVar("RequestT", Offered, Wanted)


class Early(Generic[RequestT]):
    """Requests of one kind that wait for the scheduler's word."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[TransferId | GetId, bytes], tuple[RequestT, int]] = {}

    def wait(self, request: RequestT, now_ns: int) -> None:
        """Keep one, in the place of one for the same with the same ticket."""
        self._waiting[_what(request), request.ticket] = (request, now_ns + EARLY_WAIT_NS)

    def take(self, what: TransferId | GetId, ticket: bytes) -> RequestT | None:
        """Take out the one that the scheduler has vouched for, if it has come."""
        request, _ = self._waiting.pop((what, ticket), (None, 0))
        return request

    def forget(self, what: TransferId | GetId, connection: int) -> None:
        """Forget those for ``what`` on a connection that has ended."""
        for key in [k for k, (r, _) in self._waiting.items() if k[0] == what and r.connection == connection]:
            del self._waiting[key]

    def next_wakeup_ns(self) -> int | None:
        """Return when one of them has waited long enough, or None."""
        return min((until_ns for _, until_ns in self._waiting.values()), default=None)

    def expire(self, now_ns: int) -> Iterator[RequestT]:
        """Take out those that have waited long enough."""
        for key in [k for k, (_, until_ns) in self._waiting.items() if until_ns <= now_ns]:
            yield self._waiting.pop(key)[0]


def _what(request: Offered | Wanted) -> TransferId | GetId:
    return request.transfer if isinstance(request, Offered) else request.get
