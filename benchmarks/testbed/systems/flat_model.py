"""What the testbed trains, as a torch model for optimizers that are used as users do.

It has one element more than the workload, its first one. A worker that finds the run over gives that element a
gradient, so all workers find it changed after the same round, and each ends with the first round that shows it.
"""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.testbed.overlapping import Buckets
from benchmarks.testbed.workload import Workload

__all__ = ["Flat"]


class Flat(torch.nn.Module):
    """Whether the run is over, and behind that the workload's weights.

    Args:
        workload: whose weights it begins with.
        buckets: each is a parameter.
    """

    def __init__(self, workload: Workload, buckets: Buckets) -> None:
        super().__init__()
        self._values = np.append(np.float32(0), workload.initial())
        self._slopes = np.zeros_like(self._values)
        parts = [torch.from_numpy(self._values[place]) for place in buckets.slices]
        self.parts = torch.nn.ParameterList(torch.nn.Parameter(part) for part in parts)
        self._gradients = [torch.from_numpy(self._slopes[place]) for place in buckets.slices]

    @property
    def weights(self) -> np.ndarray:
        """The workload's weights, as they are now: a view."""
        return self._values[1:]

    @property
    def gradient(self) -> np.ndarray:
        """Where the workload's gradient goes: a view."""
        return self._slopes[1:]

    def values(self) -> np.ndarray:
        """Return whether some worker has found the run over (not 0), and the workload's weights; maybe a view."""
        return self._values

    def say(self, is_over: bool) -> None:
        """Give what the next step says about the run's end, in the bucket that is made last."""
        self._slopes[0] = float(is_over)

    def give(self, bucket: int) -> torch.nn.Parameter:
        """Give a parameter its gradient, which an optimizer may have let go; return it."""
        part: torch.nn.Parameter = self.parts[bucket]
        part.grad = self._gradients[bucket]
        return part
