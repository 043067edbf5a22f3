"""``mlfabric advise``: how to train on a cluster, by what the twin foretells."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mlfabric.cli import options as opt
from mlfabric.cli import tables
from mlfabric.cli.clusters import read_cluster
from mlfabric.cli.json_files import check_writable, write_json
from mlfabric.cli.record_command import read_trace
from mlfabric.twin.advise import PLAYED, USUAL_STALENESS, WORTH_IT, Advice, Option, Row, Verdict, advise
from mlfabric.twin.cluster import Cluster

__all__ = ["add_to"]

_COLUMNS = (
    *("method", "tau_max>", "slack>", "aggregators>", "steps>", "step s>", "workers in a round>", "updates dropped>"),
    *("delay mean>", "delay max>", "worth of an update>", "gain over ring>"),
)


def give_advice(
    file: Annotated[
        Path, typer.Argument(help="A cluster (TOML), or what 'mlfabric record' wrote.", show_default=False)
    ],
    staleness: Annotated[
        float, typer.Option(min=0, max=1, help="How much of the training suffers from delay: 0 nothing, 1 all of it.")
    ] = USUAL_STALENESS,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write advice and table to this file too.")] = None,
) -> None:
    """Say how to train on a cluster.

    Which method, delay bound or slack, number of aggregators and replica bound gain most over plain ring all-reduce; or
    that plain all-reduce is best. Simulates them, the best few for longer, and shows what it found.
    """
    from mlfabric.lab.simulation import predict
    from mlfabric.planning import warm_up

    check_writable(json_file)
    cluster = _cluster(file)
    warm_up(lambda line: print(line, file=sys.stderr) if line.startswith("compiling") else None)
    with _progress() as on_progress:
        found = advise(cluster, predict, staleness=staleness, on_progress=on_progress)
    console = tables.console()
    console.print(tables.table(str(file), _COLUMNS, (_cells(row) for row in found.rows)))
    for line in _words(found):
        console.print(line, soft_wrap=True, highlight=False)
    write_json(json_file, _as_plain(found))


def _cluster(file: Path) -> Cluster:
    return read_cluster(file) if file.suffix.lower() == ".toml" else read_trace(file).cluster()


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show how far the trials are, on a terminal."""
    columns = (TextColumn("trying"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("trying", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _name(option: Option) -> str:
    return "ring all-reduce, plain" if option.method is None else option.method.value


def _cells(row: Row) -> tuple[str, ...]:
    option, found = row.option, row.found
    is_late = option.is_late and len(found.delays) > 0
    return (
        _name(option),
        "-" if option.tau_max is None else str(option.tau_max),
        "-" if option.slack is None else str(option.slack),
        "-" if option.method is None or option.method in PLAYED else str(option.aggregators),
        str(row.iterations),
        f"{found.step_s:.3f}",
        f"{found.members:.1f}" if found.members else "-",
        f"{found.dropped_share:.1%}" if is_late else "-",
        f"{found.delays.mean():.1f}" if is_late else "-",
        str(found.delays.max()) if is_late else "-",
        f"{row.value:.3f}",
        f"{row.gain:.2f}",
    )


def _words(found: Advice) -> Iterator[str]:
    """Say what to do, and what the figures rest on."""
    best = found.best
    if found.verdict is Verdict.PLAIN:
        yield (
            f"Use plain all-reduce: the best of mlfabric ({_name(best.option)}) would gain {best.gain:.2f} times, "
            f"and predictions mean to be right within 15 %, so less than {WORTH_IT} is not worth a fabric."
        )
    else:
        yield f"Use {_setting(best.option)}: {best.gain:.2f} times as fast as plain ring all-reduce."
        if found.replica_updates is not None:
            yield f"With a replica: --replica-div-max-updates {found.replica_updates}; with less, commits wait for it."
    yield (
        "What delay costs is a rule, not a measurement: an update is worth "
        f"1 / (1 + {found.staleness:g} (sqrt(greatest delay x mean delay) / workers - 1)). "
        "Check the accuracy of your own training; --staleness 0 leaves the rule out."
    )


def _setting(option: Option) -> str:
    """Say an option as it is given to the fabric."""
    parts = [f"method {_name(option)}"]
    if option.tau_max is not None:
        parts.append(f"tau_max={option.tau_max}")
    if option.slack is not None:
        parts.append(f"slack={option.slack}")
    if option.method not in PLAYED:
        parts.append(f"--aggregators {option.aggregators}")
    return ", ".join(parts)


def _as_plain(found: Advice) -> dict[str, Any]:
    return {
        "verdict": found.verdict.value,
        "best": _row(found.best),
        "replica_div_max_updates": found.replica_updates,
        "staleness": found.staleness,
        "rows": [_row(row) for row in found.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    delays = row.found.delays
    return {
        "method": _name(row.option),
        "tau_max": row.option.tau_max,
        "slack": row.option.slack,
        "aggregators": row.option.aggregators,
        "iterations": row.iterations,
        "step_s": row.found.step_s,
        "workers_in_a_round": row.found.members,
        "dropped_share": row.found.dropped_share,
        "delay_mean": float(delays.mean()) if len(delays) else None,
        "delay_max": int(delays.max()) if len(delays) else None,
        "value_of_an_update": row.value,
        "gain": row.gain,
    }


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(
        "advise",
        epilog=opt.examples(
            "mlfabric advise examples/clusters/office.toml", "mlfabric advise night.trace --json a.json"
        ),
    )(give_advice)
