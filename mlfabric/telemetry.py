"""What every service shows to Prometheus: one small class of typed methods per service, and the page they are on.

Each object has a registry of its own, because several services may run in one process. Names follow Prometheus'
conventions: base units (seconds, bytes), ``_total`` for counters. Rates inside the fabric are in bit/s; on the page
they are in bytes per second. Children of labelled metrics are cached: observing costs about a microsecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from threading import Thread
from typing import Protocol
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from mlfabric.errors import UsageError
from mlfabric.protocol import (
    Commit,
    Committed,
    Dropped,
    Lost,
    MemberEvent,
    ModelVersion,
    Outcome,
    TransferEnd,
    TransferEnded,
)
from mlfabric.specs import Role

__all__ = [
    "AggregatorMetrics",
    "MetricsPage",
    "MonitorMetrics",
    "SchedulerMetrics",
    "ServerMetrics",
    "Transferred",
    "WorkerMetrics",
]

DELAY_VERSIONS = (0, 1, 2, 4, 8, 16, 32, 64)
BATCH_UPDATES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BRIEF_S = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 1.0)
WAIT_S = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Transferred(Protocol):
    """What is needed of a data channel's transfer record."""

    @property
    def bytes(self) -> int:
        """Payload bytes."""

    @property
    def direction(self) -> Enum:
        """``in`` or ``out``."""


def _direction(up: bool) -> str:
    return "up" if up else "down"


def _settled_as(outcome: Outcome) -> tuple[str, str]:
    """Return the labels ``outcome`` and ``cause``."""
    match outcome:
        case Committed():
            return "committed", ""
        case Dropped():
            return "dropped", outcome.cause.name.lower()
        case Lost():
            return "lost", ""


class _Traffic:
    """Payload bytes that a member sent and received, by peer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        received = Counter(
            "mlfabric_received_bytes_total", "Payload bytes received on data channels.", ["peer"], registry=registry
        )
        sent = Counter("mlfabric_sent_bytes_total", "Payload bytes sent on data channels.", ["peer"], registry=registry)
        self._by_direction = {"in": cache(received.labels), "out": cache(sent.labels)}

    def add(self, record: Transferred, peer: str) -> None:
        self._by_direction[record.direction.value](peer).inc(record.bytes)


class SchedulerMetrics:
    """What the scheduler decided and what it decides on."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._delay = cache(
            Histogram(
                "mlfabric_update_delay_versions",
                "Delay of committed updates: versions that others made since theirs was read.",
                ["model"],
                buckets=DELAY_VERSIONS,
                registry=registry,
            ).labels
        )
        self._updates = cache(
            Counter(
                "mlfabric_updates_total",
                "Updates by what became of them; cause says why an update was dropped.",
                ["model", "worker", "outcome", "cause"],
                registry=registry,
            ).labels
        )
        self._plan = Histogram("mlfabric_plan_seconds", "Time to plan one batch.", buckets=BRIEF_S, registry=registry)
        self._batch = Histogram(
            "mlfabric_batch_updates", "Updates planned together.", buckets=BATCH_UPDATES, registry=registry
        )
        self._group = cache(
            Histogram(
                "mlfabric_group_updates",
                "Updates in each planned group, by the shape of its way to the server.",
                ["shape"],
                buckets=BATCH_UPDATES,
                registry=registry,
            ).labels
        )
        self._torn = cache(
            Counter(
                "mlfabric_sums_torn_total", "Planned sums given up, by reason.", ["cause"], registry=registry
            ).labels
        )
        self._queue = cache(
            Gauge("mlfabric_queue_updates", "Updates that wait for a plan.", ["model"], registry=registry).labels
        )
        self._version = cache(
            Gauge("mlfabric_model_version", "Newest version of the model.", ["model"], registry=registry).labels
        )
        self._rate = cache(
            Gauge(
                "mlfabric_link_rate_bytes_per_second",
                "Rate that plans are made with, of one direction of a host's link.",
                ["host", "direction"],
                registry=registry,
            ).labels
        )
        self._members = cache(
            Gauge(
                "mlfabric_members", "Members that joined, by role and state.", ["role", "state"], registry=registry
            ).labels
        )
        self._counted: set[tuple[str, str]] = set()
        self._decision = Histogram(
            "mlfabric_decision_seconds",
            "Time to handle one event in the state machine.",
            buckets=BRIEF_S,
            registry=registry,
        )

    def settled(self, model: str, worker: str, outcome: Outcome) -> None:
        """Count an update whose outcome is known, and the delay of a committed one."""
        self._updates(model, worker, *_settled_as(outcome)).inc()
        if isinstance(outcome, Committed):
            self._delay(model).observe(outcome.tau)

    def plan(self, seconds: float, updates: int) -> None:
        """Observe one plan: how long it took to make, over how many updates."""
        self._plan.observe(seconds)
        self._batch.observe(updates)

    def groups(self, shape: str, updates: int, number: int) -> None:
        """Observe that ``number`` groups of so many updates were planned in one shape."""
        for _ in range(number):
            self._group(shape).observe(updates)

    def torn(self, cause: str, number: int) -> None:
        """Count planned sums that were given up."""
        self._torn(cause).inc(number)

    def decision(self, seconds: float) -> None:
        """Observe how long the state machine took over one event."""
        self._decision.observe(seconds)

    def queue(self, model: str, updates: int) -> None:
        """Set how many updates wait for a plan."""
        self._queue(model).set(updates)

    def version(self, model: str, version: ModelVersion) -> None:
        """Set the newest version of a model."""
        self._version(model).set(version.number)

    def link_rate(self, host: str, up: bool, bps: float) -> None:
        """Set the rate in bit/s that plans are made with."""
        self._rate(host, _direction(up)).set(bps / 8)

    def members(self, counts: Mapping[tuple[Role, str], int]) -> None:
        """Set how many members of each role are in each state; what is not named is 0."""
        named = {(role.value, state): n for (role, state), n in counts.items()}
        self._counted |= named.keys()
        for labels in self._counted:
            self._members(*labels).set(named.get(labels, 0))


