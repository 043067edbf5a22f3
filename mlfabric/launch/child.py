"""First thing in every child process: asks the kernel for SIGTERM when the parent dies, then becomes the program.

A script of its own, so that the parent can start it without running Python code between fork and exec. Usage:
``child.py PARENT_PID PROGRAM [ARGUMENT...]``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["main"]

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Become the program, unless the parent is gone already."""
    parent, program = int(arguments[0]), arguments[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:
        sys.exit(f"the process {parent} that started this one has ended")
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
