"""How the rates of links change in a run: the paper's settings, and one in which four hosts are slow all the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from mlfabric.twin.settings import NETWORK, Direction

__all__ = ["FOUR", "NETWORKS", "Rates", "SlowHosts"]


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


FOUR = SlowHosts(names=("w3", "w4", "w5", "w6"), slow_share=0.1)

NETWORKS: Mapping[str, Rates] = MappingProxyType({**NETWORK, "four": FOUR})
"""By name: N0 to N3 of the paper, and four slow hosts."""
