"""``mlfabric aggregator``: a service beside training, long-lived, logging to stderr."""

from __future__ import annotations

import socket
from functools import partial
from typing import Annotated

import typer

from mlfabric.cli import options as opt
from mlfabric.cli.data_channel_options import data_channel, move
from mlfabric.config import parse_size
from mlfabric.security import Security

__all__ = ["add_to"]


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
    most_connections: opt.MostConnections = opt.MOST_CONNECTIONS,
    tls: opt.Tls = None,
    insecure: opt.Insecure = False,
    metrics_port: opt.MetricsPort = None,
    most_updates: Annotated[
        int, typer.Option(envvar="MLFABRIC_MOST_UPDATES", min=0, help="Updates in one sum at most; 0 for any number.")
    ] = 0,
    memory_budget: Annotated[
        str,
        typer.Option(envvar="MLFABRIC_MEMORY_BUDGET", help="Memory for sums and models on their way, as 512M or 2Gi."),
    ] = "1Gi",
    log_level: opt.LogLevel = opt.Level.INFO,
    log_format: opt.LogFormat = opt.LogForm.TEXT,
    config: opt.Config = None,
) -> None:
    """Sum updates on their way to a server, and hand models on.

    Runs beside a worker, whose --host it is given then, or on a machine of its own.
    """
    from mlfabric.aggregator.service import AggregatorOptions, AggregatorService
    from mlfabric.telemetry import AggregatorMetrics

    opt.log_to_stderr(log_level, log_format)
    tcp = data_channel(
        bind, advertise, data_ports, up, down, most_connections, Security.of(tls, "aggregator", insecure=insecure)
    )
    options = AggregatorOptions(
        scheduler=scheduler,
        name=name,
        host=host or socket.gethostname(),
        tcp=tcp,
        most_updates=most_updates,
        memory_budget_bytes=parse_size(memory_budget),
    )
    metrics = AggregatorMetrics()
    move(partial(AggregatorService, options, metrics), metrics.registry, tcp, metrics_port)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(
        epilog=opt.examples(
            "mlfabric aggregator --scheduler head-node:50061 --tls certificates",
            "mlfabric aggregator --name aggregator-3 --bind 0.0.0.0 --advertise node-3 --tls certificates",
            "mlfabric aggregator --most-updates 8 --memory-budget 4Gi --metrics-port 9410",
        )
    )(aggregator)
