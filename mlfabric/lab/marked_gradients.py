"""Gradients that say whose they are and of which step, also in a sum of them. Pure."""

from __future__ import annotations

import numpy as np

__all__ = ["ROW", "Gradient", "gradient_of", "gradients_in"]

ROW = 64
UNIT = float(1 << 17)
"""The numbers of the steps in a sum add up to less; up to 127 gradients of one worker can be in it, exactly."""
Gradient = tuple[int, int]
"""The number of a life, and of its step."""


def gradient_of(life: int, step: int, rows: int) -> np.ndarray:
    """Return what a worker computes in a step: float32."""
    gradient = np.zeros((rows, ROW), np.float32)
    gradient[:, life] = UNIT + step
    gradient[:, -1] = np.arange(rows)
    return gradient.reshape(-1)


def gradients_in(total: np.ndarray) -> frozenset[Gradient]:
    """Return which gradients a sum is of; those of one worker are of successive steps."""
    table = total.reshape(-1, ROW)
    first = table[0, :-1]
    assert (table[:, :-1] == first).all(), "the rows of a result are sums of different gradients"
    found: set[Gradient] = set()
    for life in np.flatnonzero(first).tolist():
        number, steps = divmod(int(first[life]), int(UNIT))
        least, rest = divmod(steps - number * (number - 1) // 2, number)
        assert rest == 0, f"life {life}: {number} steps whose numbers add up to {steps} do not follow each other"
        found |= {(life, least + i) for i in range(number)}
    assert (table[:, -1] == len(found) * np.arange(len(table))).all(), "rows of a result were exchanged"
    return frozenset(found)
