"""What is predicted of runs of the testbed: the same hosts, weather, stragglers and seeds, in virtual time.

A run is predicted as it was made, dilated: what a message to the scheduler takes is not stretched with the rest. Links
carry headers too, and acknowledgements of what goes the other way, so that less of their rate is left for what is
trained. Predictions are kept beside the results, and
made anew once the code has changed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

import mlfabric
from benchmarks.testbed.results import Results
from benchmarks.testbed.runs import BASE_COMPUTE_S, worker_name
from benchmarks.testbed.shaping import ETHERNET_BYTES, MTU_BYTES
from benchmarks.testbed.spec import CellResult, CellSpec
from benchmarks.testbed.workload import WorkloadSpec
from mlfabric.lab.simulation import simulate
from mlfabric.model.round_options import RoundOptions
from mlfabric.model.specs import Method
from mlfabric.planning import warm_up
from mlfabric.twin.cluster import Cluster, Compute, Host
from mlfabric.twin.run import Baseline
from mlfabric.twin.settings import COMPUTE, NETWORK

__all__ = ["PLAYED", "WAYS", "cluster_of_run", "predict", "predictions"]

WAYS: Mapping[str, Method | Baseline] = MappingProxyType(
    {
        "ring": Baseline.RING,
        "tree": Baseline.TREE,
        "fabric-sync": Method.ALL_REDUCE,
        "fabric-async": Method.ASYNCHRONOUS,
        "synchronous": Method.ALL_REDUCE,
        "elastic": Method.ELASTIC,
        "partial": Method.PARTIAL,
    }
)
"""The systems that can be simulated, and how: those of rounds are played, all others are the twin's."""
PLAYED = tuple(system for system, way in WAYS.items() if isinstance(way, Method) and not way.has_server)
"""Those that are played: at most ``PLAYED_ITERATIONS`` steps of each worker from the run's beginning on."""

TCP_HEADER_BYTES = 52
"""Of a full packet over IPv4, with timestamps."""
ACK_BYTES = (TCP_HEADER_BYTES + ETHERNET_BYTES - MTU_BYTES) / 2
"""On the wire for each full packet that goes the other way: every second one is acknowledged."""
PAYLOAD_SHARE = (MTU_BYTES - TCP_HEADER_BYTES) / (ETHERNET_BYTES + ACK_BYTES)
PROBE_ITERATIONS = 10
PLAYED_ITERATIONS = 60
FLOAT32_BYTES = 4


def cluster_of_run(spec: CellSpec, n_parameters: int) -> Cluster:
    """Return a run as it is simulated, dilated, every worker's host an aggregator.

    Args:
        n_parameters: of what is trained, float32 each.
    """
    bps, dilation = PAYLOAD_SHARE * spec.link_bps(n_parameters), spec.dilation
    names = [worker_name(rank) for rank in range(spec.workers)]
    weather = NETWORK[spec.network]
    usual = Cluster(
        workers=tuple(Host(name=name, up_bps=bps, down_bps=bps) for name in names),
        server=Host(name="server", up_bps=bps, down_bps=bps),
        weather=replace(weather, period_s=weather.period_s * dilation),
        is_server_in_weather=spec.server_weather,
        compute=Compute(mean_s=BASE_COMPUTE_S * dilation, stragglers=COMPUTE[spec.compute]),
        model_bytes=FLOAT32_BYTES * n_parameters,
        tau_max=spec.delay_bound,
        rounds=_rounds(spec),
        aggregators=tuple(names),
        monitor_lag_s=spec.report_every_s * dilation,
        are_rates_told=False,
        seed=spec.seed,
    )
    return replace(
        usual,
        batch_window_s=usual.batch_window_s * dilation,
        monitor_half_life_s=usual.monitor_half_life_s * dilation,
    )


def _rounds(spec: CellSpec) -> RoundOptions:
    """Return what the system wraps its optimizer with."""
    names = {each.name for each in fields(RoundOptions)}
    given: dict[str, Any] = {name: value for name, value in spec.entry.wrapped.items() if name in names}
    return RoundOptions(**given)


def predict(spec: CellSpec) -> float:
    """Return the seconds per iteration of a run, undilated.

    Raises:
        KeyError: no such system can be simulated; see ``WAYS``.
    """
    workload = WorkloadSpec(model=spec.model, batch_size=spec.batch_size, seed=0, workers=spec.workers).build()
    cluster, way = cluster_of_run(spec, workload.n_parameters), WAYS[spec.system]
    probe_s = simulate(replace(cluster, iterations=PROBE_ITERATIONS), way).mean_iteration_s
    iterations = PROBE_ITERATIONS + math.ceil(spec.duration_s / probe_s)
    if spec.system in PLAYED:
        iterations = min(iterations, PLAYED_ITERATIONS)
    found = simulate(replace(cluster, iterations=iterations), way)
    duration_s = min(spec.duration_s, found.duration_s)
    count = int(np.count_nonzero(found.committed_s <= duration_s))
    return duration_s / spec.dilation * spec.workers / max(1, count)


def predictions(results: Iterable[CellResult], kept: Results, told: Callable[[str], None]) -> dict[str, float]:
    """Return what is predicted of runs, by the names of their files; those of which nothing can be are not there.

    Args:
        kept: where predictions are kept.
        told: is given a line of text for every prediction that is made.
    """
    found: dict[str, float] = {}
    known = (r.spec for r in results if r.spec.system in WAYS and r.spec.network in NETWORK and not r.machine.saturated)
    for spec in known:
        file, code = f"twin-{spec.file_name}", _code()
        values = kept.read(file)
        if values is None or values.get("code") != code:
            warm_up(told)
            values = {"code": code, "seconds_per_iteration": predict(spec)}
            kept.write(file, values)
            told(f"twin: {spec.cell.name} {spec.system} seed {spec.seed}: {values['seconds_per_iteration']:.3f} s")
        found[spec.file_name] = values["seconds_per_iteration"]
    return found


@cache
def _code() -> str:
    """Return what differs if the fabric's code does."""
    folder, digest = Path(mlfabric.__file__).parent, hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