class ServerMetrics:
    """What a parameter server committed, moved and holds."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._commits = cache(
            Counter("mlfabric_commits_total", "Updates applied to the model.", ["model"], registry=registry).labels
        )
        self._version = cache(
            Gauge("mlfabric_model_version", "Version that the server holds.", ["model"], registry=registry).labels
        )
        self._step = cache(
            Histogram(
                "mlfabric_commit_seconds",
                "Time to compute and install one step.",
                ["model"],
                buckets=WAIT_S,
                registry=registry,
            ).labels
        )
        self._checkpoint = cache(
            Histogram(
                "mlfabric_checkpoint_seconds",
                "Time to write one checkpoint.",
                ["model"],
                buckets=WAIT_S,
                registry=registry,
            ).labels
        )
        self._memory = cache(
            Gauge("mlfabric_server_memory_bytes", "Tensor memory held, by kind.", ["kind"], registry=registry).labels
        )
        self._received = cache(
            Counter(
                "mlfabric_received_total",
                "Transfers that came completely, by kind: a lone update, or a sum of several.",
                ["model", "kind"],
                registry=registry,
            ).labels
        )
        self._kinds: set[str] = set()
        self._traffic = _Traffic(registry)

    def received(self, model: str, kind: str) -> None:
        """Count one complete transfer of an update or a sum."""
        self._received(model, kind).inc()

    def commit(self, model: str, commit: Commit) -> None:
        """Count one commit and set the version that it made."""
        self._commits(model).inc()
        self._version(model).set(commit.version.number)

    def version(self, model: str, version: ModelVersion) -> None:
        """Set the version that the server holds, where no commit made it (initial weights, a resumed model)."""
        self._version(model).set(version.number)

    def step(self, model: str, seconds: float) -> None:
        """Observe how long one step took to compute and install."""
        self._step(model).observe(seconds)

    def checkpoint(self, model: str, seconds: float) -> None:
        """Observe how long one checkpoint took to write."""
        self._checkpoint(model).observe(seconds)

    def transfer(self, record: Transferred, peer: str) -> None:
        """Count the bytes of a transfer from or to ``peer``."""
        self._traffic.add(record, peer)

    def memory(self, kinds: Mapping[str, int]) -> None:
        """Set the bytes held by kind; what is not named is 0."""
        self._kinds |= kinds.keys()
        for kind in self._kinds:
            self._memory(kind).set(kinds.get(kind, 0))


class AggregatorMetrics:
    """What an aggregator summed, handed on, moved and holds."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._sums = cache(
            Counter(
                "mlfabric_sums_total", "Sums that were made and sent completely.", ["model"], registry=registry
            ).labels
        )
        self._torn = cache(
            Counter(
                "mlfabric_torn_sums_total", "Sums that a part of will never come.", ["model"], registry=registry
            ).labels
        )
        self._members = Histogram(
            "mlfabric_sum_updates", "Updates in a sum that was made.", buckets=BATCH_UPDATES, registry=registry
        )
        self._handed_on = cache(
            Counter(
                "mlfabric_models_handed_on_total",
                "Members that a model was handed on to.",
                ["model"],
                registry=registry,
            ).labels
        )
        self._refused = Counter(
            "mlfabric_refused_transfers_total", "Offers and wants that were refused.", registry=registry
        )
        self._broken = Counter(
            "mlfabric_broken_connections_total",
            "Data connections that broke, or whose other end broke the rules.",
            registry=registry,
        )
        self._memory = cache(
            Gauge(
                "mlfabric_aggregator_memory_bytes", "Tensor memory held, by kind.", ["kind"], registry=registry
            ).labels
        )
        self._traffic = _Traffic(registry)

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


