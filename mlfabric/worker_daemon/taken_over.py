"""An optimizer in the place of another one: it has the other's parameter groups and state."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

__all__ = ["TakenOver"]


class TakenOver(torch.optim.Optimizer):
    """Shares parameter groups and state with the optimizer that it was made from: schedulers may be built on either.

    Args:
        optimizer: that is taken over.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._taken_over, state = optimizer, optimizer.state
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.state = state

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the optimizer that it was made from; each step goes by what they say then."""
        return self._taken_over.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._taken_over.param_groups = groups

    @property
    def state(self) -> defaultdict[torch.Tensor, Any]:
        """The state of the optimizer that it was made from."""
        return self._taken_over.state

    @state.setter
    def state(self, state: defaultdict[torch.Tensor, Any]) -> None:
        self._taken_over.state = state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({})
        for name, value in state.items():
            setattr(self, name, value)
