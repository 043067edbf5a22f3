"""What the monitor shows to Prometheus: what links carry by its estimate, and what it heard."""

from __future__ import annotations

from prometheus_client import Gauge

from mlfabric.telemetry.observed import Registry, direction


class MonitorMetrics:
    """What the monitor heard and what it makes of it."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self._estimate = Gauge(
            "mlfabric_link_estimate_bytes_per_second",
            "Estimate of what one direction of a host's link carries, by what it was last learnt from.",
            ["host", "direction", "source"],
            registry=registry,
        )
        self._age = registry.gauges(
            "mlfabric_link_estimate_age_seconds", "Time since the estimate was last borne out.", "host", "direction"
        )
        self._sources: dict[tuple[str, str], str] = {}
        self._records = registry.counter("mlfabric_transfer_records_total", "Records of finished transfers received.")
        self._nic = registry.counters(
            "mlfabric_nic_bytes_total",
            "Bytes that passed the monitor's own network interface, of whatever program.",
            "interface",
            "direction",
        )

    def link(self, host: str, up: bool, bps: float, age_s: float, source: str) -> None:
        """Set a link's estimate in bit/s; it is shown under one source at a time."""
        link = (host, direction(up))
        before = self._sources.get(link, source)
        if before != source:
            self._estimate.remove(*link, before)
        self._sources[link] = source
        self._estimate.labels(*link, source).set(bps / 8)
        self._age(*link).set(age_s)

    def records(self, count: int) -> None:
        """Count transfer records."""
        self._records.inc(count)

    def nic(self, interface: str, sent_bytes: int, received_bytes: int) -> None:
        """Count bytes that passed an interface since the last call."""
        self._nic(interface, "up").inc(sent_bytes)
        self._nic(interface, "down").inc(received_bytes)
