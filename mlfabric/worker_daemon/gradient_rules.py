"""What a worker makes of its gradients before they leave: the worker's share of the update rule.

First the gradients are clipped, as by ``torch.nn.utils.clip_grad_norm_``. With momentum at the workers they then get
the weight decay and continue the worker's velocity, as in ``torch.optim.SGD``; the velocity is what is pushed. Whatever
is made here is a tensor of its own: what the training script does with its gradients later changes no velocity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from mlfabric.model.update_rules import RuleSpec

__all__ = ["Given", "MaybeTensor", "Rates", "Shaped", "Shaping", "norm_of"]

# As in torch.nn.utils.clip_grad_norm_.
_CLIP_EPSILON = 1e-6

MaybeTensor = torch.Tensor | None

Rates = tuple[tuple[float, float], ...]
"""Learning rate and weight decay of each parameter group."""


class Given(NamedTuple):
    """One parameter: its name, its gradient (None if there is none), and the weights that this was computed on."""

    name: str
    gradient: MaybeTensor
    weights: torch.Tensor


class Shaped(NamedTuple):
    """What is to be pushed of one parameter, None for zeros; and the velocity that it is made of, if there is one."""

    name: str
    pushed: MaybeTensor
    velocity: MaybeTensor = None


class Shaping:
    """The clipping and the velocity of one worker.

    Args:
        rule: of the model.
    """

    def __init__(self, rule: RuleSpec) -> None:
        self._rule = rule
        self._velocity: dict[str, torch.Tensor] = {}

    def group_of(self, name: str) -> int:
        """Return which parameter group's rates a parameter steps with."""
        return 0

    def settings(self) -> object:
        """Return what an update is made with that is begun now: equal as long as it would be the same."""
        return None

    def rates(self) -> Rates:
        """Return the rates that an update brings which is begun now; none if the rule has them."""
        return ()

    def shape(self, parameters: Sequence[Given]) -> list[Shaped]:
        """Return what is to be pushed of all parameters; changes neither its arguments nor the velocity."""
        return [self.shape_one(one) for one in self._clipped(parameters)]

    def shape_one(self, one: Given) -> Shaped:
        """Return what is to be pushed of one parameter; without clipping. No gradient stands for zeros."""
        if self._rule.worker_momentum == 0:
            return Shaped(one.name, one.gradient)
        past = self._velocity.get(one.name)
        velocity = torch.zeros_like(one.weights) if past is None else past * self._rule.worker_momentum
        if one.gradient is not None:
            velocity += one.gradient
        if self._rule.worker_weight_decay:
            velocity.add_(one.weights, alpha=self._rule.worker_weight_decay)
        return Shaped(one.name, velocity, velocity)

    def keep(self, shaped: Iterable[Shaped]) -> None:
        """Go on from what was shaped; not to be called if it is not finite."""
        self._velocity.update({one.name: one.velocity for one in shaped if one.velocity is not None})

    def _clipped(self, parameters: Sequence[Given]) -> Sequence[Given]:
        norm = norm_of([one.gradient for one in parameters]) if self._rule.clip_norm else 0.0
        if not self._rule.clip_norm < norm < math.inf:
            return parameters
        scale = self._rule.clip_norm / (norm + _CLIP_EPSILON)
        return [one if one.gradient is None else one._replace(gradient=one.gradient * scale) for one in parameters]


def norm_of(tensors: Iterable[MaybeTensor]) -> float:
    """Return the l2 norm of all elements together; half precision does not overflow."""
    given = [t for t in tensors if t is not None]
    norms = [torch.linalg.vector_norm(t, dtype=torch.promote_types(t.dtype, torch.float32)) for t in given]
    return math.sqrt(sum(float(n) ** 2 for n in norms))
