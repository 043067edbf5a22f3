"""``mlfabric status | doctor | version``: asks and prints."""

from __future__ import annotations

import asyncio
import json
import platform
import sys
from contextlib import nullcontext
from typing import Annotated

import typer
from rich.live import Live

from mlfabric import __version__
from mlfabric.cli import checks, tables
from mlfabric.cli import options as opt
from mlfabric.errors import UnavailableError
from mlfabric.launch.scheduler_status import StatusReader
from mlfabric.security import CLIENT, Security
from mlfabric.v1 import fabric_pb2
from mlfabric.wire.plain import as_plain

__all__ = ["add_to"]

EXIT_FAILED = 1


def status(
    scheduler: opt.Scheduler = opt.DEFAULT_SCHEDULER_ADDRESS,
    tls: opt.Tls = None,
    insecure: opt.Insecure = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch one line each time.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks, with --watch.")] = 1.0,
    samples: Annotated[
        bool, typer.Option("--samples", help="With --json: all ranges of samples, not the last.")
    ] = False,
) -> None:
    """Show what the fabric is doing.

    Who is here, the models' versions and delays, each worker's share, the links, the planner; and which samples were
    trained on, repeated, dropped and lost, where workers say what their updates are computed from.
    """
    asker = StatusReader(scheduler, security=Security.of(tls, CLIENT, insecure=insecure))
    if watch:
        asyncio.run(_watch(asker, as_json, every))
    else:
        asyncio.run(_show_once(asker, as_json, samples))


async def _show_once(asker: StatusReader, as_json: bool, all_samples: bool) -> None:
    async with asker as reader:
        found = await reader.read(all_samples=all_samples)
    if as_json:
        print(json.dumps(as_plain(found), indent=2))
    else:
        tables.console().print(tables.status_view(found, asker.scheduler))


async def _watch(asker: StatusReader, as_json: bool, every_s: float) -> None:
    """Show the status again and again: in place on a terminal, else one after the other."""
    screen = tables.console()
    in_place = screen.is_terminal and not as_json
    async with asker as reader:
        found = await reader.read()
        with Live(console=screen, auto_refresh=False) if in_place else nullcontext() as live:
            while True:
                if as_json:
                    print(json.dumps(as_plain(found)), flush=True)
                elif live is None:
                    screen.print(tables.status_view(found, asker.scheduler))
                else:
                    live.update(tables.status_view(found, asker.scheduler), refresh=True)
                await asyncio.sleep(every_s)
                found = await _read_again(reader, every_s)


async def _read_again(reader: StatusReader, every_s: float) -> fabric_pb2.GetStatusResponse:
    """Return the next status; says so once if it has to wait for it."""
    said = False
    while True:
        try:
            return await reader.read()
        except UnavailableError:
            if not said:
                print(f"the scheduler at {reader.scheduler} does not answer; waiting for it", file=sys.stderr)
            said = True
            await asyncio.sleep(every_s)


def doctor(
    scheduler: opt.Scheduler = opt.DEFAULT_SCHEDULER_ADDRESS, tls: opt.Tls = None, insecure: opt.Insecure = False
) -> None:
    """Check this machine and the way to the fabric.

    Ends with code 1 if something would not work.
    """
    expected = scheduler != opt.DEFAULT_SCHEDULER_ADDRESS
    asker = StatusReader(scheduler, checks.DIAL_S, Security.of(tls, CLIENT, insecure=insecure))
    findings = asyncio.run(checks.examine(asker, scheduler_expected=expected))
    rows = [(f.what, checks.styled(f.level), f.found, f.advice) for f in findings]
    tables.console().print(tables.table("", ("check", "", "found", "what to do"), rows))
    worst = [f for f in findings if f.level is checks.Level.FAIL]
    if worst:
        raise typer.Exit(EXIT_FAILED)


def version() -> None:
    """Print the versions of mlfabric and Python."""
    print(f"mlfabric {__version__} (Python {platform.python_version()})")


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(
        epilog=opt.examples(
            "mlfabric status",
            "mlfabric status --watch --scheduler head-node:50061 --tls certificates",
            "mlfabric status --json | jq '.models[0].version'",
            "mlfabric status --json --samples | jq '.models[0].samples'",
        )
    )(status)
    app.command(
        epilog=opt.examples("mlfabric doctor", "mlfabric doctor --scheduler head-node:50061 --tls certificates")
    )(doctor)
    app.command(epilog=opt.examples("mlfabric version"))(version)
