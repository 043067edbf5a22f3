"""``python -m mlfabric.planning.fluid``: compile the planner and keep the machine code on disk.

With ``backwards`` the last stages come first: beside a process that begins with the first ones it halves the time.
"""

import sys

from mlfabric.planning.fluid.ready import load

load(print, backwards=sys.argv[1:] == ["backwards"])
