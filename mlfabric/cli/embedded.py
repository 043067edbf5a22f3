"""``mlfabric up | run``: a fabric and training jobs as processes of this machine."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from mlfabric.cli import options as opt
from mlfabric.config import parse_rate
from mlfabric.errors import UnavailableError, UsageError
from mlfabric.launch.fabric import Fabric, FabricOptions
from mlfabric.launch.output import Output
from mlfabric.launch.ports import is_here, split_address
from mlfabric.launch.processes import Nursery
from mlfabric.launch.racing import first_of
from mlfabric.launch.signals import EXIT_ON_SIGNAL, StopSignals
from mlfabric.launch.status import StatusReader
from mlfabric.launch.workers import JobOptions, per_rank, planned_host, run_job

__all__ = ["add_to"]

PROBE_S = 2.0
Work = Callable[[Nursery], Awaitable[int]]


def up(
    port: Annotated[
        int, typer.Option(envvar="MLFABRIC_PORT", min=0, max=65535, help="The scheduler's port; 0 for any free one.")
    ] = 50061,
    bind: opt.Bind = "127.0.0.1",
    advertise: opt.Advertise = "",
    servers: Annotated[int, typer.Option(envvar="MLFABRIC_SERVERS", help="How many servers.")] = 1,
    aggregators: Annotated[int, typer.Option(envvar="MLFABRIC_AGGREGATORS", help="How many aggregators.")] = 0,
    replica_div_max: Annotated[
        str,
        typer.Option(
            envvar="MLFABRIC_REPLICA_DIV_MAX", help="Keep a replica of server-0 within this l2 distance of it."
        ),
    ] = "",
    replica_div_max_updates: Annotated[
        str,
        typer.Option(
            envvar="MLFABRIC_REPLICA_DIV_MAX_UPDATES", help="Keep a replica of server-0 within so many commits of it."
        ),
    ] = "",
    monitor: Annotated[
        bool, typer.Option("--monitor/--no-monitor", envvar="MLFABRIC_MONITOR", help="Whether links are measured.")
    ] = True,
    server_host: Annotated[
        str, typer.Option(envvar="MLFABRIC_SERVER_HOST", help="Machine that the servers are planned to be on.")
    ] = "",
    server_up: Annotated[
        str, typer.Option(envvar="MLFABRIC_SERVER_UP", help="Rate of each server's emulated network card, outgoing.")
    ] = "",
    server_down: Annotated[str, typer.Option(envvar="MLFABRIC_SERVER_DOWN", help="The same, incoming.")] = "",
    aggregator_hosts: Annotated[
        str,
        typer.Option(
            envvar="MLFABRIC_AGGREGATOR_HOSTS",
            help="Machines that the aggregators are planned to be on: one for all, or one for each with commas.",
        ),
    ] = "",
    aggregator_up: Annotated[
        str,
        typer.Option(
            envvar="MLFABRIC_AGGREGATOR_UP",
            help="Rate of each aggregator's emulated network card, outgoing: one for all, or one for each with commas.",
        ),
    ] = "",
    aggregator_down: Annotated[str, typer.Option(envvar="MLFABRIC_AGGREGATOR_DOWN", help="The same, incoming.")] = "",
    checkpoint_dir: Annotated[
        Path | None,
        typer.Option(envvar="MLFABRIC_CHECKPOINT_DIR", help="Where checkpoints go; a restarted server resumes them."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", envvar="MLFABRIC_RESUME", help="Begin with the newest checkpoints.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            envvar="MLFABRIC_METRICS_PORT",
            min=0,
            max=65000,
            help="Port of the scheduler's /metrics; servers, aggregators and monitor take the next ones.",
        ),
    ] = None,
    log_level: opt.LogLevel = opt.Level.INFO,
    config: opt.Config = None,
) -> None:
    """Run a fabric on this machine until Ctrl-C.

    Starts scheduler, servers, aggregators and monitor, and starts again what dies. Each also reads its section of the
    settings file.
    """
    options = FabricOptions(
        bind=bind,
        advertised=advertise,
        port=port,
        servers=servers,
        aggregators=aggregators,
        replica_div_max=_checked(float, replica_div_max, "--replica-div-max", "a number, 0 or more"),
        replica_div_max_updates=_checked(
            int, replica_div_max_updates, "--replica-div-max-updates", "a whole number, 0 or more"
        ),
        monitor=monitor,
        server_host=server_host,
        server_up=_checked_rate(server_up),
        server_down=_checked_rate(server_down),
        aggregator_hosts=_texts(aggregator_hosts),
        aggregator_up=_rates(aggregator_up),
        aggregator_down=_rates(aggregator_down),
        checkpoint_dir=checkpoint_dir,
        resume=resume,
        metrics_port=metrics_port,
        log_level=log_level.value,
        config=config,
    )

    async def work(nursery: Nursery) -> int:
        async def keep(fabric: Fabric) -> int:
            await fabric.keep()
            return 0

        return await _in_fabric(nursery, options, keep, announce=True)

    raise typer.Exit(asyncio.run(_launch(work, code_at_sigterm=0)))


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT [ARGS]...", help="Training script (or module, with -m), its arguments."),
    ],
    workers: Annotated[
        int, typer.Option("--workers", "-n", envvar="MLFABRIC_WORKERS", help="How many workers to start.")
    ] = 1,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is the name of a module.")] = False,
    scheduler: opt.Scheduler = opt.DEFAULT_SCHEDULER_ADDRESS,
    up: Annotated[
        bool,
        typer.Option("--up/--no-up", envvar="MLFABRIC_RUN_UP", help="Start a fabric here if no scheduler answers."),
    ] = True,
    host_per_worker: Annotated[
        bool,
        typer.Option(
            "--host-per-worker/--one-host",
            envvar="MLFABRIC_HOST_PER_WORKER",
            help="Plan as if each worker were on a machine of its own.",
        ),
    ] = False,
    worker_up: Annotated[
        str,
        typer.Option(
            envvar="MLFABRIC_WORKER_UP",
            help="Rate of each worker's emulated network card, outgoing: one for all, or one for each with commas.",
        ),
    ] = "",
    worker_down: Annotated[str, typer.Option(envvar="MLFABRIC_WORKER_DOWN", help="The same, incoming.")] = "",
    server_up: Annotated[
        str, typer.Option(envvar="MLFABRIC_SERVER_UP", help="Rate of the server's card, if a fabric is started here.")
    ] = "",
    server_down: Annotated[str, typer.Option(envvar="MLFABRIC_SERVER_DOWN", help="The same, incoming.")] = "",
    aggregators: Annotated[
        int,
        typer.Option(
            envvar="MLFABRIC_AGGREGATORS",
            min=0,
            help="How many aggregators, if a fabric is started here; with --host-per-worker, one beside each worker.",
        ),
    ] = 0,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            envvar="MLFABRIC_METRICS_PORT", min=0, max=65000, help="Port of rank 0's /metrics; the others follow."
        ),
    ] = None,
    log_level: opt.LogLevel = opt.Level.WARNING,
    config: opt.Config = None,
) -> None:
    """Train with several workers on this machine.

    Starts SCRIPT as torchrun would, and a fabric if no scheduler answers. If one worker fails, the others are ended.
    """
    job = JobOptions(
        command=("-m", *command) if module else tuple(command),
        workers=workers,
        scheduler=scheduler,
        host_per_worker=host_per_worker,
        up=_rates(worker_up),
        down=_rates(worker_down),
        metrics_port=metrics_port,
    )
    beside = [index % workers for index in range(aggregators)] if host_per_worker else []
    host, port = split_address(scheduler)
    options = FabricOptions(
        bind=host,
        port=port,
        server_host="server-0" if host_per_worker else "",
        server_up=_checked_rate(server_up),
        server_down=_checked_rate(server_down),
        aggregators=aggregators,
        aggregator_hosts=tuple(planned_host(rank) for rank in beside),
        aggregator_up=tuple(per_rank(job.up, rank) for rank in beside),
        aggregator_down=tuple(per_rank(job.down, rank) for rank in beside),
        log_level=log_level.value,
        config=config,
    )

    async def work(nursery: Nursery) -> int:
        if await _answers(scheduler, up):
            return await run_job(nursery, job)
        return await _in_fabric(nursery, options, lambda _: run_job(nursery, job), announce=False)

    raise typer.Exit(asyncio.run(_launch(work, code_at_sigterm=EXIT_ON_SIGNAL + signal.SIGTERM)))


def _texts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text else ()


def _rates(text: str) -> tuple[str, ...]:
    return tuple(map(_checked_rate, _texts(text)))


def _checked(kind: Callable[[str], float], text: str, flag: str, allowed: str) -> str:
    """Return the text of a number >= 0 as it is, "" for none.

    Raises:
        UsageError: it is no such number.
    """
    try:
        good = not text or kind(text) >= 0
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"{flag} {text}; allowed: {allowed}")
    return text


def _checked_rate(text: str) -> str:
    """Return the text of a rate as it is, "" for none.

    Raises:
        ConfigError: it is no rate.
    """
    if text:
        parse_rate(text)
    return text


async def _answers(scheduler: str, up: bool) -> bool:
    """Tell whether a scheduler answers; if none does, a fabric is to be started here.

    Raises:
        UnavailableError: none answers and none is to be started.
        UsageError: none answers, and its address is not of this machine.
    """
    try:
        async with StatusReader(scheduler, PROBE_S) as reader:
            await reader.read()
    except UnavailableError:
        if not up:
            raise
        if not is_here(split_address(scheduler)[0]):
            raise UsageError(
                f"no scheduler answers at {scheduler}, which is not this machine, so none can be started there; "
                "start one with 'mlfabric up' on it, or leave --scheduler out to have one here"
            ) from None
        return False
    return True


async def _launch(work: Work, code_at_sigterm: int) -> int:
    """Do work that starts processes, until it is done or a signal comes; end all it started."""
    signals = StopSignals()
    code = 0

    async def working(nursery: Nursery) -> None:
        nonlocal code
        code = await work(nursery)

    async def told() -> None:
        await signals.stop.wait()

    with signals.watch():
        async with Nursery(Output(), signals.hurry) as nursery:
            await first_of(told(), working(nursery))
    if signals.received is None:
        return code
    return code_at_sigterm if signals.received is signal.SIGTERM else EXIT_ON_SIGNAL + signals.received


async def _in_fabric(
    nursery: Nursery, options: FabricOptions, work: Callable[[Fabric], Awaitable[int]], *, announce: bool
) -> int:
    """Start a fabric, do work in it, end it; return the work's code.

    Raises:
        UsageError: the fabric cannot run with these settings.
    """
    fabric = Fabric(nursery, options)
    code = 0

    async def working() -> None:
        nonlocal code
        status = await fabric.ready()
        if announce:
            rows = [("scheduler", fabric.scheduler), *((m.name, m.address) for m in status.members)]
            _announce(rows, fabric.scheduler)
        code = await work(fabric)

    fabric.start()
    try:
        await first_of(working(), fabric.keep())
    finally:
        await fabric.end()
    return code


def _announce(rows: list[tuple[str, str]], scheduler: str) -> None:
    """Print where the services are, and how to train with them."""
    lines = ["mlfabric is up; Ctrl-C stops it", *(f"  {name:<10} {address}" for name, address in rows)]
    where = "" if scheduler == opt.DEFAULT_SCHEDULER_ADDRESS else f"--scheduler {scheduler} "
    lines.append(f"train with: mlfabric run -n 4 {where}train.py")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(
        epilog=opt.examples(
            "mlfabric up",
            "mlfabric up --port 0 --servers 2 --checkpoint-dir checkpoints --resume",
            "mlfabric up --server-up 800M --server-down 800M --metrics-port 9400",
            "mlfabric up --replica-div-max-updates 40",
            "mlfabric up --aggregators 2 --aggregator-hosts node-1,node-2",
        )
    )(up)
    app.command(
        context_settings={"allow_interspersed_args": False},
        epilog=opt.examples(
            "mlfabric run -n 4 train.py --epochs 3",
            "mlfabric run -n 4 -m mypackage.train",
            "mlfabric run -n 3 --host-per-worker --worker-up 800M,800M,100M train.py",
            "mlfabric run -n 8 --host-per-worker --worker-up 800M --worker-down 800M --aggregators 3 train.py",
            "mlfabric run -n 8 --scheduler head-node:50061 --no-up train.py",
        ),
    )(run)
