"""Gradients that say whose they are and of which step, also in a sum of them. Pure."""

from __future__ import annotations

import numpy as np

__all__ = ["ROW", "Gradient", "gradient_of", "gradients_in", "weight_of"]

ROW = 64
UNIT = float(1 << 17)
"""The numbers of the steps in a sum add up to less; up to 127 gradients of one worker can be in it, exactly."""
BITS = 22
"""Steps of one worker in a sum are fewer than so many apart."""
MOST_WEIGHT = 3
Gradient = tuple[int, int]
"""The number of a life, and of its step."""


def gradient_of(life: int, step: int, rows: int) -> np.ndarray:
    """Return what a worker computes in a step: float32.

    Args:
        rows: at least two: those with even numbers count gradients and add up their steps, the others say which.
    """
    gradient = np.zeros((rows, ROW), np.float32)
    gradient[::2, life] = UNIT + step
    gradient[1::2, life] = 1 << step % BITS
    gradient[:, -1] = np.arange(rows)
    return gradient.reshape(-1)


def weight_of(gradient: Gradient) -> int:
    """Return the weight that a gradient is offered with."""
    return 1 + sum(gradient) % MOST_WEIGHT


def gradients_in(total: np.ndarray) -> frozenset[Gradient]:
    """Return which gradients a sum is of."""
    table = total.reshape(-1, ROW)
    counted, said = table[0, :-1], table[1, :-1]
    is_whole = (table[::2, :-1] == counted).all() and (table[1::2, :-1] == said).all()
    assert is_whole, "the rows of a result are sums of different gradients"
    found: set[Gradient] = set()
    for life in np.flatnonzero(counted).tolist():
        found |= {(life, step) for step in _steps(life, *divmod(int(counted[life]), int(UNIT)), int(said[life]))}
    assert (table[:, -1] == len(found) * np.arange(len(table))).all(), "rows of a result were exchanged"
    return frozenset(found)


def _steps(life: int, number: int, total: int, mask: int) -> list[int]:
    """Return a worker's steps: so many, with this sum, whose remainders are the bits of the mask."""
    remainders = [bit for bit in range(BITS) if mask >> bit & 1]
    turns, rest = divmod(total - sum(remainders), BITS)
    is_right = len(remainders) == number and mask < 1 << BITS and rest == 0 and turns >= 0
    assert is_right, f"life {life}: {number} steps that add up to {total} are not those of {mask:b}"
    turn, later = divmod(turns, number)
    return [BITS * (turn + (place < later)) + remainder for place, remainder in enumerate(remainders)]
