"""What a cluster is given to cope with: how long each step computes, and what each link carries when; all by seed."""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from mlfabric.twin.cluster import Cluster, Compute, Spread
from mlfabric.twin.settings import Direction

__all__ = ["ComputeTimes", "Weather"]

_BLOCK = 64
_LEAST_SHARE = 0.01


class ComputeTimes:
    """How long every worker computes; the same for the same seed, whatever was asked before."""

    def __init__(self, cluster: Cluster) -> None:
        self._compute, self._seed = cluster.compute, cluster.seed
        self._slowdowns = [host.slowdown for host in cluster.workers]
        self._names = [host.name for host in cluster.workers]
        self._blocks: list[tuple[int, list[float]]] = [(-1, [])] * len(cluster.workers)

    def of(self, worker: int, step: int) -> float:
        """Return the compute time of a step in ns."""
        block, place = divmod(step, _BLOCK)
        known, times_ns = self._blocks[worker]
        if known != block:
            times_ns = self._draw(worker, block)
            self._blocks[worker] = block, times_ns
        return times_ns[place]

    def _draw(self, worker: int, block: int) -> list[float]:
        usual_s = self._usual_s(worker, block)
        stragglers = self._compute.stragglers
        factors = [1.0] * _BLOCK
        if stragglers.chance > 0:
            first = block * _BLOCK
            factors = [stragglers.slowdown(self._seed, worker, step) for step in range(first, first + _BLOCK)]
        found: list[float] = (usual_s * np.array(factors) * (1e9 * self._slowdowns[worker])).tolist()
        return found

    def _usual_s(self, worker: int, block: int) -> NDArray[np.float64]:
        """Draw times without stragglers."""
        compute = self._compute
        if compute.recorded is not None:
            return self._recorded_s(worker, block)
        if compute.spread is Spread.CONSTANT:
            return np.full(_BLOCK, compute.mean_s)
        rng = np.random.default_rng([self._seed, worker, block])
        if compute.spread is Spread.NORMAL:
            drawn = rng.normal(compute.mean_s, compute.deviation_s, _BLOCK)
            return np.maximum(drawn, _LEAST_SHARE * compute.mean_s)
        if compute.spread is Spread.LOGNORMAL:
            sigma = math.sqrt(math.log1p((compute.deviation_s / compute.mean_s) ** 2))
            return rng.lognormal(math.log(compute.mean_s) - sigma**2 / 2, sigma, _BLOCK)
        return _counted_s(compute, rng)

    def _recorded_s(self, worker: int, block: int) -> NDArray[np.float64]:
        recorded = self._compute.recorded or {}
        own = recorded.get(self._names[worker])
        if own is not None:
            steps = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
            return np.array(own)[steps % len(own)]
        everything = np.concatenate([np.array(times_s) for _, times_s in sorted(recorded.items())])
        return np.random.default_rng([self._seed, worker, block]).choice(everything, _BLOCK)


def _counted_s(compute: Compute, rng: np.random.Generator) -> NDArray[np.float64]:
    histogram = compute.histogram
    assert histogram is not None, "a spread that was counted has its histogram"
    counts = np.array(histogram.counts)
    bins = rng.choice(len(counts), _BLOCK, p=counts / counts.sum())
    drawn = histogram.first_s + histogram.bin_s * (bins + rng.random(_BLOCK))
    return np.asarray(drawn * (compute.mean_s / histogram.mean_s))


class Weather:
    """The rates of all links over time, up links first, in bits per ns."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.is_steady = max(cluster.weather.chances) == 1.0
        self._keys = [(host.name, way) for way in (Direction.UP, Direction.DOWN) for host in cluster.hosts]
        self._full = np.array(
            [host.up_bps for host in cluster.hosts] + [host.down_bps for host in cluster.hosts], np.float64
        )
        self._calm = () if cluster.is_server_in_weather else (cluster.server.name,)
        self._period_ns = cluster.weather.period_s * 1e9
        self._drawn: tuple[int, NDArray[np.float64]] = (-1, self._full)
        self._changes_ns = sorted({at_s * 1e9 for line in cluster.lines.values() for at_s in line.times_s})

    def rates(self, at_ns: float) -> NDArray[np.float64]:
        """Return what every link carries at an instant."""
        found = self._of_period(0 if self.is_steady else int(at_ns // self._period_ns)).copy()
        for number, key in enumerate(self._keys) if self._cluster.lines else ():
            line = self._cluster.lines.get(key)
            if line is not None:
                place = max(0, bisect_right(line.times_s, at_ns / 1e9 + 1e-9) - 1)
                found[number] = line.bps[place] / 1e9
        return found

    def next_change_ns(self, at_ns: float) -> float:
        """Return the first instant after this one at which a link may change, infinity for none."""
        place = bisect_right(self._changes_ns, at_ns)
        known_ns = self._changes_ns[place] if place < len(self._changes_ns) else math.inf
        if self.is_steady:
            return known_ns
        return min(known_ns, (at_ns // self._period_ns + 1) * self._period_ns)

    def _of_period(self, period: int) -> NDArray[np.float64]:
        if self._drawn[0] != period:
            weather, seed = self._cluster.weather, self._cluster.seed
            shares = [
                weather.share(seed, host, way, period) if host not in self._calm else 1.0 for host, way in self._keys
            ]
            self._drawn = period, self._full * np.array(shares) / 1e9
        return self._drawn[1]
