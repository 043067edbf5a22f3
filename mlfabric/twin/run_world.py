"""What every run of the twin goes on in: links whose rates change, and a planner that hears of it later."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mlfabric.twin.cluster import Cluster
from mlfabric.twin.draws import ComputeTimes, Weather
from mlfabric.twin.flows import Flows
from mlfabric.twin.monitoring import Estimated, Told, monitor_of
from mlfabric.twin.outcome import Outcome, Recorder
from mlfabric.twin.planned import Order, Planner

__all__ = ["Progress", "RunWorld"]

_PLAN_NS, _PLAN_ONE_NS = (0.3e6, 1.0e6), (10e3, 40e3)
"""What a plan takes, and what each request in it takes besides; without aggregators, and with some (measured)."""

Progress = Callable[[int, int], None]
"""Told of how many steps of how many are done."""


class RunWorld:
    """Hosts and links while a run goes on.

    Args:
        cluster: what runs.
        spans_s: until when what workers do is kept for a picture.
    """

    def __init__(self, cluster: Cluster, spans_s: float = 0.0) -> None:
        self.cluster = cluster
        self.times = ComputeTimes(cluster)
        self.weather = Weather(cluster)
        self.planner = Planner(cluster)
        self.flows = Flows(self.weather.rates(0.0))
        self.record = Recorder(len(cluster.workers), cluster.iterations, 1e9 * spans_s)
        self.free_ns = 0.0
        self.control_ns, self.latency_ns = 1e9 * cluster.control_s, 1e9 * cluster.latency_s
        self._rates = self.weather.rates(0.0)
        self._since_ns = 0.0
        self._could_bits = np.zeros(len(self._rates))
        self._next_ns = self.weather.next_change_ns(0.0)
        self._monitor = monitor_of(cluster)
        self._tell_monitor(0.0)

    @property
    def now_ns(self) -> float:
        """The instant that was reached."""
        return self.flows.now_ns

    def plans(self, count: int) -> float:
        """Keep the scheduler busy with a plan of so many requests; return how long it takes, in ns.

        What a lone request takes is counted with its messages.
        """
        helped = bool(self.planner.helpers)
        took_ns = 0.0 if count == 1 else _PLAN_NS[helped] + count * _PLAN_ONE_NS[helped]
        self.free_ns = self.now_ns + took_ns
        return took_ns

    def order(self) -> Order:
        """Return an order of grants in which nothing is yet."""
        return Order(self.planner, self.cluster)

    def run(self, until_ns: float) -> int | None:
        """Go on until an instant or until rates change, or until a transfer arrived that is to be told of.

        Returns:
            Its number, or None.
        """
        bound_ns = min(until_ns, self._next_ns)
        found = self.flows.run(bound_ns)
        if found is None and self._next_ns <= until_ns and self.flows.now_ns >= bound_ns:
            assert self._next_ns < math.inf, "nothing is to happen any more, and not all steps are made"
            self._change()
        return found

    def run_to(self, until_ns: float) -> None:
        """Go on until an instant, whatever arrives."""
        while self.now_ns < until_ns:
            self.run(until_ns)

    def learn(self) -> NDArray[np.bool_]:
        """Let the planner hear of what its monitor has measured by now; return which links have other rates."""
        rates = self._monitor.tell(self.now_ns)
        return np.zeros(len(self._rates), np.bool_) if rates is None else self.planner.learn(rates)

    @property
    def next_news_ns(self) -> float:
        """When the planner hears of rates next."""
        return self._monitor.next_ns

    def passed(self, numbers: Sequence[int]) -> None:
        """Let the monitor know of transfers that have arrived and are not freed."""
        if isinstance(self._monitor, Estimated):
            self._monitor.passed(self.flows.passed(numbers), self.now_ns)

    def outcome(self, name: str) -> Outcome:
        """Return what came of it."""
        hosts = tuple(host.name for host in self.cluster.hosts)
        could_bits = self._could_bits + self._rates * (self.now_ns - self._since_ns)
        return self.record.outcome(name, hosts, self.flows.carried_bits / np.maximum(could_bits, 1.0))

    def _change(self) -> None:
        at_ns = self._next_ns
        self._could_bits += self._rates * (at_ns - self._since_ns)
        self._rates, self._since_ns = self.weather.rates(at_ns), at_ns
        self.flows.set_rates(self._rates)
        self._tell_monitor(at_ns)
        self._next_ns = self.weather.next_change_ns(at_ns)

    def _tell_monitor(self, at_ns: float) -> None:
        if isinstance(self._monitor, Told):
            self._monitor.changed(at_ns, self._rates)
