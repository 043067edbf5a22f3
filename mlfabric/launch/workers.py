"""The processes of one training job, started as torchrun would start them, and told how to find the fabric."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlfabric.errors import UsageError
from mlfabric.launch.jobs import check_job_name, held_job, stem_of
from mlfabric.launch.ports import free_port
from mlfabric.launch.processes import Nursery, Program, ending_text, exit_code
from mlfabric.protocol import job_name
from mlfabric.security import CLIENT, Security

__all__ = ["JobOptions", "per_rank", "planned_host", "run_job", "worker_environment"]

MASTER_HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """A training job.

    Args:
        command: script and its arguments, or ``-m``, module and arguments.
        workers: how many processes; >= 1.
        scheduler: ``host:port`` of the scheduler.
        host_per_worker: each rank counts as a machine of its own, ``host-<rank>``; else all are on this one.
        up, down: rates of the emulated network cards, one for all ranks, or one for each; empty emulates none.
        metrics_port: of rank 0; the others' follow. 0 any free one each, None no pages.
        tls: folder of the workers' certificate; None for plain connections.
        insecure: plain connections may leave this machine.
        job: what the names of its workers and models begin with; "" for plain names, unless another job has these.
        resume: the job goes on with what a former one has left, unless its script says something else.
        json_log: see ``WorkerSettings``.
    """

    command: tuple[str, ...]
    workers: int
    scheduler: str
    host_per_worker: bool = False
    up: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    metrics_port: int | None = None
    tls: Path | None = None
    insecure: bool = False
    job: str = ""
    resume: bool = False
    json_log: str = ""

    def __post_init__(self) -> None:
        check_job_name(self.job)
        if self.workers < 1:
            raise UsageError(f"-n {self.workers}; allowed: 1 worker or more")
        for name, rates in (("--worker-up", self.up), ("--worker-down", self.down)):
            if len(rates) not in (0, 1, self.workers):
                raise UsageError(f"{name}: {len(rates)} rates; allowed: one for all, or one for each of {self.workers}")
        if (self.up or self.down) and not self.host_per_worker and self.workers > 1:
            raise UsageError(
                "--worker-up and --worker-down emulate a network card for each rank; add --host-per-worker"
            )


def per_rank(rates: tuple[str, ...], rank: int) -> str:
    """Return a rank's rate out of none, one for all, or one for each; "" if none is given."""
    return rates[rank if len(rates) > 1 else 0] if rates else ""


def planned_host(rank: int) -> str:
    """Return the machine that a rank is planned to be on where each has one of its own."""
    return f"host-{rank}"


def worker_environment(
    options: JobOptions, rank: int, master_port: int, inherited: Mapping[str, str], job: str = ""
) -> dict[str, str]:
    """Return one rank's environment: torchrun's variables, ours, and all that is inherited beside them.

    Args:
        job: the identity of the job.
    """
    host = planned_host(rank) if options.host_per_worker else inherited.get("MLFABRIC_HOST", "") or socket.gethostname()
    ours = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(options.workers),
        "LOCAL_WORLD_SIZE": str(options.workers),
        "MASTER_ADDR": MASTER_HOST,
        "MASTER_PORT": str(master_port),
        "MLFABRIC_SCHEDULER": options.scheduler,
        "MLFABRIC_NAME": f"worker-{rank}",
        "MLFABRIC_HOST": host,
        "MLFABRIC_WORKERS": str(options.workers),
        "MLFABRIC_JOB": job,
        "MLFABRIC_RESUME": "1" if options.resume else "",
        "MLFABRIC_METRICS_PORT": _metrics(options.metrics_port, rank),
        "MLFABRIC_TLS": str(options.tls.resolve()) if options.tls else "",
        "MLFABRIC_INSECURE": "1" if options.insecure else "",
        "MLFABRIC_LOG_FORMAT": "json" if options.json_log else "",
        "MLFABRIC_LOG_LEVEL": options.json_log,
    }
    rates = {"MLFABRIC_UP": per_rank(options.up, rank), "MLFABRIC_DOWN": per_rank(options.down, rank)}
    defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return {**defaults, **inherited, **ours, **{name: rate for name, rate in rates.items() if rate}}


def _metrics(first_port: int | None, rank: int) -> str:
    if first_port is None:
        return ""
    return str(first_port + rank if first_port else 0)


async def run_job(nursery: Nursery, options: JobOptions) -> int:
    """Run all ranks to their end; if one fails, end the others.

    Returns:
        0, or the code of the rank that failed first (128 + signal if one killed it).

    Raises:
        UsageError: another job has the name that this one is to have.
        UnavailableError: no scheduler answers.
    """
    security = Security.of(options.tls, CLIENT, insecure=options.insecure)
    async with held_job(options.scheduler, security, options.job, stem_of(options.command)) as job:
        if job_name(job) and not options.job:
            name = job_name(job)
            nursery.output.say(f"another job goes on here, so this one is job {name}, and its model {name}/model")
        return await _run_ranks(nursery, options, job)


async def _run_ranks(nursery: Nursery, options: JobOptions, job: str) -> int:
    master_port = free_port(MASTER_HOST)
    waiting: dict[asyncio.Task[int], int] = {}
    processes = []
    try:
        for rank in range(options.workers):
            environment = worker_environment(options, rank, master_port, os.environ, job)
            program = Program(name=str(rank), argv=(sys.executable, *options.command), environment=environment)
            processes.append(await nursery.start(program))
            waiting[asyncio.create_task(processes[-1].wait())] = rank
        failed = await _first_failure(waiting)
        if failed is None:
            return 0
        rank, returncode = failed
        others = "; ending the others" if any(not task.done() for task in waiting) else ""
        nursery.output.say(f"rank {rank} {ending_text(returncode)}{others}", is_warning=True)
        return exit_code(returncode)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await nursery.end(processes)


async def _first_failure(waiting: Mapping[asyncio.Task[int], int]) -> tuple[int, int] | None:
    """Wait for all ranks, or for the first that fails; return it and its code."""
    pending = set(waiting)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        failed = sorted((waiting[task], task.result()) for task in done if task.result() != 0)
        if failed:
            return failed[0]
    return None
