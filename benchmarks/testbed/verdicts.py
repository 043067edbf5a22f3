"""What rows of the table have in common: means over seeds as plain values, and whether something is reached."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.testbed.comparing import Estimate, Pair, estimate

__all__ = [
    "Verdict",
    "all_known",
    "at_least",
    "at_most",
    "by_rate",
    "by_target",
    "estimated",
    "mean_of",
    "not_below",
    "over_seeds",
]

Verdict = bool | None
"""None as long as the runs that it needs are not there."""


def over_seeds(pairs: Iterable[Pair], value: Callable[[Pair], float | None]) -> Estimate | None:
    """Return the mean over seeds of each seed's mean over cells: cells of one seed are not independent.

    Args:
        pairs: of one system.
        value: of each; None where it has none.
    """
    by_seed: dict[int, list[float]] = {}
    for pair in pairs:
        found = value(pair)
        if found is not None:
            by_seed.setdefault(pair.other.spec.seed, []).append(found)
    return estimate([statistics.fmean(values) for values in by_seed.values()])


def by_rate(pair: Pair) -> float:
    """Return how many times as long the baseline takes for an iteration."""
    return pair.baseline.seconds_per_iteration / pair.other.seconds_per_iteration


def by_target(target: float) -> Callable[[Pair], float | None]:
    """Return how to tell how many times as long the baseline takes to an accuracy; None of who never gets there."""

    def ratio(pair: Pair) -> float | None:
        baseline_s, other_s = pair.baseline.curve.time_to(target), pair.other.curve.time_to(target)
        return baseline_s / other_s if baseline_s and other_s else None

    return ratio


def mean_of(values: Iterable[float]) -> float | None:
    """Return the mean; None of none."""
    found = list(values)
    return statistics.fmean(found) if found else None


def estimated(name: str, value: Estimate | None) -> dict[str, Any]:
    """Return an estimate as a plain value under a name."""
    return {name: value.as_json() if value is not None else None}


def at_least(value: Estimate | None, required: float | None) -> Verdict:
    """Tell whether a mean is no less than what is required."""
    return None if value is None or required is None else value.mean >= required


def at_most(value: Estimate | None, allowed: float) -> Verdict:
    """Tell whether a mean is no more than what is allowed."""
    return None if value is None else value.mean <= allowed


def not_below(value: Estimate | None, margin: float) -> Verdict:
    """Tell whether the whole confidence interval is above a margin; None without an interval."""
    return None if value is None or value.low is None else value.low >= margin


def all_known(verdicts: Iterable[Verdict]) -> Verdict:
    """Return False if one is not reached, None if one is not known, else True."""
    found = list(verdicts)
    if False in found:
        return False
    return None if None in found else True
