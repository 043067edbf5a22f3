"""Rounds of AllReduce over links of mixed rates: ours against gloo's ring, and against what the links allow.

The machines are hosts of a testbed (``testbed/hosts.py``). Each runs one process that does gloo's rounds and
then ours, over the same links. A round is over when its last worker has the sum.

A round needs at least ``max(1/u_min, 1/d_min, 2)`` times what the tensor takes on a full link, u and d being the shares
of a full link that the links up and down have: a slow link carries the tensor once, and a worker sends and receives it
about twice. That is the measure here, though where many links are slow no round can reach it: the others carry more for
them, and ``2 (N - 1) / sum(u)`` or ``2 (N - 1) / sum(d)`` is greater.

``mlfabric bench rounds``, as root; one process of a worker is ``python -m benchmarks.rounds TASK``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.checking import at_least_one
from benchmarks.links import PAYLOAD_SHARE
from benchmarks.testbed.cpu import CpuMeter
from benchmarks.testbed.hosts import Host, Testbed, testbed
from mlfabric.errors import UsageError
from mlfabric.twin.settings import Direction

__all__ = ["PROFILES", "Profile", "run"]

TIMEOUT_S = 600.0
SCHEDULER = "scheduler"
SCHEDULER_PORT = 50061
STORE_PORT = 29500
PAUSE_S = 0.25
"""Before each sum: what a round leaves behind, as probes, is over by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Links, and what is reduced over them.

    Args:
        up, down: the shares of a full link that each worker's has.
        full_bps: of a full link, Ethernet headers included.
        size_bytes: of the tensor.
        warm_up: so many rounds of each kind do not count: links' rates are learnt in them.
        most_rounds: no more than so many are measured.
    """

    up: tuple[float, ...]
    down: tuple[float, ...]
    full_bps: int = 25_000_000
    size_bytes: int = 2_000_000
    warm_up: int = 5
    most_rounds: int = 100

    @property
    def wire_s(self) -> float:
        """What the tensor takes on a full link."""
        return self.size_bytes * 8 / (self.full_bps * PAYLOAD_SHARE)

    @property
    def least(self) -> float:
        """The measure: so many times ``wire_s``."""
        return max(1 / min(self.up), 1 / min(self.down), 2.0)

    @property
    def possible(self) -> float:
        """What no round takes less than, in ``wire_s``."""
        loads = 2.0 * (len(self.up) - 1)
        return max(1 / min(self.up), 1 / min(self.down), loads / sum(self.up), loads / sum(self.down))


def _full(count: int) -> tuple[float, ...]:
    return (1.0,) * count


PROFILES: Mapping[str, Profile] = {
    "even_4": Profile(up=_full(4), down=_full(4)),
    "even_8": Profile(up=_full(8), down=_full(8)),
    "slow_up": Profile(up=(0.25, *_full(5)), down=_full(6)),
    "slow_down": Profile(up=_full(6), down=(0.25, *_full(5))),
    "slow_up_and_down": Profile(up=(0.5, *_full(5)), down=(*_full(5), 0.5)),
    "half_slow": Profile(up=(0.5, 0.5, 1.0, 1.0), down=(0.5, 0.5, 1.0, 1.0)),
    "half_at_a_quarter": Profile(up=(0.25,) * 4 + _full(4), down=(0.25,) * 4 + _full(4)),
    "one_at_a_quarter": Profile(up=(0.25, *_full(3)), down=(0.25, *_full(3))),
    "resnet": Profile(
        up=(0.25, *_full(7)),
        down=(0.25, *_full(7)),
        full_bps=250_000_000,
        size_bytes=102_400_000,
        warm_up=2,
        most_rounds=3,
    ),
}
"""By name. ``resnet`` is of the size of a ResNet-50, among 8 workers one of which has a quarter of 250 Mbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one worker process does."""

    rank: int
    workers: int
    address: str
    store: str
    scheduler: str
    size_bytes: int
    rounds: int


def run(rounds: int = 9, only: str = "") -> dict[str, Any]:
    """Measure.

    Args:
        rounds: of each profile and kind, after those in which rates are learnt.
        only: the name of a profile, or several with commas between them; "" for all.

    Returns:
        For each profile ``round_s`` and ``gloo_s``, the medians; ``over_least``: the median in units of what the links
        allow by the measure above, and ``over_possible``; ``times_gloo``: gloo's median over ours; ``beside_bytes_ms``:
        what a round takes beside its bytes, which are messages of the scheduler and two hops at least;
        ``empty_round_ms``: the same of four bytes; and how much of the computer was used.

    Raises:
        UnavailableError: namespaces cannot be made here.
        UsageError: there is no such profile.
        RuntimeError: a process failed.
    """
    at_least_one(rounds=rounds)
    names = only.split(",") if only else list(PROFILES)
    unknown = [name for name in names if name not in PROFILES]
    if unknown:
        raise UsageError(f"--set only={','.join(unknown)}; allowed: {', '.join(PROFILES)}")
    shown = track(names, description="links of different rates", console=Console(stderr=True))
    return {name: _measured(PROFILES[name], rounds) for name in shown}


def _measured(profile: Profile, rounds: int) -> dict[str, float]:
    count = min(rounds, profile.most_rounds)
    with CpuMeter() as cpu:
        times_s = _times_s(profile, profile.warm_up + count)
    median_s = {kind: statistics.median(times[profile.warm_up :]) for kind, times in times_s.items()}
    return {
        "over_least": median_s["ours"] / (profile.least * profile.wire_s),
        "over_possible": median_s["ours"] / (profile.possible * profile.wire_s),
        "times_gloo": median_s["gloo"] / median_s["ours"],
        "beside_bytes_ms": (median_s["ours"] - profile.possible * profile.wire_s) * 1e3,
        "round_s": median_s["ours"],
        "gloo_s": median_s["gloo"],
        "empty_round_ms": median_s["empty"] * 1e3,
        "slowest_round_s": max(times_s["ours"][profile.warm_up :]),
        "cpu_used_share": cpu.used_share,
        "cpu_saturated_share": cpu.saturated_share,
    }


def _times_s(profile: Profile, rounds: int) -> dict[str, list[float]]:
    """Return how long each round took until the last worker had the sum, by kind."""
    with _machines(profile) as bed, _scheduler(bed.host(SCHEDULER)) as scheduler:
        workers = [host for host in bed.hosts if host.name != SCHEDULER]
        tasks = [
            Task(
                rank=rank,
                workers=len(workers),
                address=host.address,
                store=workers[-1].address,
                scheduler=scheduler,
                size_bytes=profile.size_bytes,
                rounds=rounds,
            )
            for rank, host in enumerate(workers)
        ]
        times = _worked(workers, tasks)
    return {kind: [max(times_s) for times_s in zip(*(t[kind] for t in times), strict=True)] for kind in times[0]}


@contextmanager
def _machines(profile: Profile) -> Iterator[Testbed]:
    """Make a host for each worker, and one for the scheduler."""
    names = [f"machine-{rank}" for rank in range(len(profile.up))]
    shares = {Direction.UP: profile.up, Direction.DOWN: profile.down}
    with testbed([*names, SCHEDULER], link_bps=profile.full_bps) as bed:
        bed.set_rates(
            {
                (name, way): round(share * profile.full_bps)
                for way, of_way in shares.items()
                for name, share in zip(names, of_way, strict=True)
            }
        )
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
            command = [*host.command, sys.executable, "-m", "benchmarks.rounds", json.dumps(asdict(task))]
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
    """Do all rounds of each kind; return how long each took here."""
    import torch
    import torch.distributed as dist

    from mlfabric import Method, register_as_worker
    from mlfabric.channels import TcpOptions
    from mlfabric.config import WorkerSettings
    from mlfabric.security import Security

    store = f"tcp://{task.store}:{STORE_PORT}"
    store_rank = task.workers - 1
    rank = (task.rank - store_rank) % task.workers  # the process of rank 0 holds the store: not behind a slow link
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=task.workers)
    settings = WorkerSettings(
        scheduler=task.scheduler,
        name=f"worker-{task.rank}",
        host=f"machine-{task.rank}",
        tcp=TcpOptions(bind=task.address, security=Security(insecure=True)),
    )
    model = {"w": torch.zeros(1, requires_grad=True)}
    times: dict[str, list[float]] = {"gloo": [], "ours": [], "empty": []}
    values = {"full": torch.rand(task.size_bytes // 4), "empty": torch.rand(1)}
    with register_as_worker(model, method=Method.ALL_REDUCE, workers=task.workers, settings=settings) as worker:

        def timed(kind: str, reduce: Callable[[torch.Tensor], Any]) -> torch.Tensor:
            """Sum once, when nothing is under way any more, probes of links neither."""
            total = values["empty" if kind == "empty" else "full"].clone()
            time.sleep(PAUSE_S)
            dist.barrier()
            started_s = time.perf_counter()
            reduce(total)
            times[kind].append(time.perf_counter() - started_s)
            return total

        # One kind after the other: gloo's bytes between our rounds would be in the way of the probes that follow each.
        for _ in range(task.rounds):
            wanted = timed("gloo", dist.all_reduce)
        for _ in range(task.rounds):
            torch.testing.assert_close(timed("ours", worker.all_reduce), wanted)
        for _ in range(task.rounds):
            timed("empty", worker.all_reduce)
        dist.barrier()
    dist.destroy_process_group()
    return times


if __name__ == "__main__":
    if len(sys.argv) > 1:
        json.dump(_work(Task(**json.loads(sys.argv[1]))), sys.stdout)
    else:
        json.dump(run(), sys.stdout, indent=2)
