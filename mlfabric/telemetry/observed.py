"""What the services' metrics have in common: buckets, and how an outcome, a direction and a transfer are shown."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from mlfabric.protocol import Committed, Dropped, Lost, Outcome

BATCH_UPDATES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WAIT_S = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Registry(CollectorRegistry):
    """A registry that makes its metrics itself; of those with labels it gives the one of some values, made once."""

    def counter(self, name: str, words: str) -> Counter:
        """Register a counter without labels."""
        return Counter(name, words, registry=self)

    def counters(self, name: str, words: str, *labels: str) -> Callable[..., Counter]:
        """Register a counter with labels."""
        return cache(Counter(name, words, labels, registry=self).labels)

    def gauges(self, name: str, words: str, *labels: str) -> Callable[..., Gauge]:
        """Register a gauge with labels."""
        return cache(Gauge(name, words, labels, registry=self).labels)

    def histogram(self, name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
        """Register a histogram without labels."""
        return Histogram(name, words, buckets=buckets, registry=self)

    def histograms(self, name: str, words: str, *labels: str, buckets: tuple[float, ...]) -> Callable[..., Histogram]:
        """Register a histogram with labels."""
        return cache(Histogram(name, words, labels, buckets=buckets, registry=self).labels)


class Transferred(Protocol):
    """What is needed of a data channel's transfer record."""

    @property
    def bytes(self) -> int:
        """Payload bytes."""

    @property
    def direction(self) -> Enum:
        """``in`` or ``out``."""


def direction(up: bool) -> str:
    """Return the label of one direction of a link."""
    return "up" if up else "down"


def settled_as(outcome: Outcome) -> tuple[str, str]:
    """Return the labels ``outcome`` and ``cause``."""
    match outcome:
        case Committed():
            return "committed", ""
        case Dropped():
            return "dropped", outcome.cause.name.lower()
        case Lost():
            return "lost", ""


class Traffic:
    """Payload bytes that a member sent and received, by peer."""

    def __init__(self, registry: Registry) -> None:
        self._by_direction = {
            "in": registry.counters(
                "mlfabric_received_bytes_total", "Payload bytes received on data channels.", "peer"
            ),
            "out": registry.counters("mlfabric_sent_bytes_total", "Payload bytes sent on data channels.", "peer"),
        }

    def add(self, record: Transferred, peer: str) -> None:
        """Count the bytes of a transfer from or to ``peer``."""
        self._by_direction[record.direction.value](peer).inc(record.bytes)
