"""What an aggregator shows to Prometheus: sums, models handed on, what broke, traffic, memory."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram

from mlfabric.protocol import MemberEvent, TransferEnd, TransferEnded
from mlfabric.telemetry.observed import BATCH_UPDATES, Traffic, Transferred, counters, gauges


class AggregatorMetrics:
    """What an aggregator summed, handed on, moved and holds."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._sums = counters(registry, "mlfabric_sums_total", "Sums that were made and sent completely.", "model")
        self._torn = counters(registry, "mlfabric_torn_sums_total", "Sums that a part of will never come.", "model")
        self._members = Histogram(
            "mlfabric_sum_updates", "Updates in a sum that was made.", buckets=BATCH_UPDATES, registry=registry
        )
        self._handed_on = counters(
            registry, "mlfabric_models_handed_on_total", "Members that a model was handed on to.", "model"
        )
        self._refused = Counter(
            "mlfabric_refused_transfers_total", "Offers and wants that were refused.", registry=registry
        )
        self._broken = Counter(
            "mlfabric_broken_connections_total",
            "Data connections that broke, or whose other end broke the rules.",
            registry=registry,
        )
        self._memory = gauges(registry, "mlfabric_aggregator_memory_bytes", "Tensor memory held, by kind.", "kind")
        self._traffic = Traffic(registry)

    def summed(self, model: str, updates: int) -> None:
        """Count a sum that was made, of so many updates."""
        self._sums(model).inc()
        self._members.observe(updates)

    def ended(self, event: MemberEvent) -> None:
        """Count what is reported to the scheduler as torn, or as handed on."""
        if isinstance(event, TransferEnded) and event.end is TransferEnd.TORN:
            self._torn(event.model).inc()
        if isinstance(event, TransferEnded) and event.end is TransferEnd.SERVED:
            self._handed_on(event.model).inc()

    def refused(self) -> None:
        """Count an offer or a want that was refused."""
        self._refused.inc()

    def connection_broke(self) -> None:
        """Count a data connection that broke."""
        self._broken.inc()

    def transfer(self, record: Transferred, peer: str) -> None:
        """Count the bytes of a transfer from or to ``peer``."""
        self._traffic.add(record, peer)

    def memory(self, kinds: Mapping[str, int]) -> None:
        """Set the bytes held, by kind."""
        for kind, n_bytes in kinds.items():
            self._memory(kind).set(n_bytes)
