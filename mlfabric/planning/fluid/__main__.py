"""``python -m mlfabric.planning.fluid``: compile the planner and keep the machine code on disk.

With ``backwards`` the last stages come first, and it ends when its input does: so it helps a process that begins with
the first ones, and never outlives it.
"""

import os
import sys
from threading import Thread

from mlfabric.planning.fluid.ready import load


def _end_with_input() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


backwards = sys.argv[1:] == ["backwards"]
if backwards:
    Thread(target=_end_with_input, daemon=True).start()
load(print, backwards=backwards)
