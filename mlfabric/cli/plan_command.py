"""``mlfabric plan``: what the planner would do with a batch, asked without a fabric."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, is_dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mlfabric.cli import bench_command
from mlfabric.cli import options as opt

__all__ = ["add_to", "as_plain"]


class Planner(StrEnum):
    """Whose rules make the plan."""

    MLFABRIC = "mlfabric"
    PAPER = "paper"


def plan(
    file: Annotated[
        Path, typer.Argument(help="What is to be planned: hosts, links, updates (TOML, or JSON).", show_default=False)
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the plan as JSON: all transfers, times in ns.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain/--summary", help="Say why, or only the first line.")] = True,
    picture: Annotated[
        Path | None, typer.Option(help="Draw who sends when into this file, as plan.png; needs mlfabric[demo].")
    ] = None,
    planner: Annotated[
        Planner, typer.Option(help="mlfabric's own, or the paper's algorithms 2 and 3, for updates alone.")
    ] = Planner.MLFABRIC,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare with the best plan of a small batch; needs mlfabric[exact].")
    ] = False,
) -> None:
    """Show what would be planned for a batch described in a file.

    Nothing is sent, and no fabric is needed. docs/planner.md says what may be in the file. Pictures and exact plans
    need a checkout of the project.
    """
    from mlfabric.cli.fields import read_text
    from mlfabric.cli.plan_files import describe
    from mlfabric.planning.fluid.ready import is_compiled, load
    from mlfabric.planning.paper_plan import plan_by_paper
    from mlfabric.planning.planner import plan as plan_batch

    text = read_text(file, "a file that describes a batch, TOML or JSON")
    given = describe(text, is_json=file.suffix.lower() == ".json", name=str(file))
    if planner is Planner.MLFABRIC and not is_compiled():
        load(lambda line: print(line, file=sys.stderr))
    make = plan_batch if planner is Planner.MLFABRIC else plan_by_paper
    found = make(given.batch, given.network, given.state, given.config)
    found.validate(given.network)
    if picture is not None:
        bench_command.benchmark("pictures.picture").draw(found, picture, given.network)
    if as_json:
        print(json.dumps(as_plain(found), indent=2))
    else:
        words = found.explain(given.network)
        print(words if explain else words.splitlines()[0])
    if exact:
        compared = bench_command.benchmark("exact.solving").compare(found, given.network)
        print(compared, file=sys.stderr if as_json else sys.stdout)


def as_plain(value: object) -> object:
    """Return a plan's values JSON-ready: fields by their names, enums in lower case, ids as worker#number.

    What the plan was made for is left out.
    """
    if isinstance(value, Enum):
        return value.name.lower()
    if is_dataclass(value) and not isinstance(value, type):
        rows = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: as_plain(found) for name, found in rows.items() if name not in ("batch", "state", "config")}
    if isinstance(value, tuple) and type(value) is not tuple and not hasattr(value, "bps"):
        return str(value)
    if isinstance(value, str | int | float) or value is None:
        return value
    return [as_plain(item) for item in value]  # type: ignore[attr-defined]


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(
        epilog=opt.examples(
            "mlfabric plan examples/plans/uneven.toml",
            "mlfabric plan examples/plans/uneven.toml --picture plan.png",
            "mlfabric plan examples/plans/uneven.toml --planner paper --exact",
            "mlfabric plan batch.json --json",
        )
    )(plan)
