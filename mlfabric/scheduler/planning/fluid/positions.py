# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
"""``positions.py`` compiled, for large batches."""

from __future__ import annotations

from mlfabric.scheduler.planning import positions
from mlfabric.scheduler.planning.fluid.jit import compiled

__all__ = ["commit_order", "worst_due"]

worst_due = compiled(positions.worst_due)
commit_order = compiled(positions.commit_order)
