"""What a worker makes of its gradients before they leave: the worker's share of the update rule (mlfabric.rules).

First the gradients are clipped, as by ``torch.nn.utils.clip_grad_norm_``. With momentum at the workers they then get
the weight decay and continue the worker's velocity, as in ``torch.optim.SGD``; the velocity is what is pushed. Whatever
is made here is a tensor of its own: what the training script does with its gradients later changes no velocity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from mlfabric.rules import RuleSpec

__all__ = ["Shaping", "norm_of"]

# As in torch.nn.utils.clip_grad_norm_.
_CLIP_EPSILON = 1e-6

MaybeTensor = torch.Tensor | None


class Shaping:
    """The clipping and the velocity of one worker.

    Args:
        rule: of the model.
    """

    def __init__(self, rule: RuleSpec) -> None:
        self._rule = rule
        self._velocity: Sequence[MaybeTensor] = ()

    def shape(self, gradients: Sequence[MaybeTensor], weights: Sequence[torch.Tensor]) -> list[MaybeTensor]:
        """Return what is to be pushed; changes neither its arguments nor the velocity.

        Args:
            gradients: of all parameters; None stands for zeros.
            weights: that they were computed on.
        """
        clipped = self._clipped(gradients)
        if self._rule.worker_momentum == 0:
            return clipped
        past = self._velocity or [None] * len(weights)
        return [self._continued(*each) for each in zip(clipped, weights, past, strict=True)]

    def shape_one(self, i: int, gradient: MaybeTensor, weights: torch.Tensor) -> MaybeTensor:
        """Return what is to be pushed of one parameter, in the order of :meth:`shape`; without clipping.

        Args:
            i: which parameter.
            gradient: None stands for zeros.
            weights: that it was computed on.
        """
        if self._rule.worker_momentum == 0:
            return gradient
        return self._continued(gradient, weights, self._velocity[i] if self._velocity else None)

    def keep(self, pushed: Sequence[MaybeTensor]) -> None:
        """Go on from what :meth:`shape` returned; not to be called if it is not finite."""
        if self._rule.worker_momentum > 0:
            self._velocity = pushed

    def _clipped(self, gradients: Sequence[MaybeTensor]) -> list[MaybeTensor]:
        norm = norm_of(gradients) if self._rule.clip_norm else 0.0
        if not self._rule.clip_norm < norm < math.inf:
            return list(gradients)
        scale = self._rule.clip_norm / (norm + _CLIP_EPSILON)
        return [None if g is None else g * scale for g in gradients]

    def _continued(self, gradient: MaybeTensor, weights: torch.Tensor, past: MaybeTensor) -> torch.Tensor:
        velocity = torch.zeros_like(weights) if past is None else past * self._rule.worker_momentum
        if gradient is not None:
            velocity += gradient
        if self._rule.worker_weight_decay:
            velocity.add_(weights, alpha=self._rule.worker_weight_decay)
        return velocity


def norm_of(tensors: Iterable[MaybeTensor]) -> float:
    """Return the l2 norm of all elements together; half precision does not overflow."""
    given = [t for t in tensors if t is not None]
    norms = [torch.linalg.vector_norm(t, dtype=torch.promote_types(t.dtype, torch.float32)) for t in given]
    return math.sqrt(sum(float(n) ** 2 for n in norms))
