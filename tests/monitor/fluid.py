"""A network as fluid: what transfers take when links are shared max-min fairly. Truth for the estimator's tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlfabric.monitor.estimate import Link, Transfer

__all__ = ["Job", "fair_rates", "run"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A transfer that is begun at ``start_s``; ``rate_bps`` 0 means unpaced."""

    start_s: float
    from_host: str
    to_host: str
    bytes: int
    rate_bps: float = 0.0

    @property
    def links(self) -> tuple[Link, Link]:
        return Link(self.from_host, True), Link(self.to_host, False)


def fair_rates(jobs: Sequence[Job], capacity_bps: dict[Link, float]) -> list[float]:
    """Return each job's max-min fair rate: fill all evenly, freeze what a full link or its own pace stops."""
    rates: dict[int, float] = {}
    left = dict(capacity_bps)
    while len(rates) < len(jobs):
        free = [i for i in range(len(jobs)) if i not in rates]
        users = {link: [i for i in free if link in jobs[i].links] for link in left}
        level = {link: left[link] / len(on) for link, on in users.items() if on}
        stop = {i: min([level[link] for link in jobs[i].links] + [jobs[i].rate_bps or math.inf]) for i in free}
        lowest = min(stop.values())
        for i in [i for i in free if stop[i] <= lowest * (1 + 1e-12)]:
            rates[i] = lowest
            for link in jobs[i].links:
                left[link] -= lowest
    return [rates[i] for i in range(len(jobs))]


def run(jobs: Sequence[Job], capacity_bps: dict[Link, float]) -> list[Transfer]:
    """Return the finished transfers, in the order in which they end."""
    waiting = sorted(jobs, key=lambda job: job.start_s)
    active: list[tuple[Job, float]] = []
    done: list[Transfer] = []
    now = 0.0
    while waiting or active:
        rates = fair_rates([job for job, _ in active], capacity_bps)
        ends = [now + left / rate for (_, left), rate in zip(active, rates, strict=True)]
        then = min([*ends, *(job.start_s for job in waiting[:1])])
        moved = [(job, left - rate * (then - now)) for (job, left), rate in zip(active, rates, strict=True)]
        active = [(job, left) for (job, left), end in zip(moved, ends, strict=True) if end > then + 1e-12]
        done += [
            Transfer(
                from_host=job.from_host,
                to_host=job.to_host,
                bytes=job.bytes,
                started_s=job.start_s,
                ended_s=then,
                paced=job.rate_bps > 0,
            )
            for (job, _), end in zip(moved, ends, strict=True)
            if end <= then + 1e-12
        ]
        while waiting and waiting[0].start_s <= then:
            job = waiting.pop(0)
            active.append((job, 8.0 * job.bytes))
        now = then
    return done
