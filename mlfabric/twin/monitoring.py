"""What the planner hears of the rates of links, and when: as the live monitor estimates them, or as they are, but late.

The live monitor judges links by finished transfers, so it is late, and at times wrong: it knows nothing of a link over
which nothing went lately, and what is paced, or passed on no faster than it comes, tells only that a link carries at
least that much. Here the same estimator (``mlfabric/monitor/estimate.py``) hears of the twin's transfers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mlfabric.monitor.estimate import Estimate, EstimatorOptions, Link, LinkEstimator, Transfer
from mlfabric.monitor.news import News
from mlfabric.twin.cluster import Cluster, Monitoring
from mlfabric.twin.flows import Passed

__all__ = ["Estimated", "Told", "monitor_of"]

Rates = NDArray[np.float64]
"""Of all links in bits per ns, up links first."""

STARVED_SHARE = 0.1
"""A stream that comes later than its links made it, by more than this share of its time, was held up by its input."""
LEAST_NS = 10e6
"""Between two reports."""
LARGE = 200
"""With more workers estimating would take longer than all else; they are told."""


class Told:
    """Knows all rates, but late; ``next_ns`` is when it tells of some next, infinity for never.

    Args:
        lag_ns: how late.
    """

    def __init__(self, lag_ns: float) -> None:
        self._lag_ns = lag_ns
        self._news: deque[tuple[float, Rates]] = deque()
        self.next_ns = math.inf

    def changed(self, at_ns: float, rates: Rates) -> None:
        """Note that links have other rates from an instant on."""
        self._news.append((at_ns + self._lag_ns, rates))
        self.next_ns = self._news[0][0]

    def tell(self, now_ns: float) -> Rates | None:
        """Return the rates that are known by now; None if there is no news."""
        found = None
        while self._news and self._news[0][0] <= now_ns:
            found = self._news.popleft()[1]
        self.next_ns = self._news[0][0] if self._news else math.inf
        return found


class Estimated:
    """Estimates rates from finished transfers, as the live monitor does."""

    def __init__(self, cluster: Cluster) -> None:
        self._estimator = LinkEstimator(EstimatorOptions(half_life_s=cluster.monitor_half_life_s))
        self._reports = News()
        self._hosts = [host.name for host in cluster.hosts]
        self._control_ns, self._latency_ns = 1e9 * cluster.control_s, 1e9 * cluster.latency_s
        self._every_ns = max(LEAST_NS, 1e9 * cluster.monitor_lag_s)
        self._records: deque[tuple[float, list[Transfer]]] = deque()
        self._rates = np.array([h.up_bps for h in cluster.hosts] + [h.down_bps for h in cluster.hosts]) / 1e9
        self._number = {Link(name, is_up): (0 if is_up else len(self._hosts)) + number
                        for number, name in enumerate(self._hosts) for is_up in (True, False)}  # fmt: skip
        if cluster.are_rates_told:
            for host in cluster.hosts:
                self._estimator.set_nominal(host.name, round(host.up_bps), round(host.down_bps))
        self.next_ns = self._every_ns

    def passed(self, transfers: Sequence[Passed], now_ns: float) -> None:
        """Note what has arrived."""
        found = [self._record(one) for one in transfers if one.up >= 0]
        if found:
            self._records.append((now_ns + self._control_ns, found))

    def _record(self, passed: Passed) -> Transfer:
        """Return what the receiver says of a transfer, from its first byte on, or of a stream its sender."""
        up, down, bits, began_ns, drained_ns, ended_ns, pace, inputs = passed
        began_ns = min(began_ns + self._latency_ns, ended_ns)
        starved_ns, took_ns = ended_ns - self._latency_ns - drained_ns, ended_ns - began_ns
        is_busy = inputs > 0 and pace == math.inf and starved_ns <= STARVED_SHARE * took_ns
        return Transfer(
            from_host=self._hosts[up],
            to_host=self._hosts[down - len(self._hosts)],
            bytes=round(bits / 8),
            started_s=began_ns / 1e9,
            ended_s=ended_ns / 1e9,
            paced=pace < math.inf or inputs > 0,
            busy_bytes=round(bits / 8) if is_busy else 0,
            busy_s=took_ns / 1e9 if is_busy else 0.0,
        )

    def tell(self, now_ns: float) -> Rates | None:
        """Return the rates that are known by now; None if there is no news."""
        if now_ns < self.next_ns:
            return None
        self.next_ns = now_ns + self._every_ns
        now_s = now_ns / 1e9
        while self._records and self._records[0][0] <= now_ns:
            self._estimator.observe(self._records.popleft()[1], now_s)
        news = self._reports.of(self._estimates(now_s), now_s)
        self._reports.reported(news.items(), now_s)
        if not news:
            return None
        self._rates = self._rates.copy()
        for link, found in news.items():
            self._rates[self._number[link]] = found.bps / 1e9
        return self._rates

    def _estimates(self, now_s: float) -> dict[Link, Estimate]:
        found = {link: self._estimator.estimate(link, now_s) for link in self._estimator.links}
        return {link: estimate for link, estimate in found.items() if estimate is not None and estimate.bps > 0}


def monitor_of(cluster: Cluster) -> Told | Estimated:
    """Return the monitor of a cluster."""
    if cluster.monitoring is Monitoring.TELLS or len(cluster.workers) > LARGE:
        return Told(1e9 * cluster.monitor_lag_s)
    return Estimated(cluster)
