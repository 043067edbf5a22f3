"""``mlfabric bench faults | soak``: what is killed, and what comes of it; all of it is in ``benchmarks/faults``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mlfabric.cli import bench_command
from mlfabric.cli import options as opt
from mlfabric.cli.json_files import check_writable, write_json
from mlfabric.cli.orderly_end import ending_when_told
from mlfabric.errors import FabricError

__all__ = ["add_to"]

Folder = Annotated[
    Path | None, typer.Option(help="Keep the logs of all processes in this folder; made if it is not there.")
]


def faults(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file too.")] = None,
    trials: Annotated[int, typer.Option(help="Trials of each scenario.")] = 20,
    scenarios: Annotated[str, typer.Option(help="Scenarios, as worker_killed,churn; all unless given.")] = "",
    folder: Folder = None,
) -> None:
    """Kill, stop and cut off real processes, and see who goes on.

    What became of every update is read from the weights of the model, which is a ledger. Scenarios with links need
    root (network namespaces) and are left out without. Needs a checkout of the project; all of it takes half an hour.
    """
    from mlfabric.cli import tables

    bench = bench_command.benchmark("faults.bench")
    check_writable(json_file)
    with ending_when_told():
        found = bench.run(bench.chosen(scenarios, trials), trials, _say, folder)
    rows = [bench.row(name, figures) for name, figures in found.items()]
    tables.console().print(tables.table("Faults", bench.COLUMNS, rows))
    write_json(json_file, found)
    bad = [name for name, figures in found.items() if bench.is_broken(figures)]
    if bad:
        raise FabricError(f"promises were broken: {', '.join(bad)}; --json has the first of each, --folder keeps logs")


def soak(
    minutes: Annotated[float, typer.Option(help="For how long, up to a day.")] = 3.0,
    seed: Annotated[int, typer.Option(help="Of what happens.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file too.")] = None,
    folder: Folder = None,
) -> None:
    """Let ten workers train while everything happens to them.

    Every 0.5 to 2 s somebody joins, leaves, hangs or is killed, or a link changes (with root only). At the end the
    model, which is a ledger, is compared with the log's replay. Ends with code 1 if a promise was broken. Needs a
    checkout of the project.
    """
    from mlfabric.cli import tables

    check_writable(json_file)
    with ending_when_told():
        found = bench_command.benchmark("faults.soak").run(minutes, _say, seed=seed, folder=folder)
    rows = [(name, f"{value:.3f}" if isinstance(value, float) else str(value)) for name, value in found.items()]
    tables.console().print(tables.table("Soak", ("figure", "value"), rows))
    write_json(json_file, found)
    if found["updates_twice"] or found["bound_violations"]:
        raise FabricError(f"promises were broken; the same again: mlfabric soak --minutes {minutes:g} --seed {seed}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def add_to(app: typer.Typer) -> None:
    """Add these commands, one to those of ``mlfabric bench``, which is a part of ``app``."""
    bench_command.benchmarks.command(
        epilog=opt.examples(
            "mlfabric bench faults --json faults.json",
            "mlfabric bench faults --trials 2 --scenarios worker_killed,scheduler_back_after_1s",
            "mlfabric bench faults --scenarios server_resumed --folder /tmp/server_resumed",
        )
    )(faults)
    app.command(
        epilog=opt.examples("mlfabric soak --minutes 3", "mlfabric soak --minutes 60 --seed 7 --folder /tmp/soak")
    )(soak)
