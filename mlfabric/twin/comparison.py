"""All ways of training on one cluster side by side: simulated, and as formulas where there are any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlfabric.model.specs import Method
from mlfabric.twin.closed_forms import (
    mean_over_weather,
    ring_all_reduce_s,
    slowest_shares,
    synchronous_server_s,
)
from mlfabric.twin.cluster import Cluster, Host
from mlfabric.twin.draws import ComputeTimes
from mlfabric.twin.outcome import Outcome
from mlfabric.twin.rounds import TREE_CHUNKS
from mlfabric.twin.run import Baseline
from mlfabric.twin.settings import Direction

__all__ = ["Compared", "compare", "formula_s"]

WAYS: tuple[Method | Baseline, ...] = (
    Method.ASYNCHRONOUS,
    Method.STALE_SYNCHRONOUS,
    Method.SYNCHRONOUS,
    Method.ALL_REDUCE,
    Method.PARTIAL,
    Method.ELASTIC,
    Baseline.RING,
    Baseline.TREE,
)
_DRAWN_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One way of training.

    Args:
        outcome: as simulated.
        formula_s: mean time of an iteration as a formula has it; None where there is none.
        gain: how many times as fast as the simulated ring it goes through as many steps of all workers.
    """

    outcome: Outcome
    formula_s: float | None
    gain: float


def compare(
    cluster: Cluster, run: Callable[[Method | Baseline], Outcome], ways: Sequence[Method | Baseline] = WAYS
) -> tuple[Compared, ...]:
    """Run ways of training.

    Args:
        run: runs the cluster in a way.
        ways: which; the ring is one of them.
    """
    found = {way: run(way) for way in ways}
    ring = found[Baseline.RING].updates_per_s
    return tuple(
        Compared(outcome=outcome, formula_s=formula_s(cluster, way), gain=outcome.updates_per_s / ring)
        for way, outcome in found.items()
    )


def formula_s(cluster: Cluster, way: Method | Baseline) -> float | None:
    """Return the mean time of an iteration by formula: of a ring, of a tree, and of a synchronous server without sums.

    Where rates are known over time, the first ones count.
    """
    hosts, server = [_at_first(cluster, host) for host in cluster.workers], _at_first(cluster, cluster.server)
    size_bytes, latency_s, directions = cluster.model_bytes, cluster.latency_s, 2 * len(hosts)
    if way is Baseline.RING:
        wire_s = ring_all_reduce_s(size_bytes, hosts, latency_s)
    elif way is Baseline.TREE:
        wire_s = _tree_s(cluster, min(host.slowest_bps for host in hosts))
    elif way is Method.SYNCHRONOUS and not cluster.aggregators:
        wire_s = synchronous_server_s(size_bytes, hosts, server, latency_s)
        directions += 2 * cluster.is_server_in_weather
    else:
        return None
    return mean_over_weather(_longest_s(cluster), wire_s, slowest_shares(cluster.weather, directions))


def _tree_s(cluster: Cluster, slowest_bps: float) -> float:
    """Return how long a binary tree takes chunk by chunk, up and down at once.

    A worker takes in two sums on their way up and one on its way down. The first chunk needs two chunk times for each
    level and way, since two children share their parent's link.
    """
    workers = len(cluster.workers)
    if workers == 1:
        return 0.0
    levels, inputs = (workers + 1).bit_length() - 1, min(3, workers)
    levels -= (workers + 1) == 1 << levels
    chunks = inputs * TREE_CHUNKS + 4 * levels
    return chunks * (8 * cluster.model_bytes / slowest_bps / TREE_CHUNKS) + 2 * levels * cluster.latency_s


def _at_first(cluster: Cluster, host: Host) -> Host:
    """Return a host with the rates that its links have first."""
    first_bps = {way: line.bps[0] for (name, way), line in cluster.lines.items() if name == host.name}
    up_bps, down_bps = first_bps.get(Direction.UP, host.up_bps), first_bps.get(Direction.DOWN, host.down_bps)
    return replace(host, up_bps=up_bps, down_bps=down_bps)


def _longest_s(cluster: Cluster) -> float:
    """Return the mean of the longest computation of a step, over the steps that the cluster draws first."""
    times, workers = ComputeTimes(cluster), range(len(cluster.workers))
    steps = range(min(cluster.iterations, _DRAWN_STEPS))
    drawn = np.array([[times.of(worker, step) for step in steps] for worker in workers])
    return float(drawn.max(axis=0).mean() / 1e9)
