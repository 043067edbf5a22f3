"""``register_as_aggregator``: an aggregator inside a Python program."""

from __future__ import annotations

from mlfabric.aggregator.service import AggregatorOptions, AggregatorService
from mlfabric.shell.background import Background
from mlfabric.telemetry import AggregatorMetrics

__all__ = ["Aggregator", "register_as_aggregator"]


class Aggregator(Background):
    """A running aggregator; made by ``mlfabric.register_as_aggregator``."""

    def __init__(self, options: AggregatorOptions, metrics_port: int | None) -> None:
        metrics = AggregatorMetrics()
        self._service = AggregatorService(options, metrics)
        super().__init__(options, self._service.run, metrics.registry, metrics_port)


def register_as_aggregator(options: AggregatorOptions, *, metrics_port: int | None = None) -> Aggregator:
    """Start an aggregator in a thread of this process, and wait until the scheduler has admitted it.

    If it cannot go on, its ``wait`` and ``stop`` raise the reason.

    Args:
        options: see ``mlfabric.AggregatorOptions``.
        metrics_port: where /metrics is served; 0 any free port, None not at all.

    Raises:
        UsageError: an option cannot be used.
        RefusedError: the scheduler refuses it, as its name is taken.
    """
    return Aggregator(options, metrics_port)
