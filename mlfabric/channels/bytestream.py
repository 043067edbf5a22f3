"""What a transport gives the frames: ordered bytes in both directions, and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mlfabric.channels.backlog import Path
from mlfabric.channels.limiter import TokenBucket

__all__ = ["MOST_CONNECTIONS", "ByteStream", "Limits"]

MOST_CONNECTIONS = 8192
"""The most connections that others have open to an endpoint, unless configured."""


class ByteStream(Protocol):
    """What a transport gives: ordered bytes in both directions. Failures are ``OSError``."""

    @property
    def peer(self) -> str:
        """Address of the other end."""

    async def write(self, pieces: Sequence[memoryview]) -> None:
        """Write all pieces."""

    def write_now(self, piece: memoryview) -> int:
        """Write as much as there is room for and return how many bytes that were, perhaps none."""

    async def writable(self) -> None:
        """Wait until there is room."""

    async def drain(self) -> None:
        """Wait until what was written has left this machine, as far as the transport can tell."""

    async def read_into(self, view: memoryview, at_least: int) -> int:
        """Read ``at_least`` bytes or more into ``view`` and return how many; fewer mean that no more will come."""

    async def read_through(self, view: memoryview, full: Callable[[], memoryview]) -> bool:
        """Fill ``view``, and then whatever ``full`` returns, until that is empty; tell whether all were filled."""

    def spread(self, rate_bps: int) -> bool:
        """Space out what is written from now on at about a rate, 0 not any longer; tell whether the transport can."""

    def path(self) -> Path:
        """Return what the transport knows of the way to the peer."""

    def unacknowledged_bytes(self) -> int:
        """Return how many of the bytes that were written have not reached the peer, as far as the transport knows."""

    def waiting_bytes(self) -> int:
        """Return how many bytes can be read at once."""

    def delivery_rate_bps(self) -> int:
        """Return the transport's own estimate of its sending rate in bit/s; 0 if it has none."""

    def stop(self, *, abrupt: bool) -> None:
        """Wake whoever waits in ``write`` or ``read_into``.

        Args:
            abrupt: also forget what was not sent yet, and end what the peer is sending, though it waits for room.
        """

    def close(self) -> None:
        """Give everything back; nobody waits in the stream any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an endpoint allows its connections; the buckets are shared by all of them.

    Args:
        max_payload_bytes: a longer announced payload is refused.
        most_connections: that others have opened, at a time.
        most_silent: of them, that no frame has come on.
        silent_s: so long after it was opened a connection on which no frame has come is closed.
    """

    max_payload_bytes: int
    most_connections: int = MOST_CONNECTIONS
    most_silent: int = 512
    silent_s: float = 10.0
    up: tuple[TokenBucket, ...] = ()
    down: tuple[TokenBucket, ...] = ()
