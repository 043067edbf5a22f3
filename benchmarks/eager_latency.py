"""How long partial rounds hold a worker up, beside MPI_Allreduce (eager-SGD, section 6.1 and figures 8 and 9).

32 processes make a sequence of rounds of one number. In each round the first calls 1 ms after the round's beginning,
the last 32 ms after it. The latency is the time from a process's call to its return, the mean over processes and
rounds. A call of everybody's waits for the last one: 15.5 ms in the mean, if the transfer itself takes no time.

In place of the paper's barrier rounds begin at fixed times, by the clock of the computer, so far apart that the
round before is over.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.forked_workers import Begin, progress, settings_of, worked
from benchmarks.processes import scheduler_process
from benchmarks.skew import latencies_s
from benchmarks.testbed.cpu import CpuMeter
from mlfabric.errors import UnavailableError

__all__ = ["latency"]

SKEW_S = 0.001
PATIENCE_S = 120.0
NO_FULL_ROUNDS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One process's part of a sequence."""

    rank: int
    processes: int
    scheduler: str
    quorum: str
    rounds: int
    pace_s: float
    waits: bool


def latency(trials: int, processes: int, rounds: int, pace_s: float) -> dict[str, float]:
    """Measure all kinds in turn, so many times; return medians."""
    found: list[Mapping[str, float]] = []
    with CpuMeter() as cpu:
        for trial in range(1, trials + 1):
            progress(
                f"latency, sequence {trial} of {trials}: MPI_Allreduce, solo and majority, each also without waiting"
            )
            one: dict[str, float] = {"mpi_ms": _mpi_s(processes, rounds, pace_s) * 1e3}
            for waits, quorum in product((True, False), ("solo", "majority")):
                kind = quorum if waits else f"{quorum}_at_once"
                of_kind = _ours(quorum, processes, rounds, pace_s, waits=waits)
                one |= {f"{kind}_{name}": value for name, value in of_kind.items()}
                one[f"{kind}_times"] = one["mpi_ms"] / one[f"{kind}_ms"]
            found.append(one)
    return {
        **{name: statistics.median(one[name] for one in found) for name in found[0]},
        "waiting_for_the_last_ms": SKEW_S * 1e3 * (processes - 1) / 2,
        "cpu_used_share": cpu.used_share,
        "cpu_saturated_share": cpu.saturated_share,
    }


def _mpi_s(processes: int, rounds: int, pace_s: float) -> float:
    """Return the mean latency of MPI_Allreduce.

    Raises:
        UnavailableError: there is no MPI here.
        RuntimeError: it failed.
    """
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.is_file():
        raise UnavailableError(f"no {mpirun}; install mpi4py and openmpi: make setup")
    options = ["--allow-run-as-root", "--oversubscribe", "-n", str(processes)]
    work = [sys.executable, "-m", "benchmarks.eager_mpi", str(rounds), str(pace_s), str(SKEW_S)]
    checkout = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [str(mpirun), *options, *work], capture_output=True, text=True, timeout=PATIENCE_S, cwd=checkout, check=False
    )
    if done.returncode:
        raise RuntimeError(f"mpirun ended with {done.returncode}: {done.stderr}")
    return float(done.stdout)


def _ours(quorum: str, processes: int, rounds: int, pace_s: float, *, waits: bool) -> dict[str, float]:
    with scheduler_process() as (scheduler, _):
        tasks = [
            Task(
                rank=rank,
                processes=processes,
                scheduler=scheduler,
                quorum=quorum,
                rounds=rounds,
                pace_s=pace_s,
                waits=waits,
            )
            for rank in range(processes)
        ]
        found = worked(_work, tasks, PATIENCE_S)
    made = max(one["rounds"] for one in found)
    return {
        "ms": statistics.fmean(one["mean_s"] for one in found) * 1e3,
        "first_ms": found[0]["mean_s"] * 1e3,
        "last_ms": found[-1]["mean_s"] * 1e3,
        "active": sum(one["contributions"] for one in found) / max(1, made),
        "rounds": made,
    }


def _work(task: Task, begin: Begin) -> dict[str, Any]:
    import torch

    import mlfabric

    model = torch.nn.Linear(1, 1, bias=False)
    settings = settings_of(task.scheduler, task.rank)
    optimizer = mlfabric.wrap(
        torch.optim.SGD(model.parameters(), lr=0.0),
        model,
        method="partial",
        quorum=task.quorum,
        full_every=NO_FULL_ROUNDS,
        wait=task.waits,
        workers=task.processes,
        settings=settings,
    )

    contributions = 0

    def call() -> None:
        nonlocal contributions
        before = optimizer.tally.included
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        contributions += optimizer.tally.included > before

    taken_s = latencies_s(call, begin(), task.rounds, task.pace_s, (task.rank + 1) * SKEW_S)
    optimizer.leave()  # no round of others waits for who has made all its calls
    return {"mean_s": sum(taken_s) / task.rounds, "contributions": contributions, "rounds": optimizer.version}
