"""``python -m mlfabric.planning.fluid``: compile the planner and keep the machine code on disk.

With ``backwards`` the last stages come first, and it ends when its input does: so it helps a process that begins with
the first ones, and never outlives it for long.
"""

import os
import select
import signal
import sys

from mlfabric.planning.fluid.ready import load

_LOOK_EVERY_S = 0.2


def _end_with_input(*_signal: object) -> None:
    if select.select([sys.stdin], [], [], 0)[0]:
        os._exit(1)


backwards = sys.argv[1:] == ["backwards"]
if backwards:
    signal.signal(signal.SIGALRM, _end_with_input)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_EVERY_S, _LOOK_EVERY_S)
load(print, backwards=backwards)
