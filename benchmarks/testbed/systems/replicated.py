"""mlfabric with a replica of its server, on a host of its own: bounded or strict.

Everything else is ``fabric``. What the replica gets is counted from when it has its seed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import MappingProxyType

from benchmarks.testbed.runs import BackupCost, Place, RunPlan, ServerLog, Service
from benchmarks.testbed.systems.fabric import worker
from benchmarks.testbed.systems.fabric_members import (
    REPLICA,
    SERVER,
    nothing_applied,
    prepare,
    scheduler_address,
    tcp_of,
    until_workers_left,
)
from benchmarks.testbed.systems.fabric_members import SERVICES as WITHOUT_REPLICA
from mlfabric.errors import FabricError
from mlfabric.server.replica_service import ReplicaOptions, ReplicaService
from mlfabric.telemetry import ServerMetrics

__all__ = ["SERVICES", "options_of", "prepare", "replica", "worker"]

LOOK_S = 0.05


def replica(place: Place, plan: RunPlan) -> ServerLog:
    """Run the replica until all workers have left.

    Raises:
        FabricError: it never got its seed.
    """
    cost = BackupCost(n_bytes=asyncio.run(_follow(place, options_of(place, plan))))
    return replace(nothing_applied(), backup=cost)


def options_of(place: Place, plan: RunPlan) -> ReplicaOptions:
    """Return how the replica follows."""
    return ReplicaOptions(
        scheduler=scheduler_address(place),
        replica_of=SERVER,
        name=REPLICA,
        host=REPLICA,
        tcp=tcp_of(place),
        div_max_updates=plan.backup.lead_updates,
    )


async def _follow(place: Place, options: ReplicaOptions) -> int:
    """Follow until all workers have left; return how many bytes came after the seed."""
    stop, metrics = asyncio.Event(), ServerMetrics()
    service = ReplicaService(options, metrics)
    over = asyncio.create_task(until_workers_left(place, stop))
    seeded = asyncio.create_task(_seeded(service, metrics))
    await service.run(stop)
    await over
    if not seeded.done():
        seeded.cancel()
        raise FabricError("the replica was never seeded, so nothing was replicated")
    return _received(metrics) - await seeded


async def _seeded(service: ReplicaService, metrics: ServerMetrics) -> int:
    """Wait for the seed; return how many bytes have come by then."""
    while not service._state.is_seeded:
        await asyncio.sleep(LOOK_S)
    return _received(metrics)


def _received(metrics: ServerMetrics) -> int:
    samples = (sample for family in metrics.registry.collect() for sample in family.samples)
    return round(sum(sample.value for sample in samples if sample.name == "mlfabric_received_bytes_total"))


SERVICES: MappingProxyType[str, Service] = MappingProxyType({**WITHOUT_REPLICA, REPLICA: replica})
