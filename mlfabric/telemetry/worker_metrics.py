"""What a worker's daemon shows to Prometheus: pushes, gets, what is under way, traffic."""

from __future__ import annotations

from prometheus_client import Gauge

from mlfabric.protocol import Outcome
from mlfabric.telemetry.observed import WAIT_S, Registry, Traffic, Transferred, settled_as


class WorkerMetrics:
    """What a worker's daemon pushed and got."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self._push = registry.histogram("mlfabric_push_seconds", "Time from a push to its outcome.", buckets=WAIT_S)
        self._get = registry.histogram(
            "mlfabric_get_seconds", "Time from asking for a model to having it.", buckets=WAIT_S
        )
        self._updates = registry.counters(
            "mlfabric_worker_updates_total", "This worker's updates by what became of them.", "outcome", "cause"
        )
        self._in_flight = Gauge(
            "mlfabric_worker_in_flight_updates", "Updates pushed and without outcome.", registry=registry
        )
        self._open: dict[str, int] = {}
        self._traffic = Traffic(registry)

    def settled(self, outcome: Outcome, seconds: float) -> None:
        """Count an update's outcome and observe the time from its push to it."""
        self._updates(*settled_as(outcome)).inc()
        self._push.observe(seconds)

    def got(self, seconds: float) -> None:
        """Observe how long a get took."""
        self._get.observe(seconds)

    def in_flight(self, worker: str, updates: int) -> None:
        """Set how many updates of a worker have no outcome yet; shown is the sum."""
        self._open[worker] = updates
        self._in_flight.set(sum(self._open.values()))

    def transfer(self, record: Transferred, peer: str) -> None:
        """Count the bytes of a transfer from or to ``peer``."""
        self._traffic.add(record, peer)
