"""``mlfabric soak``: ten workers that come, go, hang and die, services that are killed, links that change, for minutes.

Every 0.5 to 2 seconds something happens, drawn by a seed. At the end everybody leaves in an orderly way, and what
became of every update is found out as after a trial: the final weights against the commit log and the workers' lines.
"""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.faults.bench import PRELOADED
from benchmarks.faults.cluster import (
    SCHEDULER,
    SERVER,
    Cluster,
    ClusterPlan,
    StuckError,
    aggregator_name,
    host_of,
)
from benchmarks.faults.judging import judge
from benchmarks.faults.ledger import Ledger
from benchmarks.testbed.hosts import Testbed, testbed
from benchmarks.testbed.processes import ChildError, Launcher
from mlfabric.errors import FabricError, UnavailableError, UsageError
from mlfabric.planning import warm_up
from mlfabric.twin.settings import Direction

__all__ = ["run"]

WORKERS = 10
AGGREGATORS = 2
FEWEST = 4
LINK_BPS = 100_000_000
SHARES = (1.0, 0.5, 0.2, 0.05)
PAUSE_S = (0.5, 2.0)
MOST_MINUTES = 24 * 60
WRITERS_A_MINUTE = 150
SAID_EVERY_S = 10.0
SHOWN = 5
Told = Callable[[str], None]


class Weather:
    """Everything that happens during a soak.

    Args:
        cluster: to whom.
        bed: whose links change; None if there are no hosts.
        draw: what, and when.
    """

    def __init__(self, cluster: Cluster, bed: Testbed | None, draw: random.Random) -> None:
        self.happened = Counter[str]()
        self._cluster = cluster
        self._bed = bed
        self._draw = draw
        self._stopped: list[str] = []

    def happen(self) -> None:
        """Let one thing happen, and undo one that can be undone."""
        self._wake()
        workers = [name for name in self._cluster.trainers if self._cluster.runs(name)]
        changes: dict[str, tuple[int, Callable[[list[str]], None]]] = {
            "worker spawned": (6 if len(workers) < WORKERS else 0, self._spawn),
            "worker killed": (3 if len(workers) > FEWEST else 0, self._kill),
            "worker left": (2 if len(workers) > FEWEST else 0, self._leave),
            "worker stopped": (1, self._stop),
            "scheduler killed": (1, self._kill_scheduler),
            "server killed": (1, self._kill_server),
            "aggregator killed": (1, self._kill_aggregator),
            "link changed": (3 if self._bed else 0, self._change_link),
        }
        (what,) = self._draw.choices(list(changes), [weight for weight, _ in changes.values()])
        changes[what][1](workers)
        self.happened[what] += 1
        self._cluster.check()

    def clear(self) -> None:
        """Undo all that can be undone."""
        self._wake()
        if self._bed:
            self._bed.set_rates({(h.name, d): LINK_BPS for h in self._bed.hosts for d in Direction})

    def _spawn(self, workers: list[str]) -> None:
        self._cluster.start_worker(host_of(self._draw.randrange(WORKERS)))

    def _kill(self, workers: list[str]) -> None:
        self._cluster.kill(self._draw.choice(workers))

    def _leave(self, workers: list[str]) -> None:
        self._cluster.tell_to_leave(self._draw.choice(workers))

    def _stop(self, workers: list[str]) -> None:
        self._stopped.append(self._draw.choice(workers))
        self._cluster.signal(self._stopped[-1], signal.SIGSTOP)

    def _wake(self) -> None:
        for name in self._stopped:
            if self._cluster.runs(name):
                self._cluster.signal(name, signal.SIGCONT)
        self._stopped.clear()

    def _kill_scheduler(self, workers: list[str]) -> None:
        self._cluster.kill(SCHEDULER)
        time.sleep(self._draw.choice((0.0, 1.0)))
        self._cluster.start_scheduler()

    def _kill_server(self, workers: list[str]) -> None:
        self._cluster.kill(SERVER)
        self._cluster.start_server(again=True)

    def _kill_aggregator(self, workers: list[str]) -> None:
        number = self._draw.randrange(AGGREGATORS)
        self._cluster.kill(aggregator_name(number))
        self._cluster.start_aggregator(number)

    def _change_link(self, workers: list[str]) -> None:
        assert self._bed is not None, "it has hosts"
        link = (host_of(self._draw.randrange(WORKERS)), self._draw.choice(list(Direction)))
        self._bed.set_rates({link: round(LINK_BPS * self._draw.choice(SHARES))})


