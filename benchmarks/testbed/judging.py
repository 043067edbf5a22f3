"""How good a model was when: snapshots evaluated after the run, smoothed, and the time at which a target was met.

Accuracy on test images jumps from snapshot to snapshot. While a model learns, its expectation does not fall, so the
curve is smoothed by isotonic regression: the non-decreasing curve that is nearest in squares (pool adjacent violators;
Barlow et al., 1972). It has no window to choose, and it does not lag. The target is met where that curve, linear
between its points, first reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.testbed.runs import NS_PER_S, Snapshot

__all__ = ["Curve", "curve_of", "isotonic"]

LAST_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Accuracy over time; all three have an element for each snapshot.

    Args:
        time_s: since all processes were ready, not dilated.
        gradients: how many the model had taken in.
        accuracy: share of test images that it gets right.
    """

    time_s: tuple[float, ...]
    gradients: tuple[int, ...]
    accuracy: tuple[float, ...]

    def time_to(self, target: float) -> float | None:
        """Return when the smoothed accuracy reached the target, in s; None if it never did."""
        return _crossing(self.time_s, self.accuracy, target)

    def gradients_to(self, target: float) -> float | None:
        """Return how many gradients the smoothed accuracy took to reach the target; None if it never did."""
        return _crossing(self.gradients, self.accuracy, target)

    def at_end(self, gradients: float | None = None) -> float:
        """Return the accuracy at the end: the mean over the last fifth of the gradients.

        Args:
            gradients: count only as many, to compare with a run that did no more; None for all.
        """
        taken = np.array(self.gradients, dtype=float)
        last = min(taken[-1], gradients) if gradients is not None else taken[-1]
        chosen = (taken <= last) & (taken >= (1 - LAST_SHARE) * last)
        if not chosen.any():
            return float(np.interp(last, taken, self.accuracy))
        return float(np.mean(np.array(self.accuracy)[chosen]))


def curve_of(
    snapshots: Sequence[Snapshot],
    accuracy: Callable[[np.ndarray], float],
    *,
    began_ns: int,
    dilation: float,
    gradients_after: Callable[[int], int],
) -> Curve:
    """Evaluate snapshots.

    Args:
        accuracy: of a flat model.
        began_ns: when time starts to count.
        dilation: by which times are divided.
        gradients_after: how many gradients are in the model after so many of its steps.
    """
    return Curve(
        time_s=tuple(max(0.0, (s.time_ns - began_ns) / NS_PER_S / dilation) for s in snapshots),
        gradients=tuple(gradients_after(s.updates) for s in snapshots),
        accuracy=tuple(accuracy(s.weights) for s in snapshots),
    )


def isotonic(values: Sequence[float]) -> np.ndarray:
    """Return the non-decreasing sequence nearest to the values, by pooling neighbours that violate the order."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, size = float(value), 1
        while pools and pools[-1][0] >= mean:
            before, n = pools.pop()
            mean, size = (before * n + mean * size) / (n + size), n + size
        pools.append((mean, size))
    return np.repeat([mean for mean, _ in pools], [size for _, size in pools])


def _crossing(at: Sequence[float], values: Sequence[float], target: float) -> float | None:
    """Return where the smoothed values first reach the target."""
    smooth = isotonic(values)
    reached = np.flatnonzero(smooth >= target)
    if not reached.size:
        return None
    i = int(reached[0])
    if i == 0:
        return float(at[0])
    share = (target - smooth[i - 1]) / (smooth[i] - smooth[i - 1])
    return float(at[i - 1] + share * (at[i] - at[i - 1]))
