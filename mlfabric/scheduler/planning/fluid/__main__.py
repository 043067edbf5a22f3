"""``python -m mlfabric.scheduler.planning.fluid``: compile the planner and keep the machine code on disk."""

from mlfabric.scheduler.planning.fluid.ready import load

load(print)
