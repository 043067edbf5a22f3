"""The command's parts put together; errors become one line on stderr and an exit code."""

from __future__ import annotations

import sys

import typer

from mlfabric.cli import advise_command as advising
from mlfabric.cli import aggregator_command as aggregating
from mlfabric.cli import bench_command as making
from mlfabric.cli import certs_command as certifying
from mlfabric.cli import faults_command as faults
from mlfabric.cli import fuzz_command as fuzzing
from mlfabric.cli import models_command as keeping
from mlfabric.cli import paper_command as paper
from mlfabric.cli import plan_command as planning
from mlfabric.cli import record_command as recording
from mlfabric.cli import scheduler_command as services
from mlfabric.cli import server_command as holding
from mlfabric.cli import simulate_command as simulating
from mlfabric.cli import status_command as asking
from mlfabric.cli import testbed_command as testbed
from mlfabric.cli import up_command as embedded
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
