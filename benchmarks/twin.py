"""How long the twin takes: processor time for each update of a thousand workers, synchronous and asynchronous.

The cluster is ``examples/clusters/thousand.toml``, for fewer iterations than there; ``full_run_s`` is what all that the
file asks for would take at the same pace. *wide* is the same cluster with the twin's usual size of a model, 100 MB, and
every worker's host as an aggregator: an iteration takes as long as the weather holds, so nearly each one is planned
anew. Times are those of one process on one core; warming up, and one iteration before, are not in them.

``mlfabric bench twin --json FILE``.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlfabric.cli.clusters import read_cluster
from mlfabric.lab.simulation import simulate
from mlfabric.model.specs import Method
from mlfabric.planning import warm_up
from mlfabric.twin.cluster import Cluster

__all__ = ["run"]

FILE = Path(__file__).resolve().parent.parent / "examples" / "clusters" / "thousand.toml"
METHODS = (Method.SYNCHRONOUS, Method.ASYNCHRONOUS)
WIDE_BYTES = 100_000_000


def run(iterations: int = 64, wide_iterations: int = 8, workers: int = 1000) -> dict[str, Any]:
    """Measure all rows.

    Args:
        iterations: of each worker.
        wide_iterations: of each worker where every host is an aggregator; 0 leaves these rows out.
        workers: how many, at most as many as the file has.

    Returns:
        By row ("synchronous", "asynchronous", and both once more as "wide_..."): ``us_per_update``, ``full_run_s``,
        ``updates`` that were measured, and what the twin said: ``iteration_s``, ``updates_per_s``.
    """
    warm_up(_progress)
    usual = read_cluster(FILE)
    usual = replace(usual, workers=usual.workers[:workers], aggregators=usual.aggregators[:workers])
    found = {method.value: _row(replace(usual, method=method), iterations, usual.iterations) for method in METHODS}
    if wide_iterations:
        names = tuple(host.name for host in usual.workers)
        wide = replace(usual, aggregators=names, model_bytes=WIDE_BYTES)
        for method in METHODS:
            found[f"wide_{method.value}"] = _row(replace(wide, method=method), wide_iterations, usual.iterations)
    return found


def _row(cluster: Cluster, iterations: int, all_iterations: int) -> dict[str, float]:
    _progress(f"{len(cluster.workers)} workers, {len(cluster.aggregators)} aggregators, {cluster.method.value}")
    simulate(replace(cluster, iterations=1))
    began_s = time.process_time()
    outcome = simulate(replace(cluster, iterations=iterations))
    took_s, updates = time.process_time() - began_s, iterations * len(cluster.workers)
    return {
        "us_per_update": 1e6 * took_s / updates,
        "full_run_s": took_s / iterations * all_iterations,
        "updates": updates,
        "iteration_s": outcome.mean_iteration_s,
        "updates_per_s": outcome.updates_per_s,
    }


def _progress(line: str) -> None:
    sys.stderr.write(f"twin: {line}\n")
