"""Whether training through the fabric costs accuracy: paired runs against one process with as many updates.

Each seed fixes split, initial weights, batches and jitter, and is run twice: through a fabric (four workers, processes
of their own, one of them 2.5 times slower, no emulated links), and in one process with the same rule, batch size and
number of updates. The difference within each pair is what counts.

With ``kills`` the server has a replica, and the process that serves is killed so often in the middle of the training:
the replica takes its place, and what is started again in its stead becomes the next replica.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.intervals import MOST_VALUES, interval_95
from mlfabric.demo.demo_run import Counted, launched, prepare, run_scenario
from mlfabric.demo.scenario import Scenario
from mlfabric.demo.verdict import Verdict
from mlfabric.errors import FabricError, UsageError
from mlfabric.launch.processes import Nursery
from mlfabric.launch.scheduler_status import HERE, StatusReader
from mlfabric.v1 import fabric_pb2

__all__ = ["run"]

LEAD = 8
"""How many updates the replica may lack."""
LOOK_S = 0.1
MOST_KILLS = 10


def run(seeds: int = 5, updates: int = 1000, first_seed: int = 0, kills: int = 0) -> dict[str, Any]:
    """Compare accuracies on the test set, pair by pair.

    Args:
        seeds: how many pairs, 2 to 10.
        updates: of each run.
        first_seed: the others follow.
        kills: how often the server is killed in each run, 0 to 10.

    Returns:
        ``mean_difference`` (fabric less one process), its 95 % confidence interval ``ci95_low`` and ``ci95_high``, and
        ``pairs``: by seed both accuracies, their difference, and what became of the updates.

    Raises:
        UsageError: a number is out of range.
        FabricError: a process failed, or the training was over before the last kill.
    """
    if not 0 <= kills <= MOST_KILLS:
        raise UsageError(f"kills={kills}; allowed: 0 to {MOST_KILLS}")
    if not 2 <= seeds <= MOST_VALUES:
        raise UsageError(f"seeds={seeds}; allowed: 2 to {MOST_VALUES}")
    pairs = {f"seed {seed}": _pair(seed, updates, kills) for seed in range(first_seed, first_seed + seeds)}
    differences = [pair["difference"] for pair in pairs.values()]
    low, high = interval_95(differences)
    return {
        "mean_difference": statistics.fmean(differences),
        "ci95_low": low,
        "ci95_high": high,
        "pairs": pairs,
    }


def _pair(seed: int, updates: int, kills: int) -> dict[str, float]:
    scenario = Scenario(
        seed=seed,
        updates=updates,
        pace_s=0.012,
        pause_share=0.0,
        slowness=(1.0, 1.0, 2.5, 1.0),
        rates=(),
        server_rate="",
        replica_div_max_updates=str(LEAD) if kills else "",
        longest_s=40.0 + 10.0 * kills,
    )
    lost: list[int] = []
    found: list[tuple[Counted, Verdict]] = []
    with tempfile.TemporaryDirectory(prefix="mlfabric-accuracy-") as name:
        folder = Path(name)
        prepare(folder, scenario)

        async def work(nursery: Nursery) -> int:
            beside = partial(_kill, kills, updates, lost) if kills else None
            found.append(await run_scenario(nursery, folder, look=lambda: None, told=lambda _: None, beside=beside))
            return 0

        code = launched(work, folder)
    if code:
        sys.exit(code)
    counted, verdict = found[0]
    if len(lost) != kills:
        raise FabricError(f"the training was over after {len(lost)} of {kills} kills; give more updates")
    return {
        "fabric": verdict.accuracy,
        "single_process": verdict.single_process_accuracy,
        "difference": verdict.accuracy - verdict.single_process_accuracy,
        "updates_applied": counted.applied,
        "updates_dropped": counted.dropped,
        "updates_lost": counted.lost,
        "updates_lost_most_at_once": max(lost, default=0),
        "delay_max": counted.delay_max,
    }


async def _kill(kills: int, updates: int, lost: list[int], scheduler: str) -> None:
    """Kill who serves so many times, in even distances; note after each how many updates were lost by it."""
    async with StatusReader(scheduler) as reader:
        for count in range(1, kills + 1):
            status = await _followed(reader, number=count * updates // (kills + 1))
            before = status.models[0]
            _serving(status).kill()
            status = await _followed(reader, epoch=before.version.epoch + 1)
            lost.append(status.models[0].lost - before.lost)
        await asyncio.get_running_loop().create_future()


async def _followed(reader: StatusReader, epoch: int = 0, number: int = 0) -> fabric_pb2.GetStatusResponse:
    """Wait until the model is so far and a replica follows; return that status."""
    while True:
        status = await reader.read()
        is_there = any(model.version.epoch >= epoch and model.version.number >= number for model in status.models)
        replicas = [m.activity for m in status.members if m.role == "replica" and m.state == HERE]
        if is_there and any(activity.startswith("follows") for activity in replicas):
            return status
        await asyncio.sleep(LOOK_S)


def _serving(status: fabric_pb2.GetStatusResponse) -> psutil.Process:
    """Return the process that the model's server is now."""
    (address,) = [member.address for member in status.members if member.name == status.models[0].server]
    port = int(address.rpartition(":")[2])
    for process in psutil.Process().children():
        if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in process.net_connections("tcp")):
            return process
    raise FabricError(f"no process of this benchmark listens at {address}")
