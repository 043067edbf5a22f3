"""AllReduce of 25 MB among 4 machines, ours against gloo's: on equal links, and with one link at a quarter of the rate.

The machines are hosts of a testbed (``testbed/hosts.py``). Each runs one process that does both in turn: a gloo
all_reduce, then ours, in the same processes and over the same links. The scheduler has a host of its own and knows the
links' rates from what the workers state when they join (``up_bps``, ``down_bps``).

Run as ``python -m benchmarks.fabric_allreduce``; as root.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.testbed.hosts import Host, Testbed, testbed
from mlfabric.twin.settings import Direction

__all__ = ["run"]

LINK_BPS = 200_000_000
WORKERS = 4
TIMEOUT_S = 300.0
SCHEDULER = "scheduler"
SCHEDULER_PORT = 50061
STORE_PORT = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one worker process does."""

    rank: int
    workers: int
    address: str
    store: str
    scheduler: str
    bps: int
    size_bytes: int
    rounds: int


def run(rounds: int = 7, megabytes: int = 25) -> dict[str, float]:
    """Measure both cases.

    Args:
        rounds: of each case and kind, after one that does not count.
        megabytes: of the tensor.

    Returns:
        ``allreduce_vs_gloo_equal`` and ``allreduce_vs_gloo_slow_link``: gloo's median time over ours; and the medians
        in seconds.

    Raises:
        UnavailableError: namespaces cannot be made here.
        RuntimeError: a process failed.
    """
    found: dict[str, float] = {}
    for case, rates in (
        ("equal", [LINK_BPS] * WORKERS),
        ("slow_link", [LINK_BPS] * (WORKERS - 1) + [LINK_BPS // 4]),
    ):
        gloo_s, ours_s = _case(rates, rounds, 1_000_000 * megabytes)
        found[f"allreduce_vs_gloo_{case}"] = gloo_s / ours_s
        found[f"allreduce_{case}_s"] = ours_s
        found[f"gloo_{case}_s"] = gloo_s
    return found


def _case(rates_bps: Sequence[int], rounds: int, size_bytes: int) -> tuple[float, float]:
    """Return the median times of gloo and of ours; a round is over when its last worker has the sum."""
    with _machines(rates_bps) as bed, _scheduler(bed.host(SCHEDULER)) as scheduler:
        workers = [host for host in bed.hosts if host.name != SCHEDULER]
        tasks = [
            Task(
                rank=rank,
                workers=len(workers),
                address=host.address,
                store=workers[0].address,
                scheduler=scheduler,
                bps=rates_bps[rank],
                size_bytes=size_bytes,
                rounds=rounds + 1,
            )
            for rank, host in enumerate(workers)
        ]
        times = _worked(workers, tasks)
    slowest = {kind: [max(times_s) for times_s in zip(*(t[kind] for t in times), strict=True)] for kind in times[0]}
    return statistics.median(slowest["gloo"][1:]), statistics.median(slowest["ours"][1:])


@contextmanager
def _machines(rates_bps: Sequence[int]) -> Iterator[Testbed]:
    """Make a host for each rate, and one for the scheduler."""
    names = [f"machine-{rank}" for rank in range(len(rates_bps))]
    with testbed([*names, SCHEDULER], link_bps=max(rates_bps)) as bed:
        bed.set_rates({(n, way): bps for n, bps in zip(names, rates_bps, strict=True) for way in Direction})
        yield bed


@contextmanager
def _scheduler(host: Host) -> Iterator[str]:
    where = ["--bind", host.address, "--port", str(SCHEDULER_PORT), "--insecure"]
    command = [sys.executable, "-m", "mlfabric", "scheduler", *where, "--log-level", "warning"]
    process = subprocess.Popen([*host.command, *command])
    try:
        yield f"{host.address}:{SCHEDULER_PORT}"
    finally:
        process.terminate()
        process.wait()


def _worked(hosts: Sequence[Host], tasks: Sequence[Task]) -> list[dict[str, list[float]]]:
    """Run every task on its host; return what each found."""
    with ExitStack() as stack:
        processes = []
        for host, task in zip(hosts, tasks, strict=True):
            command = [*host.command, sys.executable, "-m", "benchmarks.fabric_allreduce", json.dumps(asdict(task))]
            environment = os.environ | {"GLOO_SOCKET_IFNAME": host.interface, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, env=environment, cwd=Path(__file__).parent.parent
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        deadline_s = time.monotonic() + TIMEOUT_S
        answers = [process.communicate(timeout=deadline_s - time.monotonic())[0] for process in processes]
        codes = [process.returncode for process in processes]
    if any(codes):
        raise RuntimeError(f"workers ended with {codes}")
    return [json.loads(answer) for answer in answers]


def _work(task: Task) -> dict[str, list[float]]:
    """Do all rounds of both kinds in turn; return how long each took here."""
    import torch
    import torch.distributed as dist

    from mlfabric import Mode, register_as_worker
    from mlfabric.channels import TcpOptions
    from mlfabric.config import WorkerSettings
    from mlfabric.security import Security

    store = f"tcp://{task.store}:{STORE_PORT}"
    dist.init_process_group("gloo", init_method=store, rank=task.rank, world_size=task.workers)
    settings = WorkerSettings(
        scheduler=task.scheduler,
        name=f"worker-{task.rank}",
        host=f"machine-{task.rank}",
        tcp=TcpOptions(bind=task.address, up_bps=task.bps, down_bps=task.bps, security=Security(insecure=True)),
    )
    model = {"w": torch.zeros(1, requires_grad=True)}
    times: dict[str, list[float]] = {"gloo": [], "ours": []}
    values = torch.rand(task.size_bytes // 4)
    with register_as_worker(model, mode=Mode.ALL_REDUCE, workers=task.workers, settings=settings) as worker:
        calls: dict[str, Any] = {"gloo": dist.all_reduce, "ours": worker.all_reduce}
        for _ in range(task.rounds):
            sums = {}
            for kind, reduce in calls.items():
                sums[kind] = values.clone()
                dist.barrier()
                started_s = time.perf_counter()
                reduce(sums[kind])
                times[kind].append(time.perf_counter() - started_s)
            torch.testing.assert_close(sums["ours"], sums["gloo"])
        dist.barrier()
    dist.destroy_process_group()
    return times


if __name__ == "__main__":
    if len(sys.argv) > 1:
        json.dump(_work(Task(**json.loads(sys.argv[1]))), sys.stdout)
    else:
        json.dump(run(), sys.stdout, indent=2)
