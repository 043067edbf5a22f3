"""The waiting that goes with ``limiter``: holds one transfer to all rate limits that concern it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType

from mlfabric import clock
from mlfabric.channels.limiter import NS_PER_S, TokenBucket, chunk_bytes

__all__ = ["Pacer"]

UNLIMITED_BYTES = 1 << 62


class Pacer:
    """Holds one transfer to several token buckets at once; used as a context manager around the transfer.

    Args:
        buckets: those of the links that it crosses and of its planned rate; none means full speed.
        stop: ends a wait early when it is done (the connection is being closed).
    """

    def __init__(self, buckets: Sequence[TokenBucket], stop: asyncio.Future[None]) -> None:
        self._buckets = buckets
        self._stop = stop
        self.chunk_bytes = min((chunk_bytes(bucket.rate_bps) for bucket in buckets), default=UNLIMITED_BYTES)

    @property
    def is_free(self) -> bool:
        """Whether nothing limits the transfer."""
        return not self._buckets

    def __enter__(self) -> Pacer:
        now_ns = clock.monotonic_ns()
        for bucket in self._buckets:
            bucket.begin(now_ns)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for bucket in self._buckets:
            bucket.end()

    def charge(self, n_bytes: int) -> int:
        """Take ``n_bytes`` from every bucket and return the wait in ns that the slowest asks for."""
        now_ns = clock.monotonic_ns()
        return max((bucket.take(n_bytes, now_ns) for bucket in self._buckets), default=0)

    async def admit(self, n_bytes: int) -> None:
        """Wait until ``n_bytes`` may pass.

        They are paid before they pass, so the last byte of a transfer arrives when its wire time is over.
        """
        if delay_ns := self.charge(n_bytes):
            await asyncio.wait((self._stop,), timeout=delay_ns / NS_PER_S)
        else:
            await asyncio.sleep(0)  # however fast the peer is, other tasks get their turns
