"""Local SGD and DiLoCo: workers step by themselves, and make rounds of how far each has come.

Beside its own model each worker has the *outer* one, which has the same bits at all of them. After some steps of its
own optimizer, the *inner* steps, a worker offers its movement, the outer model less its own, for a round. A settled
round steps the outer model with the mean movement, as if that were a gradient, and each member goes on from there. With
local SGD (Stich, 2019) the outer model becomes the mean of the members'; with DiLoCo (Douillard et al., 2023, arXiv
2311.08105) the outer step is one of SGD with Nesterov momentum.

A worker may go on while its round is made, as in Streaming DiLoCo (Douillard et al., 2025, arXiv 2501.18512). Then its
movement is how far it has come since its last offer, and the outer model that comes of a round takes the place of what
the worker had when it offered: ``outer + (own - offered)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch

from mlfabric.arguments import instance_of, integer_of
from mlfabric.errors import UsageError
from mlfabric.model.specs import Method
from mlfabric.worker_daemon.argument_types import MOST_COUNTED
from mlfabric.worker_daemon.round_optimizer import RoundOptimizer
from mlfabric.worker_daemon.round_steps import NOT_FINITE
from mlfabric.worker_daemon.step_roles import RoundOutcome, RoundTally
from mlfabric.worker_daemon.taken_over import TakenOver

__all__ = ["DILOCO_LR", "DILOCO_MOMENTUM", "INNER_STEPS", "LocalOptimizer", "OuterModel", "OuterStep"]

INNER_STEPS = 32
DILOCO_LR, DILOCO_MOMENTUM = 0.7, 0.9
"""The outer step of DiLoCo, as in the paper's section 3."""

OuterStep = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
"""Makes the optimizer of the outer model's parameters."""


class OuterModel:
    """The model that all workers share, beside the one that this worker steps.

    Args:
        model: this worker's.
        optimizer: of its inner steps; what it does not step stays as it is.
        method: says how the outer model is stepped.
        outer: makes the optimizer of the outer model, if it is not the method's usual one.
        overlaps: the worker goes on while rounds are made.

    Attributes:
        model: the outer one.
        optimizer: steps it.
        overlaps: see above.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        method: Method,
        outer: OuterStep | None,
        *,
        overlaps: bool = False,
    ) -> None:
        self._own, self.model, self.overlaps = model, deepcopy(model), overlaps
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        both = zip(model.parameters(), self.model.parameters(), strict=True)
        self._pairs = [(own, shared) for own, shared in both if id(own) in stepped]
        self._begun = [own.detach().clone() for own, _ in self._pairs] if overlaps else None
        """What this worker had when it offered, if it goes on from there."""
        parameters = [shared for _, shared in self._pairs]
        made = (outer or _usual_step(method))(parameters)
        self.optimizer = instance_of(torch.optim.Optimizer, "what outer makes", made, "a torch.optim.Optimizer")

    def _buffers(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Give this worker's floating-point buffers and the outer ones; a module may assign a buffer anew."""
        shared = dict(self.model.named_buffers())
        for name, own in self._own.named_buffers():
            if own.is_floating_point():
                yield own, shared[name]

    @torch.no_grad()
    def take_movement(self, weight: int) -> None:
        """Make the movement of this worker's model, times its weight, the gradient of the outer one."""
        for (own, shared), begun in zip(self._pairs, self._from(), strict=True):
            shared.grad = (begun - own).mul_(weight)
        for buffer, shared_buffer in self._buffers():
            shared_buffer.copy_(buffer)

    def _from(self) -> list[torch.Tensor]:
        """Return from where this worker's movement counts."""
        return [shared for _, shared in self._pairs] if self._begun is None else self._begun

    @torch.no_grad()
    def hand_over(self, *, whole: bool = True) -> None:
        """Let this worker's model go on from the outer one; with what it has just offered if that is not ``whole``."""
        for (own, shared), begun in zip(self._pairs, self._from(), strict=True):
            own.copy_(shared if whole else (own - begun).add_(shared))
            shared.grad = None
            if self._begun is not None:
                begun.copy_(own)
        for buffer, shared_buffer in self._buffers():
            buffer.copy_(shared_buffer)


