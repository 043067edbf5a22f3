"""The delay bound that ``mlfabric advise`` picks for a cell of the paper's table."""

from __future__ import annotations

from functools import cache

from benchmarks.testbed.cells import Cell
from benchmarks.testbed.runs import BASE_COMPUTE_S, worker_name
from mlfabric.lab.simulation import predict
from mlfabric.twin.advise import advise
from mlfabric.twin.cluster import Cluster, Compute, Host
from mlfabric.twin.settings import COMPUTE, NETWORK

__all__ = ["advised_bound", "cluster_of"]


def cluster_of(cell: Cell, *, workers: int, wire_s: float, model_bytes: int, server_weather: bool = False) -> Cluster:
    """Return a cell as the twin sees it, undilated, every worker's host an aggregator.

    Args:
        wire_s: time of the model over a full-rate link.
        model_bytes: of the model.
        server_weather: whether the rates of the server's link change too.
    """
    bps = model_bytes * 8 / wire_s
    names = [worker_name(rank) for rank in range(workers)]
    return Cluster(
        workers=tuple(Host(name=name, up_bps=bps, down_bps=bps) for name in names),
        server=Host(name="server", up_bps=bps, down_bps=bps),
        weather=NETWORK[cell.network],
        is_server_in_weather=server_weather,
        compute=Compute(mean_s=BASE_COMPUTE_S, stragglers=COMPUTE[cell.compute]),
        model_bytes=model_bytes,
        aggregators=tuple(names),
    )


@cache
def advised_bound(
    cell: Cell, *, workers: int, wire_s: float, model_bytes: int, server_weather: bool = False
) -> int | None:
    """Return the delay bound that is advised for a cell; None if none is.

    Args:
        wire_s: time of the model over a full-rate link.
        model_bytes: of the model.
        server_weather: whether the rates of the server's link change too.
    """
    cluster = cluster_of(cell, workers=workers, wire_s=wire_s, model_bytes=model_bytes, server_weather=server_weather)
    return advise(cluster, predict).delay_bound
