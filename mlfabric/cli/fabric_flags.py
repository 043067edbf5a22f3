"""Options of a fabric on this machine, which several commands start: flag, environment variable, help, and checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from mlfabric.config import parse_rate
from mlfabric.errors import UsageError

__all__ = [
    "AggregatorDown",
    "AggregatorHosts",
    "AggregatorUp",
    "Aggregators",
    "CheckpointDir",
    "History",
    "Monitor",
    "Open",
    "Port",
    "ReplicaDivMax",
    "ReplicaDivMaxUpdates",
    "Resume",
    "ServerDown",
    "ServerHost",
    "ServerUp",
    "Servers",
    "checked_rate",
    "div_max",
    "div_max_updates",
    "rates",
    "texts",
]

Port = Annotated[
    int, typer.Option(envvar="MLFABRIC_PORT", min=0, max=65535, help="The scheduler's port; 0 for any free one.")
]
Open = Annotated[bool, typer.Option("--open", help="Open the status page in a browser.")]
History = Annotated[
    Path | None,
    typer.Option(
        envvar="MLFABRIC_HISTORY",
        help="Folder in which everything is written down that the status page shows; see 'mlfabric report'.",
    ),
]
Servers = Annotated[int, typer.Option(envvar="MLFABRIC_SERVERS", help="How many servers.")]
Aggregators = Annotated[int, typer.Option(envvar="MLFABRIC_AGGREGATORS", min=0, help="How many aggregators.")]
ReplicaDivMax = Annotated[
    str,
    typer.Option(envvar="MLFABRIC_REPLICA_DIV_MAX", help="Keep a replica of server-0 within this l2 distance of it."),
]
ReplicaDivMaxUpdates = Annotated[
    str,
    typer.Option(
        envvar="MLFABRIC_REPLICA_DIV_MAX_UPDATES", help="Keep a replica of server-0 within so many commits of it."
    ),
]
Monitor = Annotated[
    bool, typer.Option("--monitor/--no-monitor", envvar="MLFABRIC_MONITOR", help="Whether links are measured.")
]
ServerHost = Annotated[
    str, typer.Option(envvar="MLFABRIC_SERVER_HOST", help="Machine that the servers are planned to be on.")
]
ServerUp = Annotated[
    str, typer.Option(envvar="MLFABRIC_SERVER_UP", help="Rate of each server's emulated network card, outgoing.")
]
ServerDown = Annotated[str, typer.Option(envvar="MLFABRIC_SERVER_DOWN", help="The same, incoming.")]
AggregatorHosts = Annotated[
    str,
    typer.Option(
        envvar="MLFABRIC_AGGREGATOR_HOSTS",
        help="Machines that the aggregators are planned to be on: one for all, or one for each with commas.",
    ),
]
AggregatorUp = Annotated[
    str,
    typer.Option(
        envvar="MLFABRIC_AGGREGATOR_UP",
        help="Rate of each aggregator's emulated network card, outgoing: one for all, or one for each with commas.",
    ),
]
AggregatorDown = Annotated[str, typer.Option(envvar="MLFABRIC_AGGREGATOR_DOWN", help="The same, incoming.")]
CheckpointDir = Annotated[
    Path | None,
    typer.Option(envvar="MLFABRIC_CHECKPOINT_DIR", help="Where checkpoints go; a restarted server resumes them."),
]
Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", envvar="MLFABRIC_RESUME", help="Begin with the newest checkpoints.")
]


def texts(text: str) -> tuple[str, ...]:
    """Return what stands between commas; nothing of nothing."""
    return tuple(part.strip() for part in text.split(",")) if text else ()


def rates(text: str) -> tuple[str, ...]:
    """Return the texts of rates with commas between them.

    Raises:
        ConfigError: one is no rate.
    """
    return tuple(map(checked_rate, texts(text)))


def checked_rate(text: str) -> str:
    """Return the text of a rate as it is, "" for none.

    Raises:
        ConfigError: it is no rate.
    """
    if text:
        parse_rate(text)
    return text


def div_max(text: str) -> str:
    """Return the text of a replica's bound as an l2 distance, "" for none.

    Raises:
        UsageError: it is no number, or less than 0.
    """
    return _checked(float, text, "--replica-div-max", "a number, 0 or more")


def div_max_updates(text: str) -> str:
    """Return the text of a replica's bound in commits, "" for none.

    Raises:
        UsageError: it is no whole number, or less than 0.
    """
    return _checked(int, text, "--replica-div-max-updates", "a whole number, 0 or more")


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
