"""The command's parts put together; errors become one line on stderr and an exit code."""

from __future__ import annotations

import sys

import typer

from mlfabric.cli import (
    advise_command,
    aggregator_command,
    bench_command,
    certs_command,
    faults_command,
    fuzz_command,
    mixing_command,
    models_command,
    paper_command,
    plan_command,
    record_command,
    report_command,
    scheduler_command,
    server_command,
    simulate_command,
    status_command,
    testbed_command,
    top_command,
    up_command,
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
for part in (
    up_command,
    status_command,
    top_command,
    plan_command,
    simulate_command,
    advise_command,
    mixing_command,
    record_command,
    report_command,
    fuzz_command,
    certs_command,
    bench_command,
    paper_command,
    faults_command,
    scheduler_command,
    server_command,
    aggregator_command,
    models_command,
    testbed_command,
):
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
