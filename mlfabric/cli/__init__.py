"""The ``mlfabric`` command: arguments in, services and processes started, answers printed. Decides nothing.

app          the command's parts put together; errors become one line and an exit code
options      what several commands take: flag, environment variable, help
settings     flag > environment > settings file > default
services     scheduler, monitor: one long-lived process each
aggregating  aggregator: the same
serving      how these run and end
embedded     up, run: processes of this machine
asking       status, doctor, version
top          the status page in a terminal
tables       how a status is shown
checks       what doctor looks at
making       bench, demo
advising     advise
recording    record
reporting    report
simulating   simulate; clusters reads its file
fuzzing      fuzz
paper        bench paper
faults       bench faults, soak
writing      JSON files, for whatever measures
testbed      testbed; ending: how it and bench paper end when told to
"""

from __future__ import annotations

import gc
import sys

__all__ = ["main"]

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command with this process' arguments; always ends by exiting.

    Exit codes: 0 done, 1 failed, 2 something given cannot be used, 130 interrupted by Ctrl-C, 143 by SIGTERM; ``run``
    passes on the code of the rank that failed.
    """
    try:
        from mlfabric.cli.app import run

        code = run()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    gc.freeze()  # all that is loaded ends with this process: to look through it once more takes up to half a second
    sys.exit(code)
