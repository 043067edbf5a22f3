"""What rounds without a server would do on a cluster: the real shells on its links, in virtual time, without faults.

*What is real.* The scheduler and the workers, their state machines, plans, what they learn of links, the messages
between them and every byte of a model up to ``MOST_BYTES``. A larger one is played with so many bytes, over links that
are slower in the same measure.

*What is stated.* Links change with the cluster's weather, and streams share them evenly. What arrives is acknowledged
over the links of the other way. A piece of a stream takes ``latency_s`` besides, a message to or from the scheduler
``control_s``, and what it keeps the scheduler and its link busy. Nothing else costs time: no processor, no packet that
is lost.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mlfabric.channels.memory import SEGMENT_BYTES
from mlfabric.errors import UsageError
from mlfabric.lab.fabric import SCHEDULER_HOST, Fabric, FabricConfig, host_of
from mlfabric.lab.links import NATURE
from mlfabric.lab.message_costs import MessageCosts
from mlfabric.lab.step_prediction import FLOAT32_BYTES, PredictedJob, StepEnd
from mlfabric.model.specs import Method
from mlfabric.scheduler.runner import rare_collections
from mlfabric.twin.cluster import MOST_PLAYED, Cluster, Host
from mlfabric.twin.draws import ComputeTimes, Weather
from mlfabric.twin.outcome import Outcome, Recorder
from mlfabric.twin.run_world import Progress

__all__ = ["play_rounds"]

MOST_BYTES = 200_000
PIECE_BYTES = 2 * SEGMENT_BYTES
"""Of what arrives as a whole. With pieces of one segment elastic rounds of 30 take 1 % less, and playing them 1.4 times
as long."""
ACKNOWLEDGED = 0.03
"""Acknowledgements over what they are of, with all headers, one for every packet or two (measured)."""
JOIN_S, FOR_EVER_S = 60.0, 1e9


def play_rounds(cluster: Cluster, progress: Progress | None = None, spans_s: float = 0.0) -> Outcome:
    """Play a cluster's job, whose method has no server.

    Every worker makes all its steps, and goes on until the others have; what it does then is not in the outcome.

    Args:
        progress: told of steps done, and of how many there are.
        spans_s: until when what workers do is kept, for a picture.

    Raises:
        UsageError: there are too many workers.
    """
    if len(cluster.workers) > MOST_PLAYED:
        raise UsageError(
            f"method {cluster.method.value} with {len(cluster.workers)} workers; allowed: {MOST_PLAYED} at most, "
            "for each of their messages is played"
        )
    play = _Play(cluster, progress, spans_s)
    try:
        with rare_collections():
            return play.run()
    finally:
        play.close()


class _Play:
    def __init__(self, cluster: Cluster, progress: Progress | None, spans_s: float) -> None:
        workers = len(cluster.workers)
        self._cluster, self._progress = cluster, progress
        self._scale = min(1.0, MOST_BYTES / cluster.model_bytes)
        self._record = Recorder(workers, cluster.iterations, 1e9 * spans_s)
        self._left = self._total = workers * cluster.iterations
        self._began_s: float | None = None
        times = ComputeTimes(cluster)
        self._job = PredictedJob(
            method=cluster.method,
            rounds=cluster.rounds,
            size_bytes=FLOAT32_BYTES * max(1, round(self._scale * cluster.model_bytes / FLOAT32_BYTES)),
            workers=workers,
            compute_s=lambda worker, step: times.of(worker, step) / 1e9,
            begun=self._begun,
            ended=self._ended,
            waits=cluster.waits or cluster.method is not Method.PARTIAL,
        )
        fastest_bps = max(max(host.up_bps, host.down_bps) for host in cluster.workers)
        config = FabricConfig(
            seed=cluster.seed,
            workers=workers,
            hosts=workers + 1,
            link_bps=self._scale * fastest_bps,
            told_bps=tuple(self._told_bps(host) for host in cluster.workers),
            latency_s=(cluster.latency_s, cluster.latency_s),
            acknowledged=ACKNOWLEDGED,
        )
        self._fabric = Fabric(config, self._job, story_lines=0)
        self._loop = self._fabric.loop
        self._links = _WeatheredLinks(cluster, self._scale, self._fabric)
        costs = MessageCosts(self._loop.time, SCHEDULER_HOST, cluster.server.up_bps, cluster.control_s)
        self._fabric.links.message_s, self._fabric.links.piece_bytes = costs.message_s, PIECE_BYTES

    def _told_bps(self, host: Host) -> tuple[int, int]:
        """Return what the scheduler is told of a host's link; what nobody says counts as the fastest link's rate."""
        scale = self._scale if self._cluster.are_rates_told else 0.0
        return round(scale * host.up_bps), round(scale * host.down_bps)

    def run(self) -> Outcome:
        """Play to the end."""
        fabric = self._fabric
        fabric.start_scheduler()
        for index in range(len(self._cluster.workers)):
            fabric.start_worker(index)
        fabric.run(JOIN_S, lambda: self._began_s is not None)
        assert self._began_s is not None, f"the workers have not joined in {JOIN_S} s"
        fabric.run(FOR_EVER_S, lambda: not self._left)
        hosts = tuple(host.name for host in self._cluster.hosts)
        return self._record.outcome(self._cluster.method.value, hosts, self._links.use(), self._job.members)

    def close(self) -> None:
        """Let go of everything."""
        self._fabric.close()

    def _begun(self) -> None:
        self._began_s = self._loop.time()
        self._links.begin()

    def _ended(self, step: StepEnd) -> None:
        """Take down what became of a step."""
        record, worker, began_s = self._record, step.worker, self._began_s
        assert began_s is not None, "it was made"
        started_ns, computed_ns, ended_ns = (
            1e9 * (at_s - began_s) for at_s in (step.began_s, step.computed_s, step.ended_s)
        )
        record.pushed[worker] += len(step.delays) + step.dropped
        record.dropped[worker] += step.dropped
        for delay in step.delays:
            record.commit(ended_ns, delay)
        if step.step >= self._cluster.iterations:
            return
        record.ended_ns[worker, step.step] = ended_ns
        if record.wants_spans(started_ns):
            record.span(worker, "compute", started_ns, computed_ns)
            record.span(worker, "send", computed_ns, ended_ns)
        self._left -= 1
        if self._progress is not None:
            self._progress(self._total - self._left, self._total)


class _WeatheredLinks:
    """Lets links change with a cluster's weather, and counts what they carry and could carry."""

    def __init__(self, cluster: Cluster, scale: float, fabric: Fabric) -> None:
        self._fabric, self._scale, self._weather = fabric, scale, Weather(cluster)
        self._hosts = [*map(host_of, range(len(cluster.workers))), SCHEDULER_HOST]
        self._rates = self._weather.rates(0.0)
        self._could_bits = np.zeros(len(self._rates))
        self._began_s = self._since_s = fabric.loop.time()
        self._carried_before = np.zeros(len(self._rates))
        self._set()

    def begin(self) -> None:
        """Let the weather begin."""
        self._began_s = self._since_s = self._fabric.loop.time()
        self._carried_before = self._carried_bits()
        self._later()

    def use(self) -> NDArray[np.float64]:
        """Return by link, those up first, the share of what it could have carried."""
        self._count()
        found: NDArray[np.float64] = (self._carried_bits() - self._carried_before) / np.maximum(self._could_bits, 1.0)
        return found

    def _later(self) -> None:
        loop = self._fabric.loop
        next_ns = self._weather.next_change_ns(1e9 * (loop.time() - self._began_s) + 1.0)
        if next_ns < math.inf:
            loop.call_at(self._began_s + next_ns / 1e9, self._change, next_ns, context=NATURE)

    def _change(self, at_ns: float) -> None:
        self._count()
        self._rates = self._weather.rates(at_ns)
        self._set()
        self._later()

    def _set(self) -> None:
        bps = (1e9 * self._scale * self._rates).tolist()
        for number, host in enumerate(self._hosts):
            self._fabric.links.set_rate(host, "up", bps[number])
            self._fabric.links.set_rate(host, "down", bps[len(self._hosts) + number])

    def _count(self) -> None:
        """Take in what links could have carried since the last time."""
        now_s = self._fabric.loop.time()
        self._could_bits += 1e9 * self._scale * self._rates * (now_s - self._since_s)
        self._since_s = now_s

    def _carried_bits(self) -> NDArray[np.float64]:
        carried = [self._fabric.links.carried_bytes(host) for host in self._hosts]
        return 8.0 * np.array(carried).T.ravel()
