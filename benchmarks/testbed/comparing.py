"""Pairs of runs compared: the ring's against another system's of the same cell, seed and dilation."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchmarks.intervals import interval_95
from benchmarks.testbed.cells import Cell
from benchmarks.testbed.spec import CellResult

__all__ = ["Estimate", "Measured", "Pair", "estimate"]

_NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over paired seeds with its 95 % confidence interval.

    Args:
        values: of each pair.
        low, high: of the interval; None with fewer than two pairs.
    """

    values: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"mean": self.mean, "ci95_low": self.low, "ci95_high": self.high, "pairs": list(self.values)}


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return the mean of up to ten values with its interval; None without any."""
    if not values:
        return None
    low, high = interval_95(values) if len(values) > 1 else (None, None)
    return Estimate(values=tuple(values), mean=statistics.fmean(values), low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs that differ in their system only."""

    baseline: CellResult
    other: CellResult


class Measured:
    """All runs that are there; those in which the CPU was saturated are kept apart and count for nothing.

    Args:
        results: in any order; of several of one cell, system, seed and dilation the last one counts.
        predicted: what the twin says of runs, by the names of their files: undilated seconds per iteration.
    """

    def __init__(self, results: Iterable[CellResult], predicted: Mapping[str, float] = _NOTHING) -> None:
        self.all = tuple(results)
        self.predicted = predicted
        self.void = tuple(result for result in self.all if result.machine.saturated)
        self._by: dict[tuple[Cell, str], dict[tuple[int, float], CellResult]] = defaultdict(dict)
        for result in self.all:
            if not result.machine.saturated:
                spec = result.spec
                self._by[spec.cell, spec.system][spec.seed, spec.dilation] = result

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Cells in which something counts."""
        return tuple(sorted({cell for cell, _ in self._by}))

    def runs(self, cell: Cell, system: str) -> tuple[CellResult, ...]:
        """Return the runs of a system in a cell, one for each seed: that of the greatest dilation."""
        chosen = {seed: result for (seed, _), result in sorted(self._by.get((cell, system), {}).items())}
        return tuple(chosen.values())

    def pairs(self, cell: Cell, system: str, baseline: str = "ring") -> tuple[Pair, ...]:
        """Return pairs, one for each seed of which both runs are there: those of the greatest common dilation."""
        mine, others = self._by.get((cell, system), {}), self._by.get((cell, baseline), {})
        chosen = {key[0]: Pair(baseline=others[key], other=mine[key]) for key in sorted(mine.keys() & others.keys())}
        return tuple(chosen.values())

    def compared(
        self, cell: Cell, system: str, value: Callable[[Pair], float | None], baseline: str = "ring"
    ) -> Estimate | None:
        """Return the mean of a value over all pairs that have it; None without any."""
        found = (value(pair) for pair in self.pairs(cell, system, baseline))
        return estimate([one for one in found if one is not None])
