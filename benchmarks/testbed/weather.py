"""The weather of a testbed: each direction of each host's link gets a rate anew in every period.

Settings are those of MLfabric, section 7.1; ``mlfabric.twin.settings`` draws, so that for the same seed the twin sees
the same weather.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from benchmarks.testbed.hosts import Testbed
from benchmarks.testbed.networks import Forecast, Rates
from mlfabric.errors import UsageError
from mlfabric.twin.settings import Direction

__all__ = ["Period", "Weather"]

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """One that has begun.

    Args:
        number: counted from 0.
        began_ns: when all rates were set, by CLOCK_MONOTONIC.
        late_ns: how long after its time.
    """

    number: int
    began_ns: int
    late_ns: int


class Weather:
    """Sets the rates of all links anew in every period, for as long as its block runs.

    The first period begins with the block; at the end all links get their full rate again. If rates could not be
    changed in between, the block's end raises why.

    Args:
        testbed: whose links.
        setting: from which shares of the full rate are drawn.
        seed: of the draws.
        link_bps: the full rate.
        dilation: how many times as long a period is, > 0.
        spared: names of hosts that keep the full rate.

    Raises:
        UsageError: one of these cannot be.
    """

    def __init__(
        self,
        testbed: Testbed,
        setting: Rates,
        *,
        seed: int,
        link_bps: int,
        dilation: float,
        spared: Collection[str] = (),
    ) -> None:
        if not dilation > 0:
            raise UsageError(f"dilation {dilation}; allowed: more than 0")
        for name in spared:
            testbed.host(name)
        self._testbed = testbed
        self._setting = setting
        self._seed = seed
        self._link_bps = link_bps
        self._period_ns = round(setting.period_s * dilation * NS_PER_S)
        self._names = [host.name for host in testbed.hosts if host.name not in spared]
        self._periods: list[Period] = []
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._change, name="weather", daemon=True)

    @property
    def periods(self) -> tuple[Period, ...]:
        """Those that have begun so far."""
        return tuple(self._periods)

    @property
    def forecast(self) -> Forecast:
        """What the links will carry, once the block has begun."""
        return Forecast(rates=self._setting, seed=self._seed, began_ns=self._began_ns, period_ns=self._period_ns)

    def rates_bps(self, period: int) -> dict[tuple[str, Direction], int]:
        """Return the rate of each direction of each host's link in a period, counted from 0."""
        return {
            (name, direction): round(self._link_bps * self._setting.share(self._seed, name, direction, period))
            for name in self._names
            for direction in Direction
        }

    def share_at(self, name: str, direction: Direction, time_ns: int) -> float:
        """Return the share of its full rate that a direction of a host's link had at a time of CLOCK_MONOTONIC.

        A time before the first period counts as in it.
        """
        if name not in self._names:
            return 1.0
        period = max(1, bisect_right(self._periods, time_ns, key=lambda period: period.began_ns)) - 1
        return self._setting.share(self._seed, name, direction, period)

    def __enter__(self) -> Self:
        self._began_ns = time.monotonic_ns()
        self._begin(0)
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        self._testbed.set_rates({(name, direction): self._link_bps for name in self._names for direction in Direction})

    def _change(self) -> None:
        number = 1
        try:
            while not self._over.wait(max(0, self._due_ns(number) - time.monotonic_ns()) / NS_PER_S):
                self._begin(number)
                number += 1
        except Exception as error:
            self._failure = error

    def _due_ns(self, number: int) -> int:
        return self._began_ns + number * self._period_ns

    def _begin(self, number: int) -> None:
        self._testbed.set_rates(self.rates_bps(number))
        now_ns = time.monotonic_ns()
        self._periods.append(Period(number=number, began_ns=now_ns, late_ns=now_ns - self._due_ns(number)))