class WorkerMetrics:
    """What a worker's daemon pushed and got."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._push = Histogram(
            "mlfabric_push_seconds", "Time from a push to its outcome.", buckets=WAIT_S, registry=registry
        )
        self._get = Histogram(
            "mlfabric_get_seconds", "Time from asking for a model to having it.", buckets=WAIT_S, registry=registry
        )
        self._updates = cache(
            Counter(
                "mlfabric_worker_updates_total",
                "This worker's updates by what became of them.",
                ["outcome", "cause"],
                registry=registry,
            ).labels
        )
        self._in_flight = Gauge(
            "mlfabric_worker_in_flight_updates", "Updates pushed and without outcome.", registry=registry
        )
        self._traffic = _Traffic(registry)

    def settled(self, outcome: Outcome, seconds: float) -> None:
        """Count an update's outcome and observe the time from its push to it."""
        self._updates(*_settled_as(outcome)).inc()
        self._push.observe(seconds)

    def got(self, seconds: float) -> None:
        """Observe how long a get took."""
        self._get.observe(seconds)

    def in_flight(self, updates: int) -> None:
        """Set how many updates have no outcome yet."""
        self._in_flight.set(updates)

    def transfer(self, record: Transferred, peer: str) -> None:
        """Count the bytes of a transfer from or to ``peer``."""
        self._traffic.add(record, peer)


class MonitorMetrics:
    """What the monitor heard and what it makes of it."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._estimate = Gauge(
            "mlfabric_link_estimate_bytes_per_second",
            "Estimate of what one direction of a host's link carries, by what it was last learnt from.",
            ["host", "direction", "source"],
            registry=registry,
        )
        self._age = cache(
            Gauge(
                "mlfabric_link_estimate_age_seconds",
                "Time since the estimate was last borne out.",
                ["host", "direction"],
                registry=registry,
            ).labels
        )
        self._sources: dict[tuple[str, str], str] = {}
        self._records = Counter(
            "mlfabric_transfer_records_total", "Records of finished transfers received.", registry=registry
        )
        self._nic = cache(
            Counter(
                "mlfabric_nic_bytes_total",
                "Bytes that passed the monitor's own network interface, of whatever program.",
                ["interface", "direction"],
                registry=registry,
            ).labels
        )

    def link(self, host: str, up: bool, bps: float, age_s: float, source: str) -> None:
        """Set a link's estimate in bit/s; it is shown under one source at a time."""
        link = (host, _direction(up))
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


class MetricsPage:
    """A registry's page for Prometheus to scrape, served by a thread.

    Args:
        registry: what is shown.
        bind_host: address to listen on.
        port: port to listen on; 0 takes any that is free.
    """

    def __init__(self, registry: CollectorRegistry, bind_host: str = "127.0.0.1", port: int = 0) -> None:
        self._registry = registry
        self._bind_host = bind_host
        self._port = port
        self._serving: tuple[WSGIServer, Thread] | None = None

    def start(self) -> int:
        """Serve the page and return the port that it is on.

        Raises:
            UsageError: the port is in use, or the address is not one of this machine.
        """
        assert self._serving is None, "the page was started twice"
        try:
            server, thread = start_http_server(self._port, self._bind_host, self._registry)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"metrics page: cannot listen on {self._bind_host}:{self._port} ({error});"
                " give an address of this machine and a free port, or port 0 for any"
            ) from error
        self._serving = server, thread
        return int(server.server_port)

    def stop(self) -> None:
        """Stop serving and free the port; waits up to half a second for the thread."""
        if self._serving is not None:
            server, thread = self._serving
            self._serving = None
            server.shutdown()
            server.server_close()
            thread.join()
