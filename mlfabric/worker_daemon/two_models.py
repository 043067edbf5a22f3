"""A worker's own model beside one that all workers share."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch

from mlfabric.worker_daemon.round_optimizer import RoundOptimizer
from mlfabric.worker_daemon.round_steps import NOT_FINITE

__all__ = ["TwoModels", "is_offered"]


def is_offered(rounds: RoundOptimizer) -> bool:
    """Offer the shared model's gradient, and return whether that could be done: not if it has NaN or Inf."""
    dropped = rounds.tally.dropped
    rounds.step()
    return rounds.tally.dropped == dropped or rounds.last is None or rounds.last.reason != NOT_FINITE


class TwoModels:
    """A model, and a copy of it that has the same bits at all workers.

    Args:
        own: this worker's.
        optimizer: of its steps; what it does not step stays as it is.

    Attributes:
        shared: the copy.
        pairs: this worker's parameters that the optimizer steps, each with the shared one.
    """

    def __init__(self, own: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._own, self.shared = own, deepcopy(own)
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        both = zip(own.parameters(), self.shared.parameters(), strict=True)
        self.pairs = [(mine, shared) for mine, shared in both if id(mine) in stepped]

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The shared ones."""
        return [shared for _, shared in self.pairs]

    @torch.no_grad()
    def offer_buffers(self) -> None:
        """Let the shared model's floating-point buffers be this worker's: a round makes means of them."""
        for own, shared in self._buffers():
            shared.copy_(own)

    @torch.no_grad()
    def take_buffers(self) -> None:
        """Let this worker's floating-point buffers be the shared model's."""
        for own, shared in self._buffers():
            own.copy_(shared)

    def _buffers(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Give both models' buffers; a module may assign a buffer anew."""
        shared = dict(self.shared.named_buffers())
        for name, own in self._own.named_buffers():
            if own.is_floating_point():
                yield own, shared[name]
