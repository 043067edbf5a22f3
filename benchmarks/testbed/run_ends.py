"""When a run ends: all runs of a cell and seed train as long as its ring, which makes a certain number of iterations.

The ring is measured first. It goes on beyond that number until its model has the accuracy that is asked for, and so do
the systems that the catalogue says so of. A run that never gets there ends after a multiple of the time that the ring
was known to need. Two kinds of runs have a fixed length: those that find topics, and those of the cell in which hosts
are always slow.
"""

from __future__ import annotations

from typing import TypedDict

from benchmarks.testbed import reference
from benchmarks.testbed.catalogue import RING, System
from benchmarks.testbed.cells import Cell
from benchmarks.testbed.spec import CellResult

__all__ = ["RING_ITERATIONS", "End", "at", "end_of", "expected_s"]

RING_ITERATIONS = 36
"""What the ring makes at least: of 30 workers 1,080 gradients."""
USUAL_ITERATIONS = 46
"""What it usually makes until its model recognises 92 % of the test images."""
LDA_ITERATIONS = 80
"""The same where topics are found: what comes later is little."""
FOUR_S = 180.0
"""Where hosts are always slow: three minutes of this computer's time."""
MOST = 1.6
"""How many times as long as usual a run may take."""


class End(TypedDict):
    """The fields of a ``CellSpec`` that say when its run ends."""

    duration_s: float
    least_s: float
    least_steps: int
    accuracy: float


def expected_s(cell: Cell, system: System, dilation: float) -> float:
    """Return how long a run trains, undilated, by what the ring needed when it was measured beforehand."""
    if cell.is_sliced:
        return FOUR_S / dilation
    iterations = LDA_ITERATIONS if system.model else USUAL_ITERATIONS
    return iterations * reference.RING_S.get(cell.name, reference.RING_BASE_S)


def end_of(cell: Cell, system: System, ring: CellResult | None, *, dilation: float, accuracy: float) -> End:
    """Return when a run ends.

    Args:
        ring: the ring's run of the same cell, seed and dilation; None if there is none.
        accuracy: which the model is to have, 0 to 1.
    """
    usual_s = dilation * expected_s(cell, system, dilation)
    if system.model or cell.is_sliced:
        return at(usual_s)
    if system.name == RING:
        return End(duration_s=MOST * usual_s, least_s=0.0, least_steps=RING_ITERATIONS, accuracy=accuracy)
    ring_s = usual_s if ring is None else dilation * ring.elapsed_s
    if not system.goes_on:
        return at(ring_s)
    return End(duration_s=max(ring_s, MOST * usual_s), least_s=round(ring_s, 3), least_steps=0, accuracy=accuracy)


def at(duration_s: float) -> End:
    """Return the end of a run that has a fixed length, in dilated seconds."""
    return End(duration_s=round(duration_s, 3), least_s=0.0, least_steps=0, accuracy=0.0)
