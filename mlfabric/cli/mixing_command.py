"""``mlfabric mixing``: how fast gossip brings models together, for each rule that says who averages with whom."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlfabric.cli import options as opt
from mlfabric.cli.json_files import STDOUT, check_writable, write_json
from mlfabric.errors import UsageError

__all__ = ["add_to"]

_MOST_WORKERS, _MOST_ITERATIONS = 1_024, 1_000
_DPI = 120


def mixing(
    workers: Annotated[int, typer.Option("--n", help="How many workers.", min=1, max=_MOST_WORKERS)] = 64,
    iterations: Annotated[int, typer.Option(help="How many are shown.", min=1, max=_MOST_ITERATIONS)] = 20,
    seed: Annotated[int, typer.Option(help="Of what is drawn.", min=0)] = 0,
    picture: Annotated[
        Path | None, typer.Option(help="Draw the distances into this file, as mixing.png; needs mlfabric[demo].")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures into this file, as JSON; - for stdout.")
    ] = None,
) -> None:
    """Show how fast gossip brings models to their mean.

    The second eigenvalue is that of the first matrix. The contraction is what is left of the squared distance from the
    mean after an iteration, as it is to be expected in the worst case. The distance after the iterations is simulated.
    """
    check_writable(json_file)
    from mlfabric.methods.mixing import Mixing, consensus, contraction, matrix, second_eigenvalue

    distances = {rule: consensus(rule, workers, iterations, seed) for rule in Mixing}
    eigenvalues = {rule: second_eigenvalue(matrix(rule, workers, 0, seed)) for rule in Mixing}
    contractions = {rule: contraction(rule, workers) for rule in Mixing}
    if json_file != STDOUT:
        from mlfabric.cli.tables import console, table

        columns = ("rule", "second eigenvalue>", "contraction>", f"distance after {iterations}>")
        rows = (
            (rule.value, f"{eigenvalues[rule]:.4f}", f"{contractions[rule]:.4f}", f"{distances[rule][-1]:.2e}")
            for rule in Mixing
        )
        console().print(table(f"{workers} workers", columns, rows))
    if picture is not None:
        _draw({rule.value: values for rule, values in distances.items()}, picture, workers)
    rules = {
        rule.value: {
            "second_eigenvalue": eigenvalues[rule],
            "contraction": contractions[rule],
            "distances": distances[rule],
        }
        for rule in Mixing
    }
    write_json(json_file, {"workers": workers, "iterations": iterations, "rules": rules})


def _draw(distances: dict[str, list[float]], path: Path, workers: int) -> None:
    """Draw how distances from the mean shrink."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise UsageError("a picture needs matplotlib; pip install 'mlfabric[demo]'") from error
    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, values in distances.items():
        axes.semilogy([max(value, 1e-16) for value in values], label=name)
    axes.set_xlabel("iteration")
    axes.set_ylabel("distance from the mean")
    axes.set_title(f"Consensus of {workers} workers", loc="left")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    try:
        figure.savefig(path, dpi=_DPI)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {path}: {error}") from error


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(
        epilog=opt.examples(
            "mlfabric mixing --n 64",
            "mlfabric mixing --n 64 --iterations 100 --picture mixing.png",
            "mlfabric mixing --n 16 --json -",
        )
    )(mixing)
