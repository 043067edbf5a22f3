"""The arithmetic of rate limits: a token bucket on a clock that its caller owns. Pure.

The bucket is kept as one instant, ``free``: when everything taken so far has passed at the nominal rate (the generic
cell rate algorithm). Taking ``n`` bytes moves ``free`` on by ``n * 8 / rate`` and answers how long to wait until the
last of them may go. Takers with one chunk each at a time therefore share the rate chunk by chunk, in the order they
ask.

A taker that wakes up late asks late; ``burst`` is how much of that it may catch up. Credit exists only while a transfer
is under way: an idle bucket saves none, so from the first byte of a busy period to any later instant no more than
``rate * time`` has passed, and a short transfer takes as long as its wire time.
"""

from __future__ import annotations

from mlfabric.errors import ConfigError

__all__ = ["TokenBucket", "chunk_bytes"]

NS_PER_S = 1_000_000_000
MIN_BURST_BYTES = 64 * 1024
BURST_NS = 2_000_000
CHUNK_NS = 2_000_000
MIN_CHUNK_BYTES = 4 * 1024
MAX_CHUNK_BYTES = 1024 * 1024


def chunk_bytes(rate_bps: int) -> int:
    """Return how many bytes to take at once at ``rate_bps``: about 2 ms worth, so that sharing is fine-grained."""
    return max(MIN_CHUNK_BYTES, min(MAX_CHUNK_BYTES, rate_bps * CHUNK_NS // (8 * NS_PER_S)))


class TokenBucket:
    """Rate limit of one direction of one link, shared by all transfers on it.

    Args:
        rate_bps: > 0, bit/s. So much lateness can be caught up: 64 KiB or 2 ms of the rate, whichever is more.
    """

    def __init__(self, rate_bps: int) -> None:
        if rate_bps <= 0:
            raise ConfigError(f"rate_bps={rate_bps}; allowed: > 0")
        self.rate_bps = rate_bps
        self._burst_ns = max(BURST_NS, self._wire_ns(MIN_BURST_BYTES))
        self._free_ns = 0
        self._transfers = 0

    def _wire_ns(self, n_bytes: int) -> int:
        return -(-n_bytes * 8 * NS_PER_S // self.rate_bps)

    def begin(self, now_ns: int) -> None:
        """Say that a transfer starts; the first one of a busy period starts without credit."""
        if self._transfers == 0:
            self._free_ns = max(self._free_ns, now_ns)
        self._transfers += 1

    def end(self) -> None:
        """Say that a transfer is over."""
        self._transfers -= 1

    def take(self, n_bytes: int, now_ns: int) -> int:
        """Reserve ``n_bytes`` and return how many ns after ``now_ns`` the last of them may pass.

        Args:
            n_bytes: >= 0.
            now_ns: never less than in earlier calls.
        """
        start_ns = max(self._free_ns, now_ns - self._burst_ns)
        self._free_ns = start_ns + self._wire_ns(n_bytes)
        return max(0, self._free_ns - now_ns)
