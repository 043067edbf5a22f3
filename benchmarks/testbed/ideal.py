"""What could be reached at best: training with a control plane that costs nothing, by event simulation.

``python -m benchmarks.testbed.ideal`` prints it for all nine cells.

The yardstick for a cell of the testbed: every worker reads the model, computes, sends its update, over and over.

*Assumed.* Each transfer takes its wire time over the worker's own link at the rate which that has meanwhile (one that
runs into the next period goes on at the new rate): the server's link, aggregation and distribution cost nothing, as if
sums and models were handed on bit by bit by hosts with room to spare. So a worker with a slow link slows only itself.
Nothing is decided late, nothing is lost, no processor is busy. A worker has one update at a time, and computing does
not overlap its own transfers.

*The delay bound.* An update is dropped, and its worker reads anew, as soon as its computation or its transfer ends with
more commits since the read than the bound. Whoever commits waits for an update that would otherwise just miss its
bound, if that is underway and here within ``patience_s``. Of 0, 10, 20, 40 and 80 ms 40 (half the wire time) gives the
most updates/s in the paper's cells, or as many; with none it is up to 3 % less, with 80 up to 8 % less.

*Synchronous.* The longest computation, then the model once over the slowest link: with reduction and distribution
overlapped bit by bit.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush
from random import Random

from mlfabric.errors import ConfigError
from mlfabric.twin.closed_forms import mean_over_weather, ring_share, slowest_shares
from mlfabric.twin.settings import COMPUTE, NETWORK, ComputeSetting, Direction, NetworkSetting

__all__ = [
    "Asynchronous",
    "Ideal",
    "IdealCell",
    "ideal",
    "ideal_ratio",
    "ideal_synchronous_ratio",
    "mean_largest",
    "simulate",
]

PAPER_CELLS = tuple((compute, network) for compute in ("C1", "C2", "C3") for network in ("N1", "N2", "N3"))


@dataclass(frozen=True, slots=True, kw_only=True)
class IdealCell:
    """What is simulated.

    Args:
        compute, network: how uneven the cluster is.
        workers: how many, >= 1.
        delay_bound: greatest delay of an update that is applied, >= 0; None for no bound.
        compute_s: of a computation that is not slow, > 0.
        wire_s: of the model over a link at its full rate, > 0.
        patience_s: how long a commit waits for an update that would miss its bound by it, >= 0.
        duration_s: simulated time, > 0.
        seed: of stragglers and network.

    Raises:
        ConfigError: a value is out of its range.
    """

    compute: ComputeSetting
    network: NetworkSetting
    workers: int = 30
    delay_bound: int | None = 30
    compute_s: float = 0.1
    wire_s: float = 0.08
    patience_s: float = 0.04
    duration_s: float = 400.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("workers", "compute_s", "wire_s", "duration_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} = {getattr(self, name)}; allowed: above 0")
        if self.patience_s < 0:
            raise ConfigError(f"patience_s = {self.patience_s}; allowed: 0 or more")
        if self.delay_bound is not None and self.delay_bound < 0:
            raise ConfigError(f"delay_bound = {self.delay_bound}; allowed: 0 or more, or none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asynchronous:
    """What asynchronous training reached.

    Args:
        updates_per_s: applied.
        dropped_share: of all updates that ended.
        delays: how many updates were applied with which delay.
        applied: how many of each worker's were applied.
    """

    updates_per_s: float
    dropped_share: float
    delays: Counter[int]
    applied: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ideal:
    """The yardstick of one cell.

    Args:
        ring_s, synchronous_s: mean time of an iteration.
        asynchronous_s: mean time in which as many updates are applied as there are workers.
        dropped_share: of the asynchronous updates.
    """

    ring_s: float
    synchronous_s: float
    asynchronous_s: float
    dropped_share: float

    @property
    def synchronous_ratio(self) -> float:
        """How many times as fast as the ring synchronous training is."""
        return self.ring_s / self.synchronous_s

    @property
    def asynchronous_ratio(self) -> float:
        """How many times as fast as the ring asynchronous training is."""
        return self.ring_s / self.asynchronous_s


def ideal(cell: IdealCell) -> Ideal:
    """Return the ideal of a cell: ring and synchronous training by formulas, asynchronous by simulation."""
    compute_s = mean_largest(cell.compute, cell.compute_s, cell.workers)
    shares = slowest_shares(cell.network, 2 * cell.workers)
    reached = simulate(cell)
    return Ideal(
        ring_s=mean_over_weather(compute_s, ring_share(cell.workers) * cell.wire_s, shares),
        synchronous_s=mean_over_weather(compute_s, cell.wire_s, shares),
        asynchronous_s=cell.workers / reached.updates_per_s,
        dropped_share=reached.dropped_share,
    )


def simulate(cell: IdealCell) -> Asynchronous:
    """Simulate asynchronous training with a free control plane; the same seed gives the same result."""
    return _Simulation(cell).run()


def mean_largest(setting: ComputeSetting, base_s: float, workers: int) -> float:
    """Return the mean of the longest of all workers' computations, where some are slow by chance.

    Args:
        setting: how often and how slow.
        base_s: time of a computation that is not slow, >= 0.
        workers: how many compute, >= 1.
    """
    somebody = 1 - (1 - setting.chance) ** workers
    return base_s * (1 + (setting.factor - 1) * somebody)


class _What(IntEnum):
    """What happens to a worker."""

    BEGINS = 0
    COMPUTED = 1
    ARRIVED = 2


@dataclass(slots=True)
class _Links:
    """What each worker's link has of its full rate, period by period."""

    cell: IdealCell
    drawn: dict[tuple[int, Direction, int], float] = field(default_factory=dict)

    def end_s(self, worker: int, direction: Direction, start_s: float) -> float:
        """Return when a model that starts now is through."""
        left_s, now_s, period_s = self.cell.wire_s, start_s, self.cell.network.period_s
        period = int(start_s / period_s)
        while True:
            share = self._share(worker, direction, period)
            until_s = (period + 1) * period_s
            if now_s + left_s / share <= until_s:
                return now_s + left_s / share
            left_s -= (until_s - now_s) * share
            now_s, period = until_s, period + 1

    def _share(self, worker: int, direction: Direction, period: int) -> float:
        key = (worker, direction, period)
        if key not in self.drawn:
            self.drawn[key] = self.cell.network.share(self.cell.seed, f"w{worker}", direction, period)
        return self.drawn[key]