def _usual_step(method: Method) -> OuterStep:
    if method is Method.LOCAL_SGD:
        return lambda parameters: torch.optim.SGD(parameters, lr=1.0)
    return lambda parameters: torch.optim.SGD(parameters, lr=DILOCO_LR, momentum=DILOCO_MOMENTUM, nesterov=True)


class LocalOptimizer(TakenOver):
    """A worker that makes inner steps; made by ``mlfabric.wrap``.

    Args:
        optimizer: makes the inner steps; any of torch's.
        outer: the model that all workers share.
        rounds: offers its gradients, and steps it.
        inner_steps: after how many inner steps the movement is offered, >= 1.

    Attributes:
        rounds: see above.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, outer: OuterModel, rounds: RoundOptimizer, inner_steps: int
    ) -> None:
        super().__init__(optimizer)
        self.rounds = rounds
        self._outer, self._inner_steps = outer, inner_steps
        self._made = self._weight = 0
        """How many inner steps were made since the last round, and what they weigh."""
        self._next_weight = 1
        outer.hand_over()

    @property
    def outer_model(self) -> torch.nn.Module:
        """The model that all workers share: the one to evaluate and to save."""
        return self._outer.model

    @property
    def version(self) -> int:
        """How many rounds the outer model has applied."""
        return self.rounds.version

    @property
    def last(self) -> RoundOutcome | None:
        """What became of the last movement that was offered; None before that."""
        return self.rounds.last

    @property
    def tally(self) -> RoundTally:
        """What became of all movements that were offered."""
        return self.rounds.tally

    @property
    def waiting(self) -> int:
        """How many movements are in no round yet, as far as this worker knows."""
        return self.rounds.waiting

    def weigh(self, weight: int) -> None:
        """Say how much the next inner step counts in the mean of a round, as by its samples or tokens; 1 unless said.

        Args:
            weight: >= 1.
        """
        self._next_weight = integer_of("weight", weight, least=1, most=MOST_COUNTED)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make an inner step; after enough of them offer the movement, and go on from the outer model.

        Returns the closure's loss, if any. The step that offers returns once the round is settled that the movement is
        in, or it is known to be in none; see ``last``. With ``wait=False`` that is the movement before.

        Raises:
            FabricClosedError: the worker has left the fabric.
        """
        loss = self._taken_over.step(closure)
        self._made, self._weight, self._next_weight = self._made + 1, self._weight + self._next_weight, 1
        if self._made >= self._inner_steps:
            self.meet()
        return loss

    def meet(self) -> None:
        """Offer the movement now, if an inner step was made since the last round; go on from the outer model."""
        if not self._made:
            return
        weight, self._made, self._weight = self._weight, 0, 0
        self._outer.take_movement(weight)
        self.rounds.weigh(weight)
        self.rounds.step()
        last = self.rounds.last
        is_spoilt = last is not None and last.reason == NOT_FINITE
        self._outer.hand_over(whole=is_spoilt or not self._outer.overlaps)

    def finish(self) -> None:
        """Apply settled rounds and continue from the outer model. Own steps since the last round are given up.

        With ``wait=False`` it waits for the round that the last movement is in.
        """
        self.rounds.finish(waits=self._outer.overlaps)
        self._made = self._weight = 0
        self._outer.hand_over()

    def leave(self, detail: str = "done") -> None:
        """Leave the fabric; a second call does nothing. The end of the process does it, too."""
        self.rounds.leave(detail)

    @property
    def has_left(self) -> bool:
        """Whether this worker has left the fabric."""
        return self.rounds.has_left

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: what travels was settled when the model was registered.

        Raises:
            UsageError: always, once it is made.
        """
        if hasattr(self, "rounds"):
            raise UsageError("add_param_group after wrap; allowed: all groups before")
        super().add_param_group(param_group)
