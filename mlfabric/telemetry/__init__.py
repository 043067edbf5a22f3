"""What every service shows to Prometheus: one small class of typed methods per service, and the page they are on.

Each object has a registry of its own, because several services may run in one process. Names follow Prometheus'
conventions: base units (seconds, bytes), ``_total`` for counters. Rates inside the fabric are in bit/s; on the page
they are in bytes per second. Children of labelled metrics are cached: observing costs about a microsecond.
"""

from __future__ import annotations

from mlfabric.telemetry.aggregator_metrics import AggregatorMetrics
from mlfabric.telemetry.forwarding_log import FORWARDING_LOG, Forwarding
from mlfabric.telemetry.monitor_metrics import MonitorMetrics
from mlfabric.telemetry.observed import Transferred
from mlfabric.telemetry.page import MetricsPage
from mlfabric.telemetry.scheduler_metrics import SchedulerMetrics
from mlfabric.telemetry.server_metrics import ServerMetrics
from mlfabric.telemetry.worker_metrics import WorkerMetrics

__all__ = [
    "FORWARDING_LOG",
    "AggregatorMetrics",
    "Forwarding",
    "MetricsPage",
    "MonitorMetrics",
    "SchedulerMetrics",
    "ServerMetrics",
    "Transferred",
    "WorkerMetrics",
]
