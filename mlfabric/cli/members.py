"""``mlfabric server | worker | aggregator``: the services that move tensors, long-lived, logging to stderr."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from prometheus_client import CollectorRegistry

from mlfabric.channels import TcpOptions
from mlfabric.cli import options as opt
from mlfabric.cli.serving import serve
from mlfabric.config import WorkerSettings, parse_ports, parse_rate, parse_size
from mlfabric.errors import UsageError
from mlfabric.telemetry import MetricsPage

if TYPE_CHECKING:
    from mlfabric.server.replica_service import ReplicaOptions

__all__ = ["add_to"]


def server(
    scheduler: opt.Scheduler = opt.DEFAULT_SCHEDULER_ADDRESS,
    name: Annotated[
        str,
        typer.Option(envvar="MLFABRIC_NAME", help="Its name, unique within the fabric; else server-0 or replica-0."),
    ] = "",
    host: opt.Host = "",
    bind: opt.Bind = "127.0.0.1",
    advertise: opt.Advertise = "",
    data_ports: opt.DataPorts = "0",
    up: opt.Up = "0",
    down: opt.Down = "0",
    metrics_port: opt.MetricsPort = None,
    replica_of: Annotated[
        str, typer.Option(envvar="MLFABRIC_REPLICA_OF", help="Follow the models of this server instead of holding any.")
    ] = "",
    div_max: Annotated[
        float,
        typer.Option(
            envvar="MLFABRIC_DIV_MAX", help="l2 distance of a primary from what its replica can recover; 0 for none."
        ),
    ] = math.inf,
    div_max_updates: Annotated[
        int | None,
        typer.Option(
            envvar="MLFABRIC_DIV_MAX_UPDATES", min=0, help="Commits that a primary may be ahead of its replica."
        ),
    ] = None,
    checkpoint_dir: Annotated[
        Path | None, typer.Option(envvar="MLFABRIC_CHECKPOINT_DIR", help="Where checkpoints go; none without it.")
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option(envvar="MLFABRIC_CHECKPOINT_EVERY", help="Seconds between checkpoints.")
    ] = 60.0,
    keep: Annotated[int, typer.Option(envvar="MLFABRIC_KEEP", min=1, help="Checkpoints kept of each model.")] = 3,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", envvar="MLFABRIC_RESUME", help="Begin with the newest checkpoints."),
    ] = False,
    receive_budget: Annotated[
        str,
        typer.Option(envvar="MLFABRIC_RECEIVE_BUDGET", help="Memory for updates on their way, as 512M or 2G bytes."),
    ] = "1Gi",
    log_level: opt.LogLevel = opt.Level.INFO,
    config: opt.Config = None,
) -> None:
    """Hold models and apply updates in the scheduler's order.

    Hands out models and writes checkpoints; or, with --replica-of, follows another server within a bound.
    """
    from mlfabric.server.replica_service import ReplicaOptions
    from mlfabric.server.service import ServerOptions, ServerService
    from mlfabric.telemetry import ServerMetrics

    opt.log_to_stderr(log_level)
    if replica_of:
        if checkpoint_dir is not None or resume:
            raise UsageError("--replica-of with --checkpoint-dir or --resume; a replica is seeded by its primary")
        _follow(
            ReplicaOptions(
                scheduler=scheduler,
                replica_of=replica_of,
                name=name or "replica-0",
                host=host or socket.gethostname(),
                tcp=_tcp(bind, advertise, data_ports, up, down),
                div_max=div_max,
                div_max_updates=div_max_updates,
            ),
            bind,
            metrics_port,
        )
    if div_max_updates is not None or not math.isinf(div_max):
        raise UsageError("--div-max and --div-max-updates are a replica's; give --replica-of, the name of a server")
    options = ServerOptions(
        scheduler=scheduler,
        name=name or "server-0",
        host=host or socket.gethostname(),
        tcp=_tcp(bind, advertise, data_ports, up, down),
        receive_budget_bytes=parse_size(receive_budget),
        checkpoint_dir=checkpoint_dir,
        checkpoint_every_s=checkpoint_every,
        keep=keep,
        resume=resume,
    )
    metrics = ServerMetrics()

    async def run(stop: asyncio.Event, ready: Callable[[], None]) -> None:
        service = ServerService(options, metrics)
        ready()
        await service.run(stop)

    with _page(metrics.registry, bind, metrics_port):
        raise typer.Exit(serve(run))


def _follow(options: ReplicaOptions, bind: str, metrics_port: int | None) -> NoReturn:
    from mlfabric.server.replica_service import ReplicaService
    from mlfabric.telemetry import ServerMetrics

    metrics = ServerMetrics()

    async def run(stop: asyncio.Event, ready: Callable[[], None]) -> None:
        service = ReplicaService(options, metrics)
        ready()
        await service.run(stop)

    with _page(metrics.registry, bind, metrics_port):
        raise typer.Exit(serve(run))


def worker(
    listen: Annotated[
        str, typer.Option(envvar="MLFABRIC_DAEMON", help="Address where the training process finds this daemon.")
    ] = "",
    scheduler: opt.Scheduler = opt.DEFAULT_SCHEDULER_ADDRESS,
    name: Annotated[
        str, typer.Option(envvar="MLFABRIC_NAME", help="The worker's name, unique within the fabric.")
    ] = "worker-0",
    host: opt.Host = "",
    bind: opt.Bind = "127.0.0.1",
    advertise: opt.Advertise = "",
    data_ports: opt.DataPorts = "0",
    up: opt.Up = "0",
    down: opt.Down = "0",
    metrics_port: opt.MetricsPort = None,
    log_level: opt.LogLevel = opt.Level.INFO,
    config: opt.Config = None,
) -> None:
    """Run a worker's daemon beside its training process.

    Without it, the daemon runs in a thread of the training process.
    """
    from mlfabric.worker_daemon import beside

    opt.log_to_stderr(log_level)
    settings = WorkerSettings(
        scheduler=scheduler,
        name=name,
        host=host or socket.gethostname(),
        tcp=_tcp(bind, advertise, data_ports, up, down),
        metrics_port=metrics_port,
        daemon=listen,
    )

    async def run(stop: asyncio.Event, ready: Callable[[], None]) -> None:
        ready()
        await beside.serve(beside.BesideOptions(settings=settings), stop)

    raise typer.Exit(serve(run))


def aggregator(
    scheduler: opt.Scheduler = opt.DEFAULT_SCHEDULER_ADDRESS,
    name: Annotated[
        str, typer.Option(envvar="MLFABRIC_NAME", help="Its name, unique within the fabric.")
    ] = "aggregator-0",
    host: opt.Host = "",
    bind: opt.Bind = "127.0.0.1",
    advertise: opt.Advertise = "",
    data_ports: opt.DataPorts = "0",
    up: opt.Up = "0",
    down: opt.Down = "0",
    metrics_port: opt.MetricsPort = None,
    most_updates: Annotated[
        int, typer.Option(envvar="MLFABRIC_MOST_UPDATES", min=0, help="Updates in one sum at most; 0 for any number.")
    ] = 0,
    memory_budget: Annotated[
        str,
        typer.Option(envvar="MLFABRIC_MEMORY_BUDGET", help="Memory for sums and models on their way, as 512M or 2Gi."),
    ] = "1Gi",
    log_level: opt.LogLevel = opt.Level.INFO,
    config: opt.Config = None,
) -> None:
    """Sum updates on their way to a server, and hand models on.

    Runs beside a worker, whose --host it is given then, or on a machine of its own.
    """
    from mlfabric.aggregator.service import AggregatorOptions, AggregatorService
    from mlfabric.telemetry import AggregatorMetrics

    opt.log_to_stderr(log_level)
    options = AggregatorOptions(
        scheduler=scheduler,
        name=name,
        host=host or socket.gethostname(),
        tcp=_tcp(bind, advertise, data_ports, up, down),
        most_updates=most_updates,
        memory_budget_bytes=parse_size(memory_budget),
    )
    metrics = AggregatorMetrics()

    async def run(stop: asyncio.Event, ready: Callable[[], None]) -> None:
        service = AggregatorService(options, metrics)
        ready()
        await service.run(stop)

    with _page(metrics.registry, bind, metrics_port):
        raise typer.Exit(serve(run))


def _tcp(bind: str, advertise: str, data_ports: str, up: str, down: str) -> TcpOptions:
    return TcpOptions(
        bind=bind,
        advertised_host=advertise,
        ports=parse_ports(data_ports),
        up_bps=parse_rate(up),
        down_bps=parse_rate(down),
    )


def _page(registry: CollectorRegistry, bind: str, port: int | None) -> ExitStack:
    """Return a context with a metrics page, or without if no port is given."""
    stack = ExitStack()
    if port is not None:
        page = MetricsPage(registry, bind, port)
        page.start()
        stack.callback(page.stop)
    return stack


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(
        epilog=opt.examples(
            "mlfabric server --scheduler head-node:50061",
            "mlfabric server --name server-1 --bind 0.0.0.0 --advertise node-7 --data-ports 7000-7099",
            "mlfabric server --replica-of server-0 --div-max-updates 160 --scheduler head-node:50061",
            "mlfabric server --checkpoint-dir checkpoints --checkpoint-every 120 --resume",
        )
    )(server)
    app.command(
        epilog=opt.examples(
            "mlfabric worker --listen 127.0.0.1:7100 --name worker-3 --scheduler head-node:50061",
            "MLFABRIC_DAEMON=127.0.0.1:7100 python train.py",
        )
    )(worker)
    app.command(
        epilog=opt.examples(
            "mlfabric aggregator --scheduler head-node:50061",
            "mlfabric aggregator --name aggregator-3 --bind 0.0.0.0 --advertise node-3 --host node-3",
            "mlfabric aggregator --most-updates 8 --memory-budget 4Gi --metrics-port 9410",
        )
    )(aggregator)
