"""``mlfabric bench paper``: the paper's table, measured on hosts that are made on this computer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlfabric.cli import bench_command
from mlfabric.cli import options as opt
from mlfabric.cli.orderly_end import ending_when_told
from mlfabric.errors import FabricError

__all__ = ["add_to"]


def paper(
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Folder for report.md and its pictures; made if it is not there.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of finished runs: what is there is not measured again.")] = Path(
        "paper-results"
    ),
    cells: Annotated[
        str,
        typer.Option(help="Cells, as C1-N1,C2-N2; unless given the paper's nine, C0-N0, and C0-four (slow hosts)."),
    ] = "",
    systems: Annotated[str, typer.Option(help="Systems, as ring,fabric-async; all unless given.")] = "",
    seeds: Annotated[int, typer.Option(help="Paired seeds of each system in each cell, 1 to 10.")] = 3,
    accuracy_seeds: Annotated[
        int | None,
        typer.Option(
            help="The same where accuracies are compared (C1-N1, C2-N2, C3-N3); 5 unless given, or --seeds if below 3."
        ),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            help="Seconds that each run trains, undilated; unless given as long as the ring needs for 36 iterations "
            "and for 92 % accuracy."
        ),
    ] = None,
    dilation: Annotated[
        float, typer.Option(help="By how much all time constants are stretched, so that the CPU does not decide.")
    ] = 2.0,
    workers: Annotated[int | None, typer.Option(help="Workers, each on a host; the paper's 30 unless given.")] = None,
    target: Annotated[float, typer.Option(help="Accuracy to be reached, 0 to 1.")] = 0.88,
    server_weather: Annotated[
        bool,
        typer.Option(
            "--server-weather",
            help="Change the rates of the server's and the replica's link too; else only workers' links change.",
        ),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="One cell, two systems, few workers: under 3 minutes, to see that it works.")
    ] = False,
    afresh: Annotated[bool, typer.Option("--afresh", help="Measure again what is there already.")] = False,
) -> None:
    """Measure the paper's table: every system in its cells.

    Needs root (network namespaces), a checkout of the project and, for all of it, hours of a quiet computer. It may be
    stopped with Ctrl-C at any time: the same command goes on where it was.
    """
    from mlfabric.cli import tables

    with ending_when_told():
        bench = bench_command.benchmark("paper")
        choice = bench.choose(
            cells=cells,
            systems=systems,
            seeds=seeds,
            accuracy_seeds=accuracy_seeds,
            duration_s=duration,
            dilation=dilation,
            workers=workers,
            target=target,
            server_weather=server_weather,
            quick=quick,
            afresh=afresh,
        )
        rows, failed = bench.run(choice, results=results, json_file=json_file, report=report)
    tables.console().print(tables.table("The paper's table", ("result", "ours", "paper", "reached"), rows))
    if failed:
        raise FabricError(f"{len(failed)} runs failed; the same command makes them again: {'; '.join(failed)}")


def add_to(app: typer.Typer) -> None:
    """Add this command to those of ``mlfabric bench``, which is a part of ``app``."""
    bench_command.benchmarks.command(
        epilog=opt.examples(
            "mlfabric bench paper --quick",
            "mlfabric bench paper --json paper.json --report paper-report",
            "mlfabric bench paper --systems ring,synchronous,elastic,partial --seeds 2 --report rounds-report",
            "mlfabric bench paper --cells C1-N1,C2-N2 --systems ring,fabric-async --seeds 1 --duration 60",
        )
    )(paper)
