"""How the rates of links change in a run: the paper's settings, and one in which four hosts are slow all the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from mlfabric.twin.settings import NETWORK, Direction

__all__ = ["FOUR", "NETWORKS", "Forecast", "Rates", "SlowHosts"]

_STRIDE = 7


class Rates(Protocol):
    """Which share of its full rate each direction of each host's link has, period by period."""

    @property
    def period_s(self) -> float:
        """How long a share holds, undilated."""

    def share(self, seed: int, host: str, direction: Direction, period: int) -> float:
        """Return the share that a direction of a host's link has in a period, counted from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowHosts:
    """Some hosts' links are always slow, both ways; all others have their full rate.

    Args:
        names: of the slow hosts.
        slow_share: of its full rate that a slow link has.
        period_s: how long a share holds, undilated.
    """

    names: tuple[str, ...]
    slow_share: float
    period_s: float = 5.0

    def share(self, seed: int, host: str, direction: Direction, period: int) -> float:
        """Return the share of a host's link, which is the same for all seeds, directions and periods."""
        return self.slow_share if host in self.names else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What links will carry in a run, for a system that is told beforehand.

    Args:
        rates: from which shares are drawn; seed: of the draws.
        began_ns: when the first period began, by CLOCK_MONOTONIC.
        period_ns: how long each is, dilated.
    """

    rates: Rates
    seed: int
    began_ns: int
    period_ns: int

    def period_at(self, time_ns: int) -> int:
        """Return the number of the period at a time."""
        return (time_ns - self.began_ns) // self.period_ns

    def best(self, hosts: Sequence[str], count: int, period: int) -> tuple[str, ...]:
        """Return the hosts with the best links in a period, the slower direction of each counted, in the given order.

        Of equally good ones, others are taken in each period.
        """

        def worth(at: int) -> tuple[float, int]:
            shares = (self.rates.share(self.seed, hosts[at], direction, period) for direction in Direction)
            return -min(shares), (at * _STRIDE + period) % len(hosts)

        chosen = sorted(range(len(hosts)), key=worth)[:count]
        return tuple(hosts[at] for at in sorted(chosen))


FOUR = SlowHosts(names=("w3", "w4", "w5", "w6"), slow_share=0.1)

NETWORKS: Mapping[str, Rates] = MappingProxyType({**NETWORK, "four": FOUR})
"""By name: N0 to N3 of the paper, and four slow hosts."""
