"""What a twin is told of a cluster: hosts, links over time, compute times, the job; plain, checked values.

``mlfabric/cli/clusters.py`` reads them from a file. Hosts hang on a core that is never congested, each by one link up
and one link down.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from mlfabric.errors import ConfigError
from mlfabric.model.chunking import chunk_bytes
from mlfabric.model.round_options import RoundOptions
from mlfabric.model.specs import Method
from mlfabric.twin.settings import COMPUTE, NETWORK, ComputeSetting, Direction, NetworkSetting

__all__ = ["MOST_PLAYED", "Cluster", "Compute", "Histogram", "Host", "Monitoring", "RateLine", "Spread"]

MOST_PLAYED = 200
"""With more workers rounds without a server are not simulated: each of their messages is played."""
_LEAST_BPS = 1000.0
_NOT_NEGATIVE = ("latency_s", "slack", "most_updates", "batch_window_s", "monitor_lag_s", "control_s", "chunk_bytes")
_NO_LINES: Mapping[tuple[str, Direction], RateLine] = MappingProxyType({})


def _check(what: str, given: object, sound: bool, allowed: str) -> None:
    if not sound:
        raise ConfigError(f"{what} = {given}; allowed: {allowed}")


class Spread(Enum):
    """How the compute time of a step is distributed."""

    CONSTANT = "always the mean"
    NORMAL = "normal, not below a hundredth of the mean"
    LOGNORMAL = "lognormal, of this mean and deviation"
    HISTOGRAM = "as counted, evenly within a bin"
    RECORDED = "a worker's recorded times, over and over"


class Monitoring(Enum):
    """How the scheduler learns what links carry."""

    ESTIMATES = "estimates"
    """As the live monitor does, from transfers that have ended: it may be wrong."""
    TELLS = "tells"
    """Of every change, but late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counted compute times.

    Args:
        first_s: where the first bin begins, >= 0.
        bin_s: width of each bin, > 0.
        counts: of each bin, >= 0; not all 0.
    """

    first_s: float
    bin_s: float
    counts: tuple[float, ...]

    def __post_init__(self) -> None:
        _check("first_s", self.first_s, self.first_s >= 0, "0 or more")
        _check("bin_s", self.bin_s, self.bin_s > 0, "more than 0")
        sound = bool(self.counts) and min(self.counts) >= 0 and 0 < sum(self.counts) < math.inf
        _check("counts", self.counts, sound, "one or more numbers of 0 or more, not all 0")

    @property
    def mean_s(self) -> float:
        """The mean of what was counted."""
        middles = (self.first_s + self.bin_s * (n + 0.5) for n in range(len(self.counts)))
        return sum(count * at_s for count, at_s in zip(self.counts, middles, strict=True)) / sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """How long a worker computes a step.

    Args:
        mean_s: of a step that is not slowed down, > 0; a histogram is scaled to it.
        deviation_s: standard deviation of NORMAL and LOGNORMAL, >= 0.
        histogram: of HISTOGRAM.
        recorded: of RECORDED, by worker's name: each one's times, > 0; who is not in it draws from all of them.
        stragglers: how often a step is slowed down, and how much.
    """

    mean_s: float = 0.1
    spread: Spread = Spread.CONSTANT
    deviation_s: float = 0.0
    histogram: Histogram | None = None
    recorded: Mapping[str, tuple[float, ...]] | None = None
    stragglers: ComputeSetting = COMPUTE["C0"]

    def __post_init__(self) -> None:
        _check("mean_s", self.mean_s, 0 < self.mean_s < math.inf, "more than 0")
        _check("deviation_s", self.deviation_s, 0 <= self.deviation_s < math.inf, "0 or more")
        counted = (self.spread is Spread.HISTOGRAM) == (self.histogram is not None)
        _check("histogram", self.histogram, counted, "one if and only if the spread is HISTOGRAM")
        recorded = (self.spread is Spread.RECORDED) == bool(self.recorded)
        _check("recorded", self.recorded, recorded, "times if and only if the spread is RECORDED")
        for worker, times_s in (self.recorded or {}).items():
            sound = bool(times_s) and min(times_s) > 0 and max(times_s) < math.inf
            _check(f"recorded of {worker}", times_s, sound, "one or more times above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine with one link up and one link down.

    Args:
        up_bps, down_bps: full rates, >= 1000 bit/s.
        slowdown: how many times as long as others it takes to compute, > 0.
    """

    name: str
    up_bps: float
    down_bps: float
    slowdown: float = 1.0

    @property
    def slowest_bps(self) -> float:
        """The rate of its slower direction."""
        return min(self.up_bps, self.down_bps)

    def __post_init__(self) -> None:
        _check("name", self.name, bool(self.name), "any text but ''")
        for what, bps in (("up_bps", self.up_bps), ("down_bps", self.down_bps)):
            _check(f"{what} of {self.name}", bps, _LEAST_BPS <= bps < 2**43, "1k to 8.7T bit/s")
        _check(f"slowdown of {self.name}", self.slowdown, 0 < self.slowdown < math.inf, "more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLine:
    """The rate of one direction of a host's link over time.

    Args:
        times_s: from when on each rate holds, ascending; the first one holds before, too.
        bps: as many, each >= 1000.
    """

    times_s: tuple[float, ...]
    bps: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(one < two for one, two in zip(self.times_s, self.times_s[1:], strict=False))
        _check("times_s", self.times_s, bool(self.times_s) and rising, "one or more times that rise")
        sound = len(self.bps) == len(self.times_s) and min(self.bps) >= _LEAST_BPS and max(self.bps) < 2**43
        _check("bps", self.bps, sound, "a rate of 1k to 8.7T bit/s for every time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster, and the job that it is to run.

    Args:
        workers: each on a host of its own; names are unique.
        server: where the model is; without one only the scheduler is there.
        latency_s: how long a bit takes from any host to any other, >= 0.
        weather: which share of its full rate each link has in each period, drawn by seed.
        is_server_in_weather: the server's link has its weather, too; else only those of workers have.
        lines: links whose rate is known over time: the weather does not touch them.
        model_bytes: of the model and of each update, > 0.
        tau_max: delay bound of asynchronous training, >= 0; None for twice the number of workers.
        rounds: of the methods without a server.
        waits: steps of partial training wait for their rounds.
        slack: how many iterations a worker may be ahead of the slowest (stale-synchronous), >= 0.
        in_flight: how many round trips of a worker may be open before it waits for a model, >= 1 (asynchronous and
            stale-synchronous); 1 computes, sends and gets in turns, 2 computes while it sends, as ``mlfabric.wrap``.
        aggregators: hosts of workers that sum and hand on, first choice first.
        most_updates: how many updates an aggregator takes into one sum; 0 for any number.
        batch_window_s: the longest that an update waits for others where nobody sums, >= 0.
        monitoring: how the scheduler learns of rates; with more than 200 workers it is told.
        monitor_lag_s: how often it is told of estimates, or how late of rates, >= 0.
        monitor_half_life_s: after this time without evidence an estimate has gone half the way to the full rate, at the
            latest, > 0.
        are_rates_told: the monitor knows the full rates of links.
        control_s: how long a message from or to the scheduler takes, decisions included, >= 0.
        chunk_bytes: what is received of every input before it is sent on; 0 for what the fabric takes.
        iterations: how many steps each worker makes, >= 1.
    """

    workers: tuple[Host, ...]
    server: Host
    latency_s: float = 0.0001
    weather: NetworkSetting = NETWORK["N0"]
    is_server_in_weather: bool = False
    lines: Mapping[tuple[str, Direction], RateLine] = field(default_factory=lambda: _NO_LINES)
    compute: Compute = Compute()
    model_bytes: int = 100_000_000
    method: Method = Method.ASYNCHRONOUS
    tau_max: int | None = None
    rounds: RoundOptions = field(default_factory=RoundOptions)
    waits: bool = True
    slack: int = 3
    in_flight: int = 1
    aggregators: tuple[str, ...] = ()
    most_updates: int = 0
    batch_window_s: float = 0.1
    monitoring: Monitoring = Monitoring.ESTIMATES
    monitor_lag_s: float = 0.2
    monitor_half_life_s: float = 10.0
    are_rates_told: bool = True
    control_s: float = 0.0007
    chunk_bytes: int = 0
    iterations: int = 200
    seed: int = 1

    def __post_init__(self) -> None:
        names = [host.name for host in (*self.workers, self.server)]
        _check("workers", len(self.workers), bool(self.workers), "at least one")
        _check("names of hosts", names, len(set(names)) == len(names), "different names")
        for name in (*self.aggregators, *(host for host, _ in self.lines)):
            _check("host", name, name in set(names), f"one of {', '.join(names[:4])}, ...")
        unique = len(set(self.aggregators)) == len(self.aggregators)
        _check("aggregators", self.aggregators, unique and self.server.name not in self.aggregators, "each worker once")
        for what in _NOT_NEGATIVE:
            _check(what, getattr(self, what), 0 <= getattr(self, what) < math.inf, "0 or more")
        for what in ("in_flight", "iterations"):
            _check(what, getattr(self, what), getattr(self, what) >= 1, "1 or more")
        _check("monitor_half_life_s", self.monitor_half_life_s, 0 < self.monitor_half_life_s < math.inf, "more than 0")
        _check("model_bytes", self.model_bytes, 0 < self.model_bytes <= 2**50, "1 to 2**50")
        _check("tau_max", self.tau_max, self.tau_max is None or self.tau_max >= 0, "0 or more, or none")

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All hosts, the server's last."""
        return (*self.workers, self.server)

    @property
    def chunk(self) -> int:
        """What is received of every input before it is sent on, in bytes."""
        return self.chunk_bytes or chunk_bytes(self.model_bytes)

    @property
    def delay_bound(self) -> int:
        """The delay bound in force when training is asynchronous."""
        return 2 * len(self.workers) if self.tau_max is None else self.tau_max
