"""mlfabric whose server writes checkpoints, one each time that as many updates were committed as may be lost.

Steps wait while a checkpoint is written, as the product has it. Models are 500 times smaller here than in the paper, so
a checkpoint also takes as long as this computer's disk takes for 100 MB, which are written and synchronised once before
the run; dilated like all times.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import numpy as np

from benchmarks.testbed.runs import BackupCost, Place, RunPlan, ServerLog, Service
from benchmarks.testbed.systems.fabric import worker
from benchmarks.testbed.systems.fabric_members import (
    SERVER,
    nothing_applied,
    prepare,
    scheduler_address,
    tcp_of,
    until_workers_left,
)
from benchmarks.testbed.systems.fabric_members import SERVICES as WITHOUT_CHECKPOINTS
from mlfabric import ModelView
from mlfabric.protocol import Commit
from mlfabric.server.service import ServerOptions, ServerService
from mlfabric.telemetry import ServerMetrics

__all__ = ["PAPER_BYTES", "SERVICES", "disk_time_s", "prepare", "server", "worker"]

PAPER_BYTES = 100_000_000
NEVER_S = 1e6


def server(place: Place, plan: RunPlan) -> ServerLog:
    """Run the server until all workers have left; a checkpoint that was not begun by then does not count."""
    with TemporaryDirectory() as folder:
        disk_s = disk_time_s(Path(folder), PAPER_BYTES)
        options = ServerOptions(
            scheduler=scheduler_address(place),
            name=SERVER,
            host=SERVER,
            tcp=tcp_of(place),
            checkpoint_dir=Path(folder),
            checkpoint_every_s=NEVER_S,
        )
        saved = asyncio.run(_serve(place, plan, options, disk_s))
    return replace(nothing_applied(), backup=BackupCost(n_bytes=sum(saved), times=len(saved), disk_s=disk_s))


def disk_time_s(folder: Path, n_bytes: int) -> float:
    """Return how long the disk of a folder takes to take in a file, until all of it is there, in s."""
    content = np.random.default_rng(0).bytes(n_bytes)
    path = folder / "disk"
    began_s = time.monotonic()
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    took_s = time.monotonic() - began_s
    path.unlink()
    return took_s


async def _serve(place: Place, plan: RunPlan, options: ServerOptions, disk_s: float) -> list[int]:
    """Serve until all workers have left; return the size of each checkpoint in bytes."""
    stop = asyncio.Event()
    service = ServerService(options, ServerMetrics())
    saving: list[asyncio.Task[int]] = []

    def committed(model: str, commit: Commit, _view: ModelView) -> None:
        if commit.version.number % plan.backup.lead_updates == 0:
            saving.append(asyncio.create_task(_save(service, model, disk_s * plan.dilation)))

    service.callbacks.of_updates.append(committed)
    over = asyncio.create_task(until_workers_left(place, stop))
    await service.run(stop)
    await over
    return [task.result() for task in saving if task.done()]


async def _save(service: ServerService, model: str, disk_s: float) -> int:
    """Write a checkpoint as slowly as a disk that many bytes go to; return its size."""
    stores = service._stores
    async with stores.turn(model):
        await asyncio.sleep(disk_s)
    (saved,) = await stores.save([model])
    return saved.path.stat().st_size


SERVICES: MappingProxyType[str, Service] = MappingProxyType({**WITHOUT_CHECKPOINTS, SERVER: server})
