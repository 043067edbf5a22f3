"""The command's parts put together; errors become one line on stderr and an exit code."""

from __future__ import annotations

import sys

import typer

from mlfabric.cli import (
    advising,
    aggregating,
    asking,
    certifying,
    embedded,
    faults,
    fuzzing,
    holding,
    keeping,
    making,
    paper,
    planning,
    recording,
    services,
    simulating,
    testbed,
)
from mlfabric.errors import FabricError, FencedError, UsageError
from mlfabric.launch.supervisor import EXIT_FENCED

__all__ = ["app", "run"]

EXIT_FAILED = 1
EXIT_UNUSABLE = 2

app = typer.Typer(
    name="mlfabric",
    help="Takes over all transfers of a distributed training job: one scheduler decides when, to whom and whether.",
    epilog="\b\nExamples:\n  mlfabric run -n 4 train.py\n  mlfabric up\n  mlfabric status",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
ASKED = (asking, planning, simulating, advising, recording, fuzzing)
for part in (embedded, *ASKED, certifying, making, paper, faults, services, holding, aggregating, keeping, testbed):
    part.add_to(app)


def run() -> int:
    """Run the command with this process' arguments; return the exit code."""
    try:
        code = app(prog_name="mlfabric", standalone_mode=True)
    except SystemExit as end:
        code = end.code
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    except FencedError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FENCED
    except FabricError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    return code if isinstance(code, int) else 0 if code is None else EXIT_FAILED