def run(minutes: float, told: Told, *, seed: int = 0, folder: Path | None = None) -> dict[str, Any]:
    """Let things happen for some minutes, then find out what became of every update.

    Args:
        minutes: > 0, at most a day.
        told: is given a line of text now and then.
        seed: of what happens.
        folder: for the logs of all processes; without one they go at the end.

    Raises:
        UsageError: the minutes cannot be.
        FabricError: the fabric got stuck, or somebody died who was not killed; says who.
    """
    if not 0 < minutes <= MOST_MINUTES:
        raise UsageError(f"--minutes {minutes:g}; allowed: more than 0, up to {MOST_MINUTES}")
    warm_up(told)
    draw = random.Random(seed)
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mlfabric-soak-")))
        bed = _bed(stack, told)
        launcher = stack.enter_context(Launcher(place / "output", preloaded=PRELOADED))
        hosts = {host.name: host for host in bed.hosts} if bed else None
        cluster = stack.enter_context(Cluster(launcher, _plan(minutes), place / "soak", "soak", hosts))
        weather = Weather(cluster, bed, draw)
        try:
            cluster.start_all()
            _endure(weather, draw, minutes * 60, told)
            weather.clear()
            verdict = judge(cluster.finish())
        except (StuckError, ChildError, TimeoutError) as error:
            raise FabricError(f"the soak of seed {seed} ended early: {error}; --folder keeps all logs") from error
        return {
            "seed": seed,
            "minutes": minutes,
            "links": "change" if bed else "do not change",
            **{name.replace(" ", "_"): count for name, count in sorted(weather.happened.items())},
            "longest_pause_s": _longest_pause_s(cluster),
            "updates_committed": verdict.committed,
            "updates_lost": verdict.lost,
            "updates_twice": verdict.twice,
            "bound_violations": len(verdict.broken),
            "first_violations": list(verdict.broken[:SHOWN]),
        }


def _bed(stack: ExitStack, told: Told) -> Testbed | None:
    """Make hosts, if that can be done here."""
    names = [SCHEDULER, SERVER, *(host_of(i) for i in range(WORKERS))]
    try:
        return stack.enter_context(testbed(names, link_bps=LINK_BPS))
    except UnavailableError as error:
        told(f"links do not change: {error}")
        return None


def _plan(minutes: float) -> ClusterPlan:
    writers = WORKERS + round(WRITERS_A_MINUTE * minutes)
    return ClusterPlan(
        workers=WORKERS,
        aggregators=AGGREGATORS,
        ledger=Ledger(writers=writers),
        step_s=0.05,
        tau_max=4 * WORKERS,
        worker_rate="",
    )


def _endure(weather: Weather, draw: random.Random, seconds: float, told: Told) -> None:
    until_s = time.monotonic() + seconds
    said_s = 0.0
    while (now_s := time.monotonic()) < until_s:
        if now_s - said_s >= SAID_EVERY_S:
            said_s = now_s
            told(f"{until_s - now_s:.0f} s left; so far {_in_words(weather.happened)}")
        time.sleep(draw.uniform(*PAUSE_S))
        weather.happen()


def _in_words(happened: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in happened.most_common()) or "nothing"


def _longest_pause_s(cluster: Cluster) -> float:
    """Return the longest time between two commits that workers were told of."""
    times = sorted(at_ns for name in cluster.trainers for at_ns in cluster.commits_ns(name))
    return max((after - before for before, after in pairwise(times)), default=0) / 1e9
