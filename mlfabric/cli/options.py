"""Options that several commands take: flag, environment variable, help; and the meaning of rates and sizes."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mlfabric.addresses import split_address
from mlfabric.channels import MOST_CONNECTIONS
from mlfabric.cli.toml_settings import DEFAULT_FILE, use_file
from mlfabric.config import DEFAULT_SCHEDULER
from mlfabric.telemetry.log_lines import JsonLines

__all__ = [
    "MOST_CONNECTIONS",
    "Advertise",
    "Bind",
    "Config",
    "DataPorts",
    "Down",
    "Host",
    "Insecure",
    "Level",
    "LogForm",
    "LogFormat",
    "LogLevel",
    "MetricsPort",
    "MostConnections",
    "Scheduler",
    "Tls",
    "Up",
    "examples",
    "log_to_stderr",
]


class Level(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogForm(StrEnum):
    """What log lines are: text for people, or JSON for programs."""

    TEXT = "text"
    JSON = "json"


def _checked_addresses(scheduler: str) -> str:
    for address in scheduler.split(","):
        split_address(address, "scheduler")
    return scheduler


Config = Annotated[
    Path | None,
    typer.Option(
        envvar="MLFABRIC_CONFIG",
        callback=use_file,
        is_eager=True,
        help=f"Settings file (TOML), one section for each command; ./{DEFAULT_FILE} if it is there.",
    ),
]
LogLevel = Annotated[Level, typer.Option(envvar="MLFABRIC_LOG_LEVEL", help="How much is logged, to stderr.")]
LogFormat = Annotated[
    LogForm, typer.Option(envvar="MLFABRIC_LOG_FORMAT", help="Log lines as text, or as a JSON object each.")
]
Scheduler = Annotated[
    str,
    typer.Option(
        envvar="MLFABRIC_SCHEDULER",
        callback=_checked_addresses,
        help="HOST:PORT of the scheduler; of several, joined by commas, the newest counts.",
    ),
]
Host = Annotated[
    str,
    typer.Option(
        envvar="MLFABRIC_HOST",
        help="Machine that it runs on; members of one host share its links. The machine's name unless given.",
    ),
]
Bind = Annotated[str, typer.Option(envvar="MLFABRIC_BIND", help="Address to listen on; 0.0.0.0 for all.")]
Advertise = Annotated[
    str, typer.Option(envvar="MLFABRIC_ADVERTISE", help="Name under which others reach it; as --bind unless given.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        envvar="MLFABRIC_METRICS_PORT",
        min=0,
        max=65535,
        help="Port of /metrics, and of the scheduler's status page; 0 any free one, none without it.",
    ),
]
DataPorts = Annotated[
    str,
    typer.Option(envvar="MLFABRIC_DATA_PORTS", help="Port for tensors, or a range as 7000-7099; 0 for any free one."),
]
MostConnections = Annotated[
    int,
    typer.Option(
        envvar="MLFABRIC_MOST_CONNECTIONS", min=1, help="Data connections that others may have open here at a time."
    ),
]
Tls = Annotated[
    Path | None,
    typer.Option(
        envvar="MLFABRIC_TLS",
        help="Folder of a certificate, as mlfabric certs makes it: all connections take mutual TLS.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        envvar="MLFABRIC_INSECURE",
        help="Let connections leave this machine without TLS, for a network that you trust.",
    ),
]
Up = Annotated[
    str, typer.Option(envvar="MLFABRIC_UP", help="Rate of an emulated network card, outgoing, as 800M or 2.5G; 0 none.")
]
Down = Annotated[str, typer.Option(envvar="MLFABRIC_DOWN", help="The same, incoming.")]
DEFAULT_SCHEDULER_ADDRESS = DEFAULT_SCHEDULER


def examples(*lines: str) -> str:
    """Return a help text's last part; each line of it stays a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def log_to_stderr(level: Level, form: LogForm) -> None:
    """Log to the error stream, a line for each record; of other packages nothing below warnings."""
    others = max(logging.WARNING, logging.getLevelNamesMapping()[level.name])
    layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=others, format=layout, force=True)
    logging.getLogger("mlfabric").setLevel(level.name)
    if form is LogForm.JSON:
        logging.getLogger().handlers[0].setFormatter(JsonLines())
