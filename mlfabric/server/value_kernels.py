"""Tensors that updates bring values for: buffers become the mean of a group's values, counters the greatest.

The two passes are those of :mod:`mlfabric.server.kernels`. No norm of a step counts them: nothing that bounds how far a
step goes knows of values. What is not finite is found all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mlfabric.server.kernels import COMPUTE_DTYPES, Norms, Tensors, all_finite, chunks, square_norm

__all__ = ["GreatestKernel", "MeanKernel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanKernel:
    """The mean of values that come as their plain sum; of one alone exactly that value.

    Args:
        count: how many values come, >= 1.
        kept: how many values of the same group the weights are the mean of already; 0 unless a replica takes a group
            in several parts.
    """

    count: int
    kept: int = 0

    def make(self, updates: Tensors, weights: torch.Tensor, state: Tensors) -> Norms:
        """Turn the sum into the mean, in place."""
        state_sq = 0.0
        for part in chunks(weights.numel()):
            total = updates[0][part]
            if self.count + self.kept > 1:
                wide = total.to(COMPUTE_DTYPES.get(total.dtype, total.dtype))
                if self.kept:
                    wide = wide.add(weights[part], alpha=self.kept)
                total.copy_(wide / (self.count + self.kept))
            state_sq += square_norm(total)
        return Norms(state_sq=state_sq)

    def take(self, updates: Tensors, weights: torch.Tensor, target: torch.Tensor, state: Tensors) -> None:
        """Write the mean."""
        target.copy_(updates[0])

    def is_finite(self, updates: Tensors, weights: torch.Tensor, state: Tensors) -> bool:
        """Tell whether the mean is finite."""
        return all_finite(updates[0])


@dataclass(frozen=True, slots=True)
class GreatestKernel:
    """The greatest of integers: of those that come and of those that are there."""

    def make(self, updates: Tensors, weights: torch.Tensor, state: Tensors) -> Norms:
        """Take the greatest, in place."""
        torch.maximum(updates[0], weights, out=updates[0])
        return Norms()

    def take(self, updates: Tensors, weights: torch.Tensor, target: torch.Tensor, state: Tensors) -> None:
        """Write the greatest."""
        target.copy_(updates[0])

    def is_finite(self, updates: Tensors, weights: torch.Tensor, state: Tensors) -> bool:
        """Integers are finite."""
        return True
