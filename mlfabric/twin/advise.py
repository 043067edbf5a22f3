"""Which method, bounds and aggregators to train with: a small grid of them is simulated, and a choice made.

Everything is compared with plain ring all-reduce: *gain* is how many times as fast training gets on. In a step each
worker's gradient is used once, so asynchronous training makes a step with as many updates as there are workers.

*What delay costs.* Updates that were computed from old versions carry less. How much, no simulation of a network
can know. The rule here follows the rate of Koloskova, Stich and Jaggi (2022), O(sigma^2 / eps^2 + sqrt(tau_max tau_avg)
/ eps) updates to an error: against synchronous training, in which N updates share a version, sqrt(tau_max tau_avg)
stands where N does. So an update is worth 1 / (1 + q (sqrt(tau_max tau_avg) / N - 1)) of a fresh one, and never more
than one; q is the share of the steps that are needed for the second term. It is the model's and the batch's: 0.1 unless
said, which is a guess and no measurement. Near the end of training, where noise decides, it is smaller; early, or with
a high learning rate, larger. The delays are those that were seen, not the bound; those in rounds count as many updates
as a round has workers.

*A bound too small* drops updates: updates/s x (time from reading the model to commit) <= tau_max + 1.

*Short runs first.* Every option is run for a quarter of the steps, all with the same stragglers and the same weather,
and the best few for all of them, next to a ring for as many: the longer the run, the more weather it has seen. That is
successive halving (Jamieson and Talwalkar, 2016) in two rounds. Modes without a server are played message by message,
which takes seconds for each: once, for fewer steps, next to a ring for as many.

*When plain all-reduce is best.* The twin's aim is to be right within 15 %, so what gains less is not worth a fabric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlfabric.errors import ConfigError
from mlfabric.model.specs import Method
from mlfabric.twin.cluster import MOST_PLAYED, Cluster

__all__ = [
    "WORTH_IT",
    "Advice",
    "Option",
    "Prediction",
    "Row",
    "Verdict",
    "advise",
    "replica_bound",
    "value_of_an_update",
]

WORTH_IT = 1.15
USUAL_STALENESS = 0.1
BOUNDS_PER_WORKER = (1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
FIRST_BOUND = 2.0
SLACKS = (1, 3, 8)
ADVICE_ITERATIONS, SHORT_SHARE = 100, 4
PLAYED_ITERATIONS = 20
FINALISTS = 3
PLAYED = (Method.ALL_REDUCE, Method.PARTIAL, Method.ELASTIC)
_SYNCHRONOUS = (None, Method.SYNCHRONOUS, Method.ALL_REDUCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the twin says of one way of training.

    Args:
        step_s: mean time in which as many updates are applied as there are workers, > 0.
        delays: of the updates that were applied, >= 0.
        dropped_share: of all updates, 0 to 1.
        members: how many workers are in a round on average; 0 where the method has a server.
    """

    step_s: float
    delays: NDArray[np.int64]
    dropped_share: float
    members: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A way of training.

    Args:
        method: of the fabric; None is plain ring all-reduce, without a fabric.
        tau_max: delay bound of asynchronous training, else None.
        slack: how many iterations a worker may be ahead of the slowest in stale-synchronous training, else None.
        aggregators: on how many of the workers' hosts.
    """

    method: Method | None
    tau_max: int | None = None
    slack: int | None = None
    aggregators: int = 0

    @property
    def is_late(self) -> bool:
        """Whether workers do not wait for all others."""
        return self.method not in _SYNCHRONOUS

    def on(self, cluster: Cluster, iterations: int) -> Cluster:
        """Return a cluster that trains like this for so many steps of each worker."""
        names = tuple(worker.name for worker in cluster.workers[: self.aggregators])
        method = self.method or Method.ALL_REDUCE
        slack = cluster.slack if self.slack is None else self.slack
        return replace(
            cluster, method=method, tau_max=self.tau_max, slack=slack, aggregators=names, iterations=iterations
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is to be expected of an option.

    Args:
        found: as the twin says.
        value: of an update against a fresh one, for its delay.
        gain: how many times as fast as plain ring all-reduce training gets on, delay counted.
        iterations: of each worker, for which it was run.
    """

    option: Option
    found: Prediction
    value: float
    gain: float
    iterations: int


