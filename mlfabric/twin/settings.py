"""How uneven a cluster is: the paper's compute and network settings, drawn by seed.

The emulated testbed and its twin draw from here, so that both see the same stragglers and the same weather. Every draw
depends only on the seed and on what it is for, never on what was drawn before.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from random import Random
from types import MappingProxyType

__all__ = ["COMPUTE", "NETWORK", "ComputeSetting", "Direction", "NetworkSetting"]


class Direction(Enum):
    """Of a host's link."""

    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSetting:
    """How often a step of a worker is slow, and how slow (MLfabric, section 7.1).

    Args:
        chance: that a step is slow, 0 to 1.
        factor: how many times as long it takes then, >= 1.
    """

    name: str
    chance: float
    factor: float

    def slowdown(self, seed: int, worker: int, step: int) -> float:
        """Return how many times as long a worker's step takes."""
        return self.factor if Random(f"compute/{seed}/{worker}/{step}").random() < self.chance else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSetting:
    """What share of its full rate each direction of each host's link has, drawn anew in every period (section 7.1).

    Args:
        period_s: how long a draw holds, > 0.
        shares: what may be drawn, each > 0 and at most 1.
        chances: of each share; together 1.
    """

    name: str
    period_s: float
    shares: tuple[float, ...]
    chances: tuple[float, ...]

    def share(self, seed: int, host: str, direction: Direction, period: int) -> float:
        """Return the share of its full rate that a direction of a host's link has in a period, counted from 0."""
        drawn, until = (
            Random(f"network/{seed}/{host}/{direction.value}/{period}").random(),
            list(accumulate(self.chances)),
        )
        return self.shares[bisect(until, drawn * until[-1], 0, len(until) - 1)]


def _network(name: str, *chances: float) -> NetworkSetting:
    return NetworkSetting(name=name, period_s=5.0, shares=(0.1, 0.25, 0.33, 0.5, 1.0), chances=chances)


COMPUTE: Mapping[str, ComputeSetting] = MappingProxyType(
    {
        setting.name: setting
        for setting in (
            ComputeSetting(name="C0", chance=0.0, factor=1.0),
            ComputeSetting(name="C1", chance=0.1, factor=2.0),
            ComputeSetting(name="C2", chance=0.1, factor=4.0),
            ComputeSetting(name="C3", chance=0.04, factor=2.0),
        )
    }
)
"""The paper's, and C0 without stragglers."""

NETWORK: Mapping[str, NetworkSetting] = MappingProxyType(
    {
        setting.name: setting
        for setting in (
            _network("N0", 0.0, 0.0, 0.0, 0.0, 1.0),
            _network("N1", 0.0, 0.0, 0.0, 0.1, 0.9),
            _network("N2", 0.0, 0.1, 0.1, 0.1, 0.7),
            _network("N3", 0.5, 0.0, 0.0, 0.0, 0.5),
        )
    }
)
"""The paper's, and N0 with full rates only."""
