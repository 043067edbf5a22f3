"""The central model of workers that are drawn to it: synchronous model averaging among workers (CROSSBOW, SMA).

Each worker steps a model w of its own. In each round it is drawn to the central model z, which all workers have with
the same bits, by the correction ``(w - z) / n``, n being how many are in the round; z moves by the sum of these, and
keeps some of its last movement: ``z + sum(corrections) + momentum (z - z_before)`` (Koliousis et al., 2019, algorithm
1). That is a step of SGD with momentum and a learning rate of 1 along the mean of ``z - w``. The round is made while
the worker computes its next gradient: a correction is that of the model from before the step, as in the paper.
"""

from __future__ import annotations

import torch

from mlfabric.worker_daemon.group_rates import is_new_rate
from mlfabric.worker_daemon.round_optimizer import RoundOptimizer
from mlfabric.worker_daemon.two_models import TwoModels, is_offered

__all__ = ["CENTRAL_LR", "CENTRAL_MOMENTUM", "CentralModel"]

CENTRAL_LR, CENTRAL_MOMENTUM = 1.0, 0.9


class CentralModel:
    """The model that all workers are drawn to, beside the one that this worker steps.

    Args:
        models: both.
        inner: steps this worker's; when its learning rate changes by much, this worker goes on from the central model.
        optimizer: steps the central one.

    Attributes:
        model: the central one.
        parts: its parameters, all in one.
    """

    def __init__(self, models: TwoModels, inner: torch.optim.Optimizer, optimizer: torch.optim.Optimizer) -> None:
        self._models, self._inner, self.optimizer = models, inner, optimizer
        self.model: torch.nn.Module = models.shared
        self.parts = models.parts
        self._rates = self._inner_rates()

    def start(self) -> None:
        """Begin with the central model."""
        self._models.start()

    def begin(self) -> None:
        """Go on from the central model."""
        with torch.no_grad():
            for own, central in self._models.pairs:
                own.copy_(central)
        self._models.take_buffers()

    def meet(self, rounds: RoundOptimizer, weight: int) -> None:
        """Be drawn by the correction that was offered last, once its round is made; offer the next one.

        All workers count the same, whatever the weight.
        """
        self._settle(rounds)
        with torch.no_grad():
            for own, central in self._models.pairs:
                central.grad = central - own
        self._models.give_counts()
        if not is_offered(rounds):
            self._models.forget_unsound()
            self.begin()

    def go_on(self, rounds: RoundOptimizer) -> None:
        """Leave it to the next ``meet``, which waits for the correction that was offered last."""

    def catch_up(self, rounds: RoundOptimizer) -> None:
        """Leave it to the next ``meet``: a correction is taken in where the next one is made."""

    def finish(self, rounds: RoundOptimizer) -> None:
        """Wait for the correction that was offered last, and go on from the central model."""
        self._settle(rounds)
        self.begin()

    @torch.no_grad()
    def _settle(self, rounds: RoundOptimizer) -> None:
        before = rounds.tally.included
        rounds.finish(waits=True)
        last = rounds.last
        if last is not None and rounds.tally.included > before:
            for own, central in self._models.pairs:
                assert central.grad is not None, "it was offered"
                own.add_(central.grad, alpha=1 / last.workers)
        rates, self._rates = self._rates, self._inner_rates()
        if any(is_new_rate(new, old) for new, old in zip(self._rates, rates, strict=True)):
            self.begin()

    def _inner_rates(self) -> list[float]:
        return [float(group["lr"]) for group in self._inner.param_groups]
