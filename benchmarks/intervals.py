"""Confidence intervals of means of a few values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["MOST_VALUES", "interval_95"]

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MOST_VALUES = len(T_95) + 1


def interval_95(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean of 2 to 10 values, by Student's t."""
    half = T_95[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - half, mean + half