class Verdict(Enum):
    """What to train with."""

    FABRIC = "mlfabric"
    PLAIN = "plain all-reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do, and why.

    Args:
        verdict: whether a fabric is worth it.
        rows: everything that was tried, plain ring all-reduce first.
        best: the option of the fabric that gains most.
        replica_updates: the least bound on a replica's lead that holds nothing up; None where the best has no server.
        staleness: the q that delays were valued with.
    """

    verdict: Verdict
    rows: tuple[Row, ...]
    best: Row
    replica_updates: int | None
    staleness: float

    @property
    def delay_bound(self) -> int | None:
        """The best delay bound of asynchronous training, also where another method gains more; long runs go first."""
        asynchronous = [row for row in self.rows if row.option.method is Method.ASYNCHRONOUS]
        longest = max((row.iterations for row in asynchronous), default=0)
        tried = [row for row in asynchronous if row.iterations == longest]
        return max(tried, key=_rank).option.tau_max if tried else None


Predict = Callable[[Cluster, Option], Prediction]


def advise(
    cluster: Cluster,
    predict: Predict,
    *,
    staleness: float = USUAL_STALENESS,
    on_progress: Callable[[int, int], None] | None = None,
) -> Advice:
    """Try a small grid of options and say which to take; the same cluster gives the same advice.

    Args:
        cluster: whose hosts, links, computations and model count; its method, bound and aggregators do not.
        predict: what to ask of the twin, with the cluster as the option would have it.
        staleness: q, the share of steps that grow with delay, 0 to 1.
        on_progress: told how many options are done, and of how many.

    Raises:
        ConfigError: the share is not one, or there is a single worker.
    """
    if not 0 <= staleness <= 1:
        raise ConfigError(f"staleness = {staleness}; allowed: 0 (delay costs nothing) to 1")
    workers = len(cluster.workers)
    if workers < 2:
        raise ConfigError(f"{workers} worker; allowed: 2 or more, for one has nobody to share with")
    trial = _Trial(cluster, predict, staleness, on_progress)
    iterations = min(cluster.iterations, ADVICE_ITERATIONS)
    trial.begin(-(-iterations // SHORT_SHARE))
    trial.run_all(_shapes(workers))
    best = max((row for row in trial.rows if row.option.method is Method.ASYNCHRONOUS), key=_rank)
    trial.run_all(_bounds(workers, best.option.aggregators))
    finalists = _different(sorted(trial.rows[1:], key=_rank, reverse=True))[:FINALISTS]
    trial.begin(iterations)
    trial.run_all([row.option for row in finalists])
    longest = [row for row in trial.rows[1:] if row.iterations == iterations]
    trial.begin(min(iterations, PLAYED_ITERATIONS))
    played = trial.run_all(Option(method=method) for method in PLAYED if workers <= MOST_PLAYED)
    trial.end()
    chosen = max([*longest, *played], key=_rank)
    return Advice(
        verdict=Verdict.FABRIC if chosen.gain >= WORTH_IT else Verdict.PLAIN,
        rows=tuple(trial.rows),
        best=chosen,
        replica_updates=None if chosen.option.method in PLAYED else replica_bound(cluster, chosen.found),
        staleness=staleness,
    )


def value_of_an_update(delays: NDArray[Any], workers: int, staleness: float) -> float:
    """Return what an update is worth against a fresh one, 0 to 1, by the delays of all (Koloskova et al., 2022).

    Args:
        delays: of the updates that were applied; none is worth 1.
        workers: how many share a version in synchronous training, >= 1.
        staleness: q, 0 to 1.
    """
    if not len(delays):
        return 1.0
    effective = math.sqrt(float(np.max(delays)) * float(np.mean(delays)))
    return 1 / (1 + staleness * max(0.0, effective / workers - 1))


def replica_bound(cluster: Cluster, found: Prediction) -> int:
    """Return by how many updates a replica has to be allowed to be behind so that nothing waits for it.

    Twice what is committed while an update waits for its batch and passes over the slowest host's link, by Little's
    law, and no less than the workers send at once.
    """
    slowest_bps = min(host.slowest_bps for host in cluster.hosts)
    on_its_way_s = cluster.batch_window_s + 8 * cluster.model_bytes / slowest_bps
    return max(len(cluster.workers), math.ceil(2 * len(cluster.workers) / found.step_s * on_its_way_s))


def _shapes(workers: int) -> Iterator[Option]:
    """Yield how many aggregators may be had, for the methods that take them."""
    for aggregators in sorted({0, -(-workers // 4), workers}):
        yield Option(method=Method.SYNCHRONOUS, aggregators=aggregators)
        yield Option(method=Method.ASYNCHRONOUS, tau_max=round(FIRST_BOUND * workers), aggregators=aggregators)


def _bounds(workers: int, aggregators: int) -> list[Option]:
    """Return the delay bounds that are still to be tried, and the slacks."""
    rest = sorted({round(share * workers) for share in BOUNDS_PER_WORKER} - {round(FIRST_BOUND * workers)})
    bounds = [Option(method=Method.ASYNCHRONOUS, tau_max=tau_max, aggregators=aggregators) for tau_max in rest]
    return bounds + [Option(method=Method.STALE_SYNCHRONOUS, slack=slack, aggregators=aggregators) for slack in SLACKS]


def _different(rows: Sequence[Row]) -> list[Row]:
    """Leave out rows that went like an earlier one: bounds that nobody came near."""
    found: dict[tuple[object, ...], Row] = {}
    for row in rows:
        found.setdefault((row.option.method, row.option.aggregators, row.found.step_s, row.found.delays.sum()), row)
    return list(found.values())


def _rank(row: Row) -> tuple[float, int]:
    """Order rows by gain to a hundredth; of equals fewer aggregators are better."""
    return round(row.gain, 2), -row.option.aggregators


class _Trial:
    """What has been tried; ``rows`` has the last run of each option, plain ring all-reduce first, its longest one."""

    def __init__(
        self, cluster: Cluster, predict: Predict, staleness: float, on_progress: Callable[[int, int], None] | None
    ) -> None:
        self.rows: list[Row] = []
        self._cluster, self._predict, self._staleness, self._on_progress = cluster, predict, staleness, on_progress
        self._iterations = self._done = 0
        workers = len(cluster.workers)
        self._total = 3 + len(list(_shapes(workers))) + len(_bounds(workers, 0)) + FINALISTS + len(PLAYED)
        self._plain_s = 0.0

    def begin(self, iterations: int) -> None:
        """Go on with runs of another length, the first of which is a plain ring's."""
        self._iterations = iterations
        plain = self._run(Option(method=None))
        self._plain_s = plain.found.step_s
        if not self.rows or self.rows[0].iterations < iterations:
            self.rows[:1] = [plain]

    def end(self) -> None:
        """Say that all has been tried, where there were fewer different options than might be."""
        if self._done < self._total:
            self._tell(self._total)

    def run_all(self, options: Iterable[Option]) -> list[Row]:
        """Try options; return what is to be expected of them."""
        found = {option: self._run(option) for option in options}
        known = {row.option: row for row in self.rows}
        self.rows[:] = {**known, **found}.values()
        return list(found.values())

    def _run(self, option: Option) -> Row:
        found = self._predict(option.on(self._cluster, self._iterations), option)
        delays = found.delays * max(1.0, found.members) if option.is_late else found.delays[:0]
        value = value_of_an_update(delays, len(self._cluster.workers), self._staleness)
        gain = 1.0 if option.method is None else value * self._plain_s / found.step_s
        self._tell(self._done + 1)
        return Row(option=option, found=found, value=value, gain=gain, iterations=self._iterations)

    def _tell(self, done: int) -> None:
        self._done = done
        if self._on_progress is not None:
            self._on_progress(done, self._total)
