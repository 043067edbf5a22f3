"""How much of a transfer has passed by when, in plain Python."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

from mlfabric.network import Profile

SECOND_NS = 10**9


class Curve:
    """How many bits of a profile have passed by an instant, never more than its size; exact."""

    def __init__(self, profile: Profile, size_bytes: int, latency_ns: int) -> None:
        self.pieces = [(a + latency_ns, b + latency_ns, bps) for a, b, bps in profile.pieces]
        self.bits = 8 * size_bytes
        self.times = [t for a, b, _ in self.pieces for t in (a, b)]
        self.passed = list(accumulate((bps * (b - a) for a, b, bps in self.pieces), initial=0))

    def at(self, at_ns: int) -> Fraction:
        total = 0
        for n, (a, b, bps) in enumerate(self.pieces):
            if a < at_ns:
                total = self.passed[n] + bps * (min(b, at_ns) - a)
        return min(Fraction(total, SECOND_NS), Fraction(self.bits))

    def first_ns(self, bits: int, arrive_ns: int) -> int:
        """When so many bits have passed; if there are no more, when all have arrived."""
        if self.bits <= bits:
            return arrive_ns
        n = next(n for n, passed in enumerate(self.passed) if passed >= bits * SECOND_NS) - 1
        start_ns, _, bps = self.pieces[n]
        return start_ns - (self.passed[n] - bits * SECOND_NS) // bps


def overtakes(stream: Curve, given: Curve, arrive_ns: int, chunk_bits: int) -> bool:
    """If a stream has sent more than an input brought, less a chunk, at a breakpoint until all of that has arrived."""
    times = {t for t in [*stream.times, *given.times] if t < arrive_ns} | {arrive_ns}
    return any(stream.at(t) > max(Fraction(0), given.at(t) - chunk_bits) for t in times)
