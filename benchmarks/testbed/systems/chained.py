"""mlfabric whose server is the head of a chain; its follower is on a host of its own.

Everything else is ``fabric``. What the follower gets is counted from when it has the initial weights.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from benchmarks.chain import Follower, send_on
from benchmarks.testbed.runs import BackupCost, Place, RunPlan, ServerLog, Service
from benchmarks.testbed.systems.fabric import worker
from benchmarks.testbed.systems.fabric_members import SERVER, nothing_applied, prepare, serve, tcp_of
from benchmarks.testbed.systems.fabric_members import SERVICES as WITHOUT_CHAIN

__all__ = ["FOLLOWER", "SERVICES", "follower", "prepare", "server", "worker"]

FOLLOWER = "follower"


def server(place: Place, plan: RunPlan) -> ServerLog:
    """Run the server until all workers have left; it sends on all that it is about to apply."""
    return serve(place, partial(send_on, address=f"{place.addresses[FOLLOWER]}:{place.port}"))


def follower(place: Place, plan: RunPlan) -> ServerLog:
    """Follow until the server has left."""
    return replace(nothing_applied(), backup=BackupCost(n_bytes=asyncio.run(_follow(place))))


async def _follow(place: Place) -> int:
    """Follow until the server has left; return how many bytes came after the initial weights."""
    following = Follower(replace(tcp_of(place), ports=(place.port, place.port)))
    await following.listen()
    await following.until_left()
    await following.close()
    return following.step_bytes


SERVICES: MappingProxyType[str, Service] = MappingProxyType(
    {**WITHOUT_CHAIN, SERVER: server, FOLLOWER: follower},
)
