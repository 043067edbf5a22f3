"""``mlfabric bench | demo``: measurements and a demonstration, for which other parts of the project are loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import mlfabric
from mlfabric.cli import fabric_flags as flag
from mlfabric.cli import options as opt
from mlfabric.cli.bench_settings import settings_of
from mlfabric.cli.json_files import check_writable, write_json
from mlfabric.errors import UsageError

__all__ = ["add_to", "benchmark", "benchmarks"]


MEASURED = {
    "control": "Calls and decisions per second of the scheduler.",
    "data": "Bytes per second of the data channels.",
    "accuracy": "Accuracy through a fabric against one process.",
    "eager": "Partial rounds: latency beside MPI, and training with delays.",
    "dropcompute": "Compute thresholds: time to the same loss, predicted and realised.",
    "gossip": "Averaging models with neighbours: mixing, epochs, a slow worker.",
    "averaging": "Several learners on one device: throughput, time to accuracy.",
    "divergence": "How far a replica's model may be behind, and is.",
    "fabric": "A whole fabric: methods, ingress, replica.",
    "optimality": "How far plans are from the best ones.",
    "load": "A thousand workers against one scheduler.",
    "lda": "Topic models by Gibbs sampling.",
    "page": "What the status page costs the scheduler.",
    "planner": "How long a plan takes.",
    "plans": "What plans cost, before and after a change.",
    "rounds": "Rounds of AllReduce over links of mixed rates.",
    "restart": "How long trainers wait for a new scheduler.",
    "twin": "How long the twin takes for a thousand workers.",
    "silence": "Workers that are stopped or cut off, and busy ones.",
    "summing": "Sums of updates on their way.",
    "links": "Emulated links: rates reached, cost of changes.",
}
"""What is measured with no options but settings, by the names of modules."""


class _Benchmarks(TyperGroup):
    """Says which benchmarks there are when asked for another one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            ctx.fail(f"benchmark {args[0]!r}; allowed: {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)


benchmarks = typer.Typer(
    cls=_Benchmarks,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure on this machine and print the figures.\n\nNeeds a checkout of the project.",
    epilog=opt.examples(
        "mlfabric bench data",
        "mlfabric bench control --json control.json",
        "mlfabric bench data --set rounds=3",
        "mlfabric bench paper --quick",
        "mlfabric bench faults --trials 2",
    ),
)
"""The command ``mlfabric bench``, for benchmarks with options of their own to be added to."""


def _measuring(name: str) -> Callable[..., None]:
    """Return the command that measures something."""

    def bench(
        json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file too.")] = None,
        settings: Annotated[
            list[str] | None,
            typer.Option("--set", metavar="KEY=VALUE", help="A setting of the benchmark; may be given several times."),
        ] = None,
    ) -> None:
        from mlfabric.cli import tables

        run = benchmark(name).run
        chosen = settings_of(run, settings or ())
        check_writable(json_file)
        found: dict[str, Any] = run(**chosen)
        tables.console().print(tables.table(f"Benchmark {name}", ("figure", "value>"), _rows(found)))
        write_json(json_file, found)

    return bench


def benchmark(name: str) -> Any:
    """Import a module of benchmarks/, by its name in there, from the checkout that this package is in.

    Raises:
        UsageError: the package is not in a checkout, or the checkout has no such benchmark.
    """
    checkout = Path(mlfabric.__file__).resolve().parent.parent
    file = checkout / "benchmarks" / f"{name.replace('.', '/')}.py"
    if not file.is_file():
        raise UsageError(
            f"there is no {file}; benchmarks are in a checkout of the project: "
            "clone it, 'make setup', and run its .venv/bin/mlfabric"
        )
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    return import_module(f"benchmarks.{name}")


def _rows(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and values, nested ones with dots in their names."""
    for key, value in found.items():
        if isinstance(value, Mapping):
            yield from _rows(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            yield from _rows({str(n): row for n, row in enumerate(value)}, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", f"{value:.6g}" if isinstance(value, float) else str(value)


def demo(
    report: Annotated[
        Path, typer.Option(envvar="MLFABRIC_REPORT", help="Folder for the results; made if it is not there.")
    ] = Path("demo-report"),
    seed: Annotated[int, typer.Option(envvar="MLFABRIC_SEED", help="Of data, weights and stragglers.")] = 0,
    show: flag.Open = False,
) -> None:
    """Train with stragglers; compare elastic rounds with a ring."""
    try:
        module = import_module("mlfabric.demo")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("mlfabric"):
            raise UsageError(
                "this installation has no demonstration; install a release that has mlfabric.demo"
            ) from error
        raise UsageError(f"the demonstration needs {error.name}; pip install 'mlfabric[demo]'") from error
    raise typer.Exit(module.run(report, seed, shows=show))


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    for name, what in MEASURED.items():
        examples = opt.examples(f"mlfabric bench {name}", f"mlfabric bench {name} --json {name}.json")
        benchmarks.command(name, help=what, epilog=examples)(_measuring(name))
    app.add_typer(benchmarks, name="bench")
    app.command(epilog=opt.examples("mlfabric demo", "mlfabric demo --report demo-report --seed 1"))(demo)
