"""Clusters that tests of the twin run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlfabric.twin.cluster import Cluster, Compute, Host
from mlfabric.twin.settings import COMPUTE, NETWORK

__all__ = ["cluster_of", "helped"]


def cluster_of(
    workers: int, *, rate_bps: float = 1e9, network: str = "N0", stragglers: str = "C0", **changed: Any
) -> Cluster:
    """Return a cluster of equal hosts; with 1 MB to send, 8 ms of wire time at 1 Gbit/s, and 20 ms to compute."""
    hosts = tuple(Host(name=f"w{n}", up_bps=rate_bps, down_bps=rate_bps) for n in range(workers))
    usual: dict[str, Any] = {
        "model_bytes": 1_000_000,
        "iterations": 40,
        "compute": Compute(mean_s=0.02, stragglers=COMPUTE[stragglers]),
        "weather": NETWORK[network],
    }
    server = Host(name="server", up_bps=rate_bps, down_bps=rate_bps)
    return Cluster(workers=hosts, server=server, **{**usual, **changed})


def helped(cluster: Cluster) -> Cluster:
    """Let every worker sum and hand on."""
    return replace(cluster, aggregators=tuple(host.name for host in cluster.workers))
