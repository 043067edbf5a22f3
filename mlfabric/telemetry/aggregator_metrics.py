"""What an aggregator shows to Prometheus: sums, models handed on, what broke, traffic, memory."""

from __future__ import annotations

from collections.abc import Mapping

from mlfabric.protocol import MemberEvent, TransferEnd, TransferEnded
from mlfabric.telemetry.observed import BATCH_UPDATES, Registry, Traffic, Transferred


class AggregatorMetrics:
    """What an aggregator summed, handed on, moved and holds."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self._sums = registry.counters("mlfabric_sums_total", "Sums that were made and sent completely.", "model")
        self._torn = registry.counters("mlfabric_sums_incomplete_total", "Sums that a part never came of.", "model")
        self._members = registry.histogram(
            "mlfabric_sum_updates", "Updates in a sum that was made.", buckets=BATCH_UPDATES
        )
        self._handed_on = registry.counters(
            "mlfabric_models_handed_on_total", "Members that a model was handed on to.", "model"
        )
        self._refused = registry.counter("mlfabric_refused_transfers_total", "Offers and wants that were refused.")
        self._broken = registry.counter(
            "mlfabric_broken_connections_total", "Data connections that broke, or whose other end broke the rules."
        )
        self._memory = registry.gauges("mlfabric_aggregator_memory_bytes", "Tensor memory held, by kind.", "kind")
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
