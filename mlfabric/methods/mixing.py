"""Who averages with whom in gossip: doubly stochastic matrices, one for each iteration. Pure.

Row i of a matrix says of which models worker i's next one is the mean; rows and columns add up to 1, so the mean over
all workers stays what it is. The rings are those of "decentralized distributed deep learning" (D-PSGD, RAND-PSGD);
the exponential graph is that of Assran et al. (2019) and Ying et al. (2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from random import Random

import numpy as np
from numpy.typing import NDArray

from mlfabric.errors import ConfigError

__all__ = ["Mixing", "consensus", "contraction", "groups", "matrix", "second_eigenvalue"]

Matrix = NDArray[np.float64]


class Mixing(Enum):
    """A rule that says who averages with whom."""

    RING = "ring"
    """Each worker with both neighbours in a fixed ring."""
    RANDOM_RING = "random-ring"
    """The same in a ring whose order is drawn anew for each iteration (RAND-PSGD)."""
    EXPONENTIAL = "exponential"
    """Each with the one that is 1, 2, 4, ... places further on, in turn."""
    FULL = "full"
    """All with all."""
    PAIRS = "pairs"
    """Pairs that are drawn anew for each iteration; if their number is odd, one worker is alone."""


def groups(mixing: Mixing, workers: int, iteration: int, seed: int = 0) -> list[list[int]]:
    """Return for each worker of whose models it takes the mean, each with the same weight; sorted.

    Args:
        workers: how many there are, >= 1.
        iteration: from 0.
        seed: the same at all workers.

    Raises:
        ConfigError: there is no worker.
    """
    if workers < 1:
        raise ConfigError(f"workers={workers}; allowed: 1 or more")
    return [sorted(group) for group in _RULES[mixing](workers, iteration, seed)]


def matrix(mixing: Mixing, workers: int, iteration: int, seed: int = 0) -> Matrix:
    """Return the matrix of an iteration: float64, workers x workers; see :func:`groups`."""
    made = np.zeros((workers, workers))
    for worker, group in enumerate(groups(mixing, workers, iteration, seed)):
        made[worker, group] = 1.0 / len(group)
    return made


def _in_ring(order: list[int]) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in order]
    for place, worker in enumerate(order):
        found[worker] = {order[place - 1], worker, order[(place + 1) % len(order)]}
    return found


def _drawn(workers: int, iteration: int, seed: int) -> list[int]:
    order = list(range(workers))
    Random(f"mixing/{seed}/{iteration}").shuffle(order)
    return order


def _ring(workers: int, iteration: int, seed: int) -> list[set[int]]:
    return _in_ring(list(range(workers)))


def _random_ring(workers: int, iteration: int, seed: int) -> list[set[int]]:
    return _in_ring(_drawn(workers, iteration, seed))


def _exponents(workers: int) -> int:
    return max(1, math.ceil(math.log2(workers)))


def _exponential(workers: int, iteration: int, seed: int) -> list[set[int]]:
    step = 1 << (iteration % _exponents(workers))
    return [{worker, (worker + step) % workers} for worker in range(workers)]


def _full(workers: int, iteration: int, seed: int) -> list[set[int]]:
    return [set(range(workers))] * workers


def _pairs(workers: int, iteration: int, seed: int) -> list[set[int]]:
    order, found = _drawn(workers, iteration, seed), [{worker} for worker in range(workers)]
    for one, other in zip(order[::2], order[1::2], strict=False):
        found[one], found[other] = {one, other}, {one, other}
    return found


_RULES: Mapping[Mixing, Callable[[int, int, int], list[set[int]]]] = {
    Mixing.RING: _ring,
    Mixing.RANDOM_RING: _random_ring,
    Mixing.EXPONENTIAL: _exponential,
    Mixing.FULL: _full,
    Mixing.PAIRS: _pairs,
}


_DRAWN = (Mixing.RANDOM_RING, Mixing.FULL, Mixing.PAIRS)
"""Rules for which no worker is special."""


def second_eigenvalue(mixing: Matrix) -> float:
    """Return the second greatest of the absolute eigenvalues of a matrix; 0 of a single worker."""
    values = np.sort(np.abs(np.linalg.eigvals(mixing)))
    return float(values[-2]) if len(values) > 1 else 0.0


def contraction(mixing: Mixing, workers: int) -> float:
    """Return by how much the squared distance from the mean is expected to shrink in an iteration, in the worst case.

    That is the greatest eigenvalue of E[T' (I - 11'/n) T]. Where orders are drawn, no direction is special: all
    eigenvalues but one are equal, and each matrix shows them by its trace.
    """
    if workers == 1:
        return 0.0
    off_mean, turns = np.eye(workers) - 1.0 / workers, _exponents(workers)
    made = [matrix(mixing, workers, turn) for turn in range(turns if mixing is Mixing.EXPONENTIAL else 1)]
    mean = np.mean([one.T @ off_mean @ one for one in made], axis=0)
    if mixing in _DRAWN:
        return float(np.trace(mean) / (workers - 1))
    return float(np.linalg.eigvalsh(mean)[-1])


def consensus(mixing: Mixing, workers: int, iterations: int, seed: int = 0) -> list[float]:
    """Return how far models are from their mean, in the beginning and after each iteration without gradients.

    Models begin as independent normal draws; the distance is the root of the mean square, 1 in the beginning.
    """
    models = np.random.default_rng(seed).standard_normal((workers, 64))
    models -= models.mean(axis=0)
    first = float(np.sqrt((models**2).mean())) or 1.0
    found = [1.0]
    for iteration in range(iterations):
        models = matrix(mixing, workers, iteration, seed) @ models
        found.append(float(np.sqrt((models**2).mean())) / first)
    return found
