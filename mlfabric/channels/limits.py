"""What an endpoint allows its connections. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mlfabric.channels.limiter import TokenBucket

__all__ = ["MOST_CONNECTIONS", "Limits"]

MOST_CONNECTIONS = 8192
"""The most connections that others have open to an endpoint, unless configured."""


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