class _Simulation:
    """One run: what has been read, what is on its way, what waits to be committed."""

    def __init__(self, cell: IdealCell) -> None:
        self._cell, self._links = cell, _Links(cell)
        self._version = 0
        self._events: list[tuple[float, int, _What]] = []
        self._read = [0] * cell.workers
        self._steps = [0] * cell.workers
        self._under_way: dict[int, float] = {}
        self._waiting: list[tuple[int, int]] = []
        self._delays: Counter[int] = Counter()
        self._applied = [0] * cell.workers
        self._dropped = 0

    def run(self) -> Asynchronous:
        """Simulate until the time is over."""
        for worker in range(self._cell.workers):
            spread_s = 2 * self._cell.compute_s * Random(f"ideal/{self._cell.seed}/{worker}").random()
            heappush(self._events, (spread_s, worker, _What.BEGINS))
        while self._events[0][0] < self._cell.duration_s:
            self._happens(*heappop(self._events))
        return Asynchronous(
            updates_per_s=self._version / self._cell.duration_s,
            dropped_share=self._dropped / max(1, self._dropped + self._version),
            delays=self._delays,
            applied=tuple(self._applied),
        )

    def _happens(self, now_s: float, worker: int, what: _What) -> None:
        if what is _What.BEGINS:
            self._begin(worker, now_s)
        elif what is _What.COMPUTED:
            if self._is_too_late(worker):
                self._drop(worker, now_s)
                return
            self._under_way[worker] = self._links.end_s(worker, Direction.UP, now_s)
            heappush(self._events, (self._under_way[worker], worker, _What.ARRIVED))
        else:
            del self._under_way[worker]
            insort(self._waiting, (self._read[worker], worker))
            self._commit(now_s)

    def _begin(self, worker: int, now_s: float) -> None:
        """Let a worker read the present version and compute with it."""
        self._read[worker] = self._version
        has_s = self._links.end_s(worker, Direction.DOWN, now_s)
        slowdown = self._cell.compute.slowdown(self._cell.seed, worker, self._steps[worker])
        self._steps[worker] += 1
        heappush(self._events, (has_s + self._cell.compute_s * slowdown, worker, _What.COMPUTED))

    def _is_too_late(self, worker: int) -> bool:
        return self._cell.delay_bound is not None and self._version - self._read[worker] > self._cell.delay_bound

    def _drop(self, worker: int, now_s: float) -> None:
        self._dropped += 1
        self._begin(worker, now_s)

    def _commit(self, now_s: float) -> None:
        """Commit what waits, oldest read first, as far as nobody is to be waited for."""
        while self._waiting:
            read, worker = self._waiting[0]
            if self._is_too_late(worker):
                del self._waiting[0]
                self._drop(worker, now_s)
                continue
            if self._waits_for_others(read, now_s):
                return
            del self._waiting[0]
            self._delays[self._version - read] += 1
            self._applied[worker] += 1
            self._version += 1
            self._begin(worker, now_s)

    def _waits_for_others(self, own_read: int, now_s: float) -> bool:
        """Tell whether a commit now would make one miss its bound that is nearly here and was read before."""
        bound = self._cell.delay_bound
        if bound is None:
            return False
        soon_s = now_s + self._cell.patience_s
        near = [r for w, end_s in self._under_way.items() if end_s < soon_s and (r := self._read[w]) < own_read]
        near = sorted(read for read in near if self._version - read <= bound)
        return any(self._version + 1 + place - read > bound for place, read in enumerate(near))


def ideal_ratio(compute: ComputeSetting, network: NetworkSetting, tau_max: int | None, seed: int) -> float:
    """Return the ideal of asynchronous training of 30 workers over the ring.

    Args:
        compute, network: of the cell.
        tau_max: delay bound, None for none.
        seed: of stragglers and network.
    """
    return ideal(IdealCell(compute=compute, network=network, delay_bound=tau_max, seed=seed)).asynchronous_ratio


def ideal_synchronous_ratio(compute: ComputeSetting, network: NetworkSetting) -> float:
    """Return the ideal of synchronous training of 30 workers over the ring: a formula, no seed."""
    return ideal(IdealCell(compute=compute, network=network, duration_s=1.0)).synchronous_ratio


def _print_all() -> None:
    print("cell   ring s  synchronous  bound 30  no bound")
    for compute, network in PAPER_CELLS:
        cell = COMPUTE[compute], NETWORK[network]
        found = ideal(IdealCell(compute=cell[0], network=cell[1]))
        print(
            f"{compute}-{network}  {found.ring_s:6.3f}  {found.synchronous_ratio:11.2f}"
            f"  {found.asynchronous_ratio:8.2f}  {ideal_ratio(*cell, None, 0):8.2f}"
        )


if __name__ == "__main__":
    _print_all()
