"""``mlfabric server``: holds models, or follows a server that does; long-lived, logging to stderr."""

from __future__ import annotations

import math
import socket
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mlfabric.cli import options as opt
from mlfabric.cli.data_channel_options import data_channel, move
from mlfabric.config import parse_size
from mlfabric.errors import UsageError
from mlfabric.security import Security

__all__ = ["add_to"]

Name = Annotated[
    str, typer.Option(envvar="MLFABRIC_NAME", help="Its name, unique within the fabric; else server-0 or replica-0.")
]
ReplicaOf = Annotated[
    str, typer.Option(envvar="MLFABRIC_REPLICA_OF", help="Follow the models of this server instead of holding any.")
]
DivMax = Annotated[
    float,
    typer.Option(
        envvar="MLFABRIC_DIV_MAX", help="l2 distance of a primary from what its replica can recover; 0 for none."
    ),
]
DivMaxUpdates = Annotated[
    int | None,
    typer.Option(envvar="MLFABRIC_DIV_MAX_UPDATES", min=0, help="Commits that a primary may be ahead of its replica."),
]
CheckpointDir = Annotated[
    Path | None, typer.Option(envvar="MLFABRIC_CHECKPOINT_DIR", help="Where checkpoints go; none without it.")
]
CheckpointEvery = Annotated[
    float, typer.Option(envvar="MLFABRIC_CHECKPOINT_EVERY", help="Seconds between checkpoints.")
]
Keep = Annotated[int, typer.Option(envvar="MLFABRIC_KEEP", min=1, help="Checkpoints kept of each model.")]
Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", envvar="MLFABRIC_RESUME", help="Begin with the newest checkpoints.")
]
ReceiveBudget = Annotated[
    str, typer.Option(envvar="MLFABRIC_RECEIVE_BUDGET", help="Memory for updates on their way, as 512M or 2G bytes.")
]
WeightCopies = Annotated[
    int,
    typer.Option(
        envvar="MLFABRIC_WEIGHT_COPIES",
        min=0,
        help="Copies of the weights, beyond twice model and optimizer state, for older versions that slow workers are "
        "being sent; without one left, gets of newer versions wait.",
    ),
]


def server(
    scheduler: opt.Scheduler = opt.DEFAULT_SCHEDULER_ADDRESS,
    name: Name = "",
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
    replica_of: ReplicaOf = "",
    div_max: DivMax = math.inf,
    div_max_updates: DivMaxUpdates = None,
    checkpoint_dir: CheckpointDir = None,
    checkpoint_every: CheckpointEvery = 60.0,
    keep: Keep = 3,
    resume: Resume = False,
    receive_budget: ReceiveBudget = "1Gi",
    weight_copies: WeightCopies = 16,
    log_level: opt.LogLevel = opt.Level.INFO,
    log_format: opt.LogFormat = opt.LogForm.TEXT,
    config: opt.Config = None,
) -> None:
    """Hold models and apply updates in the scheduler's order.

    Hands out models and writes checkpoints; or, with --replica-of, follows another server within a bound, and takes
    its place when that dies: then it writes checkpoints, too.
    """
    from mlfabric.server.replica_service import ReplicaOptions, ReplicaService
    from mlfabric.server.service import ServerOptions, ServerService
    from mlfabric.telemetry import ServerMetrics

    opt.log_to_stderr(log_level, log_format)
    tcp = data_channel(
        bind, advertise, data_ports, up, down, most_connections, Security.of(tls, "server", insecure=insecure)
    )
    host, metrics = host or socket.gethostname(), ServerMetrics()
    if replica_of:
        if resume:
            raise UsageError("--replica-of with --resume; a replica is seeded by its primary")
        following = ReplicaOptions(
            scheduler=scheduler,
            replica_of=replica_of,
            name=name or "replica-0",
            host=host,
            tcp=tcp,
            div_max=div_max,
            div_max_updates=div_max_updates,
            receive_budget_bytes=parse_size(receive_budget),
            weight_copies=weight_copies,
            checkpoint_dir=checkpoint_dir,
            checkpoint_every_s=checkpoint_every,
            keep=keep,
        )
        move(partial(ReplicaService, following, metrics), metrics.registry, tcp, metrics_port)
    if div_max_updates is not None or not math.isinf(div_max):
        wrong = "--div-max and --div-max-updates are a replica's"
        raise UsageError(f"{wrong}; give --replica-of, the name of a server")
    options = ServerOptions(
        scheduler=scheduler,
        name=name or "server-0",
        host=host,
        tcp=tcp,
        receive_budget_bytes=parse_size(receive_budget),
        weight_copies=weight_copies,
        checkpoint_dir=checkpoint_dir,
        checkpoint_every_s=checkpoint_every,
        keep=keep,
        resume=resume,
    )
    move(partial(ServerService, options, metrics), metrics.registry, tcp, metrics_port)


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(
        epilog=opt.examples(
            "mlfabric server --scheduler head-node:50061 --tls certificates",
            "mlfabric server --name server-1 --bind 0.0.0.0 --advertise node-7 --data-ports 7000-7099 --insecure",
            "mlfabric server --replica-of server-0 --div-max-updates 160",
            "mlfabric server --checkpoint-dir checkpoints --checkpoint-every 120 --resume",
        )
    )(server)
