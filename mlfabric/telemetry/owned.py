"""Figures of members and hosts that come and go: shown while they are known, and no longer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from typing import Generic, TypeVar

from prometheus_client import Counter, Gauge

__all__ = ["Owned"]

MetricT = TypeVar("MetricT", Counter, Gauge)


class Owned(Generic[MetricT]):
    """A metric with labels, each of whose series belongs to somebody.

    Args:
        metric: with labels.
    """

    def __init__(self, metric: MetricT) -> None:
        self._metric: MetricT = metric
        self._series: defaultdict[str, dict[tuple[str, ...], MetricT]] = defaultdict(dict)

    def of(self, owner: str, *labels: str) -> MetricT:
        """Return the series with these labels, which is that owner's."""
        series = self._series[owner]
        if (found := series.get(labels)) is None:
            found = series[labels] = self._metric.labels(*labels)
        return found

    def keep(self, owners: Container[str]) -> None:
        """Show no more series but of these owners."""
        for owner in [owner for owner in self._series if owner not in owners]:
            for labels in self._series.pop(owner):
                self._metric.remove(*labels)
