"""``mlfabric simulate``: what a cluster would do, asked without a cluster."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlfabric.cli import options as opt
from mlfabric.cli.json_files import STDOUT, check_writable, write_json
from mlfabric.errors import UsageError

if TYPE_CHECKING:
    from mlfabric.methods.drop_compute import Threshold
    from mlfabric.twin.cluster import Cluster
    from mlfabric.twin.comparison import Compared
    from mlfabric.twin.outcome import Outcome
    from mlfabric.twin.run_world import Progress

__all__ = ["add_to", "as_plain"]

PICTURE_S = 3.0
_BUSIEST = 5
_TOLD = 64
_MOST_MICRO_BATCHES = 1_000


def simulate(
    file: Annotated[Path, typer.Argument(help="The cluster and its job (TOML).", show_default=False)],
    compare: Annotated[
        bool, typer.Option("--compare", help="Try all methods, and ring and tree all-reduce without a fabric.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures into this file, as JSON; - for stdout.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw what workers do in the beginning, as run.png; needs mlfabric[demo]."),
    ] = None,
    picture_s: Annotated[float, typer.Option(help="How many seconds of it.", min=0.001)] = PICTURE_S,
    seed: Annotated[int | None, typer.Option(help="In place of the file's.", min=0)] = None,
    iterations: Annotated[int | None, typer.Option(help="Steps of each worker, in place of the file's.", min=1)] = None,
    dropcompute: Annotated[
        int | None,
        typer.Option(
            metavar="MICRO_BATCHES",
            help="What a compute threshold would bring; a step has so many micro-batches, each as long as a step.",
            min=1,
            max=_MOST_MICRO_BATCHES,
        ),
    ] = None,
) -> None:
    """Show what a cluster would do, in virtual time.

    A file describes it; docs/twin.md says how. The planner is the live scheduler's; nothing is sent, and no fabric is
    needed. Modes without a server are played by the real scheduler and workers. The same file gives the same figures.
    """
    if compare and picture is not None:
        raise UsageError("--compare and --picture were both given; a picture is of one run: give one of them")
    if dropcompute is not None and (compare or picture is not None):
        raise UsageError("--dropcompute with --compare or --picture; allowed: alone")
    check_writable(json_file)
    from mlfabric.cli.clusters import read_cluster
    from mlfabric.planning import warm_up

    cluster = read_cluster(file)
    cluster = replace(
        cluster,
        seed=cluster.seed if seed is None else seed,
        iterations=cluster.iterations if iterations is None else iterations,
    )
    if dropcompute is not None:
        write_json(json_file, _drop(cluster, dropcompute, shows=json_file != STDOUT))
        return
    warm_up(lambda line: print(line, file=sys.stderr) if line.startswith("compiling") else None)
    if compare:
        plain: object = _compare(cluster, shows=json_file != STDOUT)
    else:
        plain = _run(cluster, picture, picture_s, shows=json_file != STDOUT)
    write_json(json_file, plain)


def _run(cluster: Cluster, picture: Path | None, picture_s: float, shows: bool) -> dict[str, object]:
    from mlfabric.lab.simulation import simulate as run

    with _bars() as began:
        found = run(cluster, progress=began(cluster.method.value), spans_s=picture_s if picture else 0.0)
    if picture is not None:
        from mlfabric.twin.picture import draw_run

        draw_run(found, picture, min(picture_s, float(found.ended_s.max())))
    if shows:
        for line in _lines(found):
            print(line)
    return as_plain(found)


def _drop(cluster: Cluster, micro_batches: int, shows: bool) -> dict[str, object]:
    """Say what DropCompute would bring."""
    from mlfabric.twin.dropping import predict_dropping

    found = predict_dropping(cluster, micro_batches)
    if shows:
        workers, by_formula = len(cluster.workers), found.slowest_by_formula_s
        print(f"{workers} workers, {cluster.iterations} steps of {micro_batches} micro-batches")
        print(f"micro-batch  mean {found.mean_s:.3f} s, standard deviation {found.deviation_s:.3f} s")
        print(
            f"step         slowest worker {found.slowest_s:.3f} s (by formula {by_formula:.3f} s), of which on average"
        )
        print(f"             {micro_batches * found.mean_s:.3f} s are computed; {found.rest_s:.3f} s besides")
        print(f"simulated    {_threshold(found.best)}")
        print(f"by formula   {_threshold(found.by_formula)}")
    thresholds = {"best": _plain(found.best), "by_formula": _plain(found.by_formula)}
    return {**asdict(found), **thresholds, "workers": len(cluster.workers), "micro_batches": micro_batches}


def _plain(found: Threshold) -> dict[str, float | None]:
    return {**asdict(found), "tau_s": None if found.tau_s == math.inf else found.tau_s}


def _threshold(found: Threshold) -> str:
    if found.tau_s == math.inf:
        return "no threshold is worth it"
    return f"threshold {found.tau_s:.3f} s: {found.speedup:.3f} times as fast, {100 * found.dropped:.1f} % dropped"


def _compare(cluster: Cluster, shows: bool) -> list[dict[str, object]]:
    from mlfabric.cli.tables import console, table
    from mlfabric.lab.simulation import simulate as run
    from mlfabric.lab.simulation import ways_of
    from mlfabric.twin.comparison import compare

    ways = ways_of(cluster)
    with _bars() as began:
        rows = compare(
            cluster,
            lambda way: run(cluster, way, progress=began(f"{ways.index(way) + 1} of {len(ways)}: {way.value}")),
            ways,
        )
    if shows:
        columns = ("way", "iteration s>", "p50>", "p99>", "by formula>", "updates/s>", "delay>", "dropped>", "vs ring>")
        console().print(table("", columns, (_row(row) for row in rows)))
    return [{**as_plain(row.outcome), "formula_s": row.formula_s, "gain_over_ring": row.gain} for row in rows]


def _row(row: Compared) -> list[str]:
    import numpy as np

    found = row.outcome
    p50, p99 = np.percentile(found.iteration_s, (50, 99))
    formula = "-" if row.formula_s is None else f"{row.formula_s:.3f}"
    delay = f"{found.delays.mean():.1f}" if len(found.delays) else "-"
    return [
        found.name, f"{found.mean_iteration_s:.3f}", f"{p50:.3f}", f"{p99:.3f}", formula, f"{found.updates_per_s:.1f}",
        delay, f"{100 * found.drop_share:.1f} %", f"{row.gain:.2f}",
    ]  # fmt: skip


def _lines(found: Outcome) -> Iterator[str]:
    """Say what came of a run."""
    import numpy as np

    p50, p99 = np.percentile(found.iteration_s, (50, 99))
    yield f"{found.name}: {len(found.hosts) - 1} workers, {found.ended_s.shape[1]} steps each"
    yield f"iteration  mean {found.mean_iteration_s:.3f} s, p50 {p50:.3f} s, p99 {p99:.3f} s"
    yield f"updates    {found.updates_per_s:.1f} /s"
    if len(found.members):
        share = f"least share of a worker {found.least_share:.2f}"
        yield f"rounds     {len(found.members)}, {found.mean_members:.1f} workers in each; {share}"
    if found.delays.any():
        low, high = np.percentile(found.delays, (50, 99))
        yield f"delay      mean {found.delays.mean():.1f}, p50 {low:.0f}, p99 {high:.0f}, most {found.delays.max()}"
    if found.dropped.any():
        worst = int((found.dropped / np.maximum(found.pushed, 1)).argmax())
        share = found.dropped[worst] / found.pushed[worst]
        yield f"dropped    {100 * found.drop_share:.1f} %, most of {found.hosts[worst]}: {100 * share:.1f} %"
    names = [*(f"{host} up" for host in found.hosts), *(f"{host} down" for host in found.hosts)]
    busiest = np.argsort(-found.link_use, kind="stable")[:_BUSIEST]
    yield "links      " + ", ".join(f"{names[n]} {100 * found.link_use[n]:.0f} %" for n in busiest)


def as_plain(found: Outcome) -> dict[str, object]:
    """Return the figures of a run, JSON-ready."""
    import numpy as np

    hosts, p = found.hosts, np.percentile(found.iteration_s, (50, 99))
    delays, counts = np.unique(found.delays, return_counts=True)
    links = len(hosts)
    return {
        "way": found.name,
        "iteration_s": {"mean": found.mean_iteration_s, "p50": float(p[0]), "p99": float(p[1])},
        "updates_per_s": found.updates_per_s,
        "delays": {str(delay): int(count) for delay, count in zip(delays, counts, strict=True)},
        "members": {"rounds": len(found.members), "mean": found.mean_members},
        "least_share": found.least_share,
        "drop_share": found.drop_share,
        "pushed": dict(zip(hosts[:-1], found.pushed.tolist(), strict=True)),
        "dropped": dict(zip(hosts[:-1], found.dropped.tolist(), strict=True)),
        "link_use": {
            "up": dict(zip(hosts, found.link_use[:links].tolist(), strict=True)),
            "down": dict(zip(hosts, found.link_use[links:].tolist(), strict=True)),
        },
    }


@contextmanager
def _bars() -> Iterator[Callable[[str], Progress | None]]:
    """Show how far runs are, one after the other, if somebody looks on; what is given is told of each as it begins."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")

        def began(what: str) -> Progress:
            bar.reset(task, description=what, total=None)
            return lambda done, total: bar.update(task, completed=done, total=total) if done % _TOLD == 0 else None

        yield began


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(
        epilog=opt.examples(
            "mlfabric simulate examples/clusters/office.toml",
            "mlfabric simulate examples/clusters/office.toml --compare",
            "mlfabric simulate examples/clusters/office.toml --picture run.png --picture-s 2",
            "mlfabric simulate examples/clusters/measured.toml --json figures.json --seed 2",
            "mlfabric simulate examples/clusters/measured.toml --dropcompute 12",
        )
    )(simulate)
