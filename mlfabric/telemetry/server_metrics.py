"""What a parameter server shows to Prometheus: commits, checkpoints, traffic, memory."""

from __future__ import annotations

from collections.abc import Mapping

from mlfabric.model.ranges import count
from mlfabric.model.samples import SampleCounts
from mlfabric.protocol import Commit
from mlfabric.telemetry.observed import WAIT_S, Registry, Traffic, Transferred


class ServerMetrics:
    """What a parameter server committed, moved and holds."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self._commits = registry.counters("mlfabric_commits_total", "Updates applied to the model.", "model")
        self._version = registry.gauges("mlfabric_model_version", "Version that the server holds.", "model")
        self._checkpoint = registry.histograms(
            "mlfabric_checkpoint_seconds", "Time to write one checkpoint.", "model", buckets=WAIT_S
        )
        self._memory = registry.gauges("mlfabric_server_memory_bytes", "Tensor memory held, by kind.", "kind")
        self._received = registry.counters(
            "mlfabric_received_total",
            "Transfers that came completely, by kind: a lone update, or a sum of several.",
            "model",
            "kind",
        )
        self._broken = registry.counter(
            "mlfabric_broken_connections_total", "Data connections that broke, or whose other end broke the rules."
        )
        self._samples = registry.gauges(
            "mlfabric_samples",
            "Samples that were trained on, on top of that repeated, dropped or lost.",
            "model",
            "fate",
        )
        self._kinds: set[str] = set()
        self._traffic = Traffic(registry)

    def received(self, model: str, kind: str) -> None:
        """Count one complete transfer of an update or a sum."""
        self._received(model, kind).inc()

    def commit(self, model: str, commit: Commit) -> None:
        """Count one commit and set the version that it made."""
        self._commits(model).inc()
        self._version(model).set(commit.version.number)

    def checkpoint(self, model: str, seconds: float) -> None:
        """Observe how long one checkpoint took to write."""
        self._checkpoint(model).observe(seconds)

    def connection_broke(self) -> None:
        """Count a data connection that broke."""
        self._broken.inc()

    def samples(self, model: str, counts: SampleCounts) -> None:
        """Set what became of the samples that updates were computed from."""
        self._samples(model, "trained").set(count(counts.trained) + counts.unplaced)
        self._samples(model, "repeated").set(count(tuple((start, stop) for start, stop, _ in counts.repeated)))
        self._samples(model, "dropped").set(count(counts.not_trained))
        self._samples(model, "lost").set(count(counts.not_trained_again))

    def transfer(self, record: Transferred, peer: str) -> None:
        """Count the bytes of a transfer from or to ``peer``."""
        self._traffic.add(record, peer)

    def memory(self, kinds: Mapping[str, int]) -> None:
        """Set the bytes held by kind; what is not named is 0."""
        self._kinds |= kinds.keys()
        for kind in self._kinds:
            self._memory(kind).set(kinds.get(kind, 0))
