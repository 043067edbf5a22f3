"""``mlfabric report``: a recorded run as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlfabric.cli import options as opt
from mlfabric.errors import UsageError

__all__ = ["add_to"]


def report(
    folder: Annotated[Path, typer.Argument(help="What was given to --history.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="The file to be written; report.html in the folder unless given.")
    ] = None,
) -> None:
    """Make one HTML file of a recorded run, which needs nothing else.

    It is the status page, with the whole run to go back over: timeline, delays, divergence, links, what was dropped and
    why.
    """
    from mlfabric.status_page.report import MOST_ENTRIES, report_of

    text, left_out = report_of(folder)
    path = out or folder / "report.html"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror}; give a file that this process may write") from error
    if left_out:
        print(f"the first {left_out:,} entries are left out: a browser can open {MOST_ENTRIES:,}")
    print(path)


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(
        epilog=opt.examples(
            "mlfabric run -n 4 --history my-run train.py; mlfabric report my-run",
            "mlfabric report my-run --out my-run.html",
        )
    )(report)
