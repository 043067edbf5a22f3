"""Stochastic gradient descent with momentum on a flat vector, as torch.optim.SGD computes it.

``v <- momentum * v + g;  w <- w - step_size * v``: whoever keeps the model of a baseline takes its steps with this.
"""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["Momentum"]


class Momentum:
    """A model and its velocity.

    Args:
        weights: float32, flat; changed in place by every step.
        step_size: > 0.
        momentum: 0 to below 1.
    """

    def __init__(self, weights: np.ndarray, *, step_size: float, momentum: float) -> None:
        self.weights = weights
        self._model = torch.from_numpy(weights)
        self._velocity = torch.zeros_like(self._model)
        self._step_size = step_size
        self._momentum = momentum

    @property
    def velocity(self) -> np.ndarray:
        """The velocity: a view."""
        return self._velocity.numpy()

    def step(self, gradient: torch.Tensor) -> None:
        """Take one step; the gradient is float32 and as long as the model."""
        self._velocity.mul_(self._momentum).add_(gradient)
        self._model.sub_(self._velocity, alpha=self._step_size)
