"""Update rules: how an update becomes a step, and what a step came to. Knows no versions and no images.

SGD with momentum (design, section 5) is one linear form for every element::

    step = momentum * history + gradient * update + decay * weight
    history <- step
    weight  <- weight + step

with ``gradient = -lr`` and ``decay = -lr * weight_decay``. With ``momentum`` 0 there is no history. The learning
rate is inside the step, so with a constant rate the trajectory is that of ``torch.optim.SGD``; when the rate moves,
steps already taken keep the rate that they were taken with, which is what lets an aggregate be exactly m steps.

A ``BUFFER`` tensor brings its change, which is added as it is: ``momentum = decay = 0, gradient = 1``.

Arithmetic is in the tensor's dtype; for float16 and bfloat16 in float32, the step rounded once and the weight once.
Norms are summed in float64. They are finite exactly if all elements are (short of float64 elements beyond 1e154,
whose squares overflow: refused likewise), so they are also the test for NaN and Inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from mlfabric.errors import ConfigError
from mlfabric.specs import RuleSpec, TensorKind

__all__ = [
    "CHUNK_ELEMENTS",
    "NotFinite",
    "StepCoefficients",
    "StepResult",
    "chunks",
    "make_step",
    "step_coefficients",
    "take_step",
]

# Just below the size from which torch splits every single operation over its threads. Each split ends in a barrier
# that costs a time slice where cores are shared: on a busy host a step of 100 MB took seconds instead of 0.1 s.
CHUNK_ELEMENTS = 32_752
_COMPUTE_DTYPES = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCoefficients:
    """What history, update and weight are multiplied with to make the step."""

    momentum: float
    gradient: float
    decay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """An applied update.

    Args:
        version: the version that it made.
        step_norm: l2 norm of new weights minus old weights, over all tensors, as they were stored.
        update_norm: l2 norm of the update as it came, over all tensors.
    """

    version: int
    step_norm: float
    update_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFinite:
    """A refused update: its norm or its step's norm is not finite; nothing was changed.

    Args:
        version: the version that still stands.
        tensor: the first tensor whose step is not finite.
    """

    version: int
    tensor: str


def step_coefficients(rule: RuleSpec, kind: TensorKind, *, lr: float) -> StepCoefficients:
    """Return the coefficients of one step.

    Args:
        rule: the model's rule.
        kind: of the tensor that is stepped.
        lr: learning rate of this step, as planned and logged (``rule.lr_at(version)``); finite, >= 0.

    Raises:
        ConfigError: ``lr`` is out of range.
    """
    if not (math.isfinite(lr) and lr >= 0):
        raise ConfigError(f"learning rate {lr!r} of a step; allowed: finite and >= 0")
    if kind is TensorKind.BUFFER:
        return StepCoefficients(momentum=0.0, gradient=1.0, decay=0.0)
    return StepCoefficients(momentum=rule.momentum, gradient=-lr, decay=-lr * rule.weight_decay)


def chunks(elements: int) -> Iterator[slice]:
    """Cut a flat tensor into parts that one thread works through near its caches."""
    for start in range(0, elements, CHUNK_ELEMENTS):
        yield slice(start, start + CHUNK_ELEMENTS)


def make_step(
    coefficients: StepCoefficients, update: torch.Tensor, weights: torch.Tensor, history: torch.Tensor | None
) -> tuple[float, float]:
    """Turn ``update`` into the step in place, chunk by chunk; weights and history are only read.

    Args:
        coefficients: of the step.
        update: flat tensor, n elements.
        weights, history: of the same length and dtype; no history without momentum.

    Returns:
        The squared l2 norms of the update, and of the change that adding the step makes to the stored weights.
    """
    update_sq = step_sq = 0.0
    for part in chunks(update.numel()):
        past = None if history is None else history[part]
        more = _step_chunk(coefficients, update[part], weights[part], past)
        update_sq, step_sq = update_sq + more[0], step_sq + more[1]
    return update_sq, step_sq


def take_step(step: torch.Tensor, weights: torch.Tensor, target: torch.Tensor, history: torch.Tensor | None) -> None:
    """Write ``weights + step`` to ``target``, which may be ``weights``, and ``step`` to the history.

    Args:
        step: flat tensor, n elements, as :func:`make_step` left it.
        weights, target, history: of the same length and dtype; no history without momentum.
    """
    for part in chunks(step.numel()):
        torch.add(weights[part], step[part], out=target[part])
        if history is not None:
            history[part].copy_(step[part])


def _step_chunk(
    c: StepCoefficients, update: torch.Tensor, weights: torch.Tensor, history: torch.Tensor | None
) -> tuple[float, float]:
    step = update.to(_COMPUTE_DTYPES.get(update.dtype, update.dtype))
    update_sq = _square(step.double())
    step.mul_(c.gradient)
    if c.decay:
        step.add_(weights, alpha=c.decay)
    if history is not None:
        step.add_(history, alpha=c.momentum)
    update.copy_(step)
    # The difference of what is stored, not the step: what rounding does to the weights belongs to the norm.
    change = torch.add(weights, update).double().sub_(weights.double())
    return update_sq, _square(change)


def _square(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x)) ** 2
