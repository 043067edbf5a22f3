"""Trials: a fresh fabric each, a fault, whether the others go on and how soon, and what became of all updates."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.faults.cluster import Cluster, StuckError
from benchmarks.faults.judging import Verdict, judge
from benchmarks.faults.scenarios import Scenario, Strike
from benchmarks.testbed.hosts import Testbed, testbed
from benchmarks.testbed.processes import ChildError, Launcher

__all__ = ["Trial", "run_trial", "summary", "trials"]

ENOUGH = 5
WATCH_S = 1.0
WARM_S = 0.5
PATIENCE_S = 60.0
LINK_BPS = 100_000_000
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of one trial.

    Args:
        recovery_s: the longest time after the fault in which no survivor was told of a commit; None if they never were.
        is_late: whether that is more than the scenario's limit and the outage.
        verdict: None if the end was not reached.
        failure: why it was not survived; "" if it was.
    """

    recovery_s: float | None
    is_late: bool
    verdict: Verdict | None
    failure: str

    @property
    def is_survived(self) -> bool:
        """Whether everybody went on who was not killed."""
        return not self.failure


def trials(
    scenario: Scenario, count: int, launcher: Launcher, folder: Path, label: str, *, seed: int = 0
) -> Iterator[Trial]:
    """Run trials of a scenario, each in a fabric of its own."""
    for number in range(count):
        draw = random.Random(f"{label} {seed} {number}")
        yield run_trial(scenario, launcher, folder / f"{label}-{number}", f"{label}-{number}", draw)


def run_trial(scenario: Scenario, launcher: Launcher, folder: Path, label: str, draw: random.Random) -> Trial:
    """Run one trial; whatever was started for it has ended afterwards."""
    recovery_s: float | None = None
    is_late = False
    with ExitStack() as stack:
        bed = stack.enter_context(testbed(scenario.hosts, link_bps=LINK_BPS)) if scenario.hosts else None
        hosts = {host.name: host for host in bed.hosts} if bed else None
        cluster = stack.enter_context(Cluster(launcher, scenario.plan, folder, label, hosts))
        try:
            cluster.start_all()
            scenario.prepare(cluster)
            time.sleep(draw.uniform(0.0, WARM_S))
            recovery_s, outage_s = _struck(scenario, cluster, bed, draw)
            is_late = recovery_s > scenario.limit_s + outage_s
            verdict = judge(cluster.finish())
        except (StuckError, ChildError, TimeoutError) as error:
            return Trial(recovery_s=recovery_s, is_late=is_late, verdict=None, failure=str(error))
    return Trial(recovery_s=recovery_s, is_late=is_late, verdict=verdict, failure="")


def _struck(scenario: Scenario, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> tuple[float, float]:
    """Let the fault happen, wait until all have gone on; return how long nobody did, and how much of it was meant."""
    strike = scenario.strike(cluster, bed, draw)
    _go_on(cluster, strike.survivors, time.monotonic_ns())
    recovery_s = _longest_gap_s(cluster, strike)
    scenario.heal(cluster, bed, strike)
    _go_on(cluster, strike.back, time.monotonic_ns())
    cluster.check()
    return recovery_s, strike.outage_s


def _go_on(cluster: Cluster, workers: Sequence[str], since_ns: int) -> None:
    """Wait until each of some workers has been told of commits since a time, and for a moment at least."""
    if not workers:
        return
    until_ns = time.monotonic_ns() + round(WATCH_S * 1e9)

    def gone_on() -> bool:
        return time.monotonic_ns() >= until_ns and all(cluster.commits(w, since_ns) >= ENOUGH for w in workers)

    cluster.wait(gone_on, f"{ENOUGH} commits of each of {', '.join(workers)} after the fault", PATIENCE_S)


def _longest_gap_s(cluster: Cluster, strike: Strike) -> float:
    """Return the longest time since the fault in which no survivor was told of a commit."""
    times = sorted(at_ns for name in strike.survivors for at_ns in cluster.commits_ns(name) if at_ns > strike.at_ns)
    return max(after - before for before, after in pairwise([strike.at_ns, *times])) / 1e9


def summary(scenario: Scenario, found: Sequence[Trial]) -> dict[str, Any]:
    """Return a scenario's figures: what issue and table call them."""
    recoveries = [trial.recovery_s for trial in found if trial.recovery_s is not None]
    verdicts = [trial.verdict for trial in found if trial.verdict is not None]
    broken = [text for verdict in verdicts for text in verdict.broken]
    failures = [trial.failure for trial in found if trial.failure]
    return {
        "trials": len(found),
        "survived": sum(trial.is_survived for trial in found),
        "recovery_p50_s": statistics.median(recoveries) if recoveries else None,
        "recovery_max_s": max(recoveries, default=None),
        "recovery_limit_s": scenario.limit_s,
        "recovered_late": sum(trial.is_late for trial in found),
        "updates_committed": sum(verdict.committed for verdict in verdicts),
        "updates_lost": sum(verdict.lost for verdict in verdicts),
        "updates_twice": sum(verdict.twice for verdict in verdicts),
        "bound_violations": len(broken),
        "first_violations": broken[:SHOWN],
        "first_failures": failures[:SHOWN],
    }
