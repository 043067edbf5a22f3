"""``mlfabric scheduler | monitor``: the services that hold no tensors, long-lived, logging to stderr."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlfabric.cli import fabric_flags as flag
from mlfabric.cli import options as opt
from mlfabric.cli.run_service import line_on_stdin, serve
from mlfabric.config import parse_rate, parse_size
from mlfabric.errors import ConfigError
from mlfabric.security import SCHEDULER, Security

if TYPE_CHECKING:
    from mlfabric.scheduler.limits import Limits

__all__ = ["add_to", "limits_of"]


def scheduler(
    bind: opt.Bind = "127.0.0.1",
    advertise: opt.Advertise = "",
    port: Annotated[int, typer.Option(envvar="MLFABRIC_PORT", help="Port to listen on; 0 for any free one.")] = 50061,
    tls: opt.Tls = None,
    insecure: opt.Insecure = False,
    metrics_port: opt.MetricsPort = None,
    batch_window: Annotated[
        float,
        typer.Option(
            envvar="MLFABRIC_BATCH_WINDOW", help="Seconds that updates wait for others at most, without aggregators."
        ),
    ] = 0.1,
    answer: Annotated[
        float, typer.Option(envvar="MLFABRIC_ANSWER", help="Seconds until a process that hangs counts as silent.")
    ] = 10.0,
    silence: Annotated[
        float, typer.Option(envvar="MLFABRIC_SILENCE", help="Seconds until a silent member counts as gone.")
    ] = 10.0,
    round_patience: Annotated[
        float,
        typer.Option(envvar="MLFABRIC_ROUND_PATIENCE", help="Seconds that AllReduce waits for a worker it has lost."),
    ] = 1.0,
    default_rate: Annotated[
        str, typer.Option(envvar="MLFABRIC_DEFAULT_RATE", help="Rate of a link that nobody stated or measured.")
    ] = "10G",
    limits: Annotated[
        str,
        typer.Option(
            envvar="MLFABRIC_LIMITS",
            help="How much it takes in before it refuses more, as members=500,updates=20000: "
            "members, models, model_bytes, updates, updates_per_worker, outcomes_per_worker, gets_per_worker, "
            "reduces_per_worker, outbox.",
        ),
    ] = "",
    history: flag.History = None,
    state_dir: Annotated[
        Path | None, typer.Option(envvar="MLFABRIC_STATE_DIR", help="Where its term is kept across restarts.")
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Load everything, then serve from a line on standard input on.")
    ] = False,
    log_level: opt.LogLevel = opt.Level.INFO,
    log_format: opt.LogFormat = opt.LogForm.TEXT,
    config: opt.Config = None,
) -> None:
    """Decide for every transfer when, to whom and whether."""
    from mlfabric.scheduler.runner import SchedulerOptions, SchedulerRunner

    opt.log_to_stderr(log_level, log_format)
    runner = SchedulerRunner(
        SchedulerOptions(
            bind=bind,
            advertised=advertise,
            port=port,
            metrics_port=metrics_port,
            batch_window_s=batch_window,
            answer_s=answer,
            silence_s=silence,
            round_patience_s=round_patience,
            default_bps=parse_rate(default_rate),
            limits=limits_of(limits),
            history=history,
            state_dir=state_dir,
            security=Security.of(tls, SCHEDULER, insecure=insecure),
        )
    )
    begin = line_on_stdin if standby else None
    raise typer.Exit(serve(lambda stop, ready: runner.run(stop, lambda _: ready(), begin)))


def limits_of(text: str) -> Limits:
    """Return a scheduler's limits: the defaults, changed by text like ``"members=500,model_bytes=20Gi"``.

    Raises:
        ConfigError: not of that form, an unknown limit, or one that is out of range.
    """
    from mlfabric.scheduler.limits import Limits

    known = [field.name for field in fields(Limits)]
    given: dict[str, int] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        name, is_set, value = entry.partition("=")
        if name not in known or not is_set:
            raise ConfigError(f"limits: {entry!r}; allowed: NAME=NUMBER with one of {', '.join(known)}")
        try:
            given[name] = parse_size(value)
        except ConfigError as error:
            raise ConfigError(f"limits: {entry!r}: {error}") from None
    return Limits(**given)


def monitor(
    scheduler: opt.Scheduler = opt.DEFAULT_SCHEDULER_ADDRESS,
    name: Annotated[
        str, typer.Option(envvar="MLFABRIC_NAME", help="Its name, unique within the fabric.")
    ] = "monitor-0",
    host: opt.Host = "",
    bind: opt.Bind = "127.0.0.1",
    advertise: opt.Advertise = "",
    port: Annotated[int, typer.Option(envvar="MLFABRIC_PORT", help="Port to listen on; 0 for any free one.")] = 0,
    tls: opt.Tls = None,
    insecure: opt.Insecure = False,
    metrics_port: opt.MetricsPort = None,
    interface: Annotated[
        str,
        typer.Option(
            envvar="MLFABRIC_INTERFACE", help="Network interface to watch; the one of its address unless given."
        ),
    ] = "",
    report_every: Annotated[
        float, typer.Option(envvar="MLFABRIC_REPORT_EVERY", help="Seconds between reports to the scheduler.")
    ] = 0.2,
    half_life: Annotated[
        float,
        typer.Option(
            envvar="MLFABRIC_HALF_LIFE", help="Seconds after which an observation counts half, at the latest."
        ),
    ] = 10.0,
    up: Annotated[
        str, typer.Option(envvar="MLFABRIC_UP", help="Rate of this host's link, outgoing, as 10G; 0 unknown.")
    ] = "0",
    down: Annotated[str, typer.Option(envvar="MLFABRIC_DOWN", help="The same, incoming.")] = "0",
    log_level: opt.LogLevel = opt.Level.INFO,
    log_format: opt.LogFormat = opt.LogForm.TEXT,
    config: opt.Config = None,
) -> None:
    """Estimate what links carry and tell the scheduler.

    Learns from finished transfers and from the counters of a network interface.
    """
    from mlfabric.monitor.service import MonitorConfig, MonitorService

    opt.log_to_stderr(log_level, log_format)
    settings = MonitorConfig(
        scheduler=scheduler,
        name=name,
        host=host or socket.gethostname(),
        bind=bind,
        advertised=advertise,
        port=port,
        metrics_port=metrics_port,
        interface=interface,
        report_interval_s=report_every,
        half_life_s=half_life,
        up_bps=parse_rate(up),
        down_bps=parse_rate(down),
        security=Security.of(tls, "monitor", insecure=insecure),
    )

    async def run(stop: asyncio.Event, ready: Callable[[], None]) -> None:
        service = MonitorService(settings)
        ready()
        try:
            await service.start()
            await service.run_until(stop)
        finally:
            await service.close()

    raise typer.Exit(serve(run))


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(
        epilog=opt.examples(
            "mlfabric scheduler",
            "mlfabric scheduler --bind 0.0.0.0 --advertise head-node --tls certificates --state-dir /var/lib/mlfabric",
            "mlfabric scheduler --limits members=100,models=4,model_bytes=20Gi",
            "mkfifo begin; mlfabric scheduler --standby < begin",
        )
    )(scheduler)
    app.command(
        epilog=opt.examples(
            "mlfabric monitor --scheduler head-node:50061 --tls certificates",
            "mlfabric monitor --bind 0.0.0.0 --advertise node-7 --insecure --interface eth0 --up 10G --down 10G",
        )
    )(monitor)
