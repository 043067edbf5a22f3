"""Update rules on a server: which kernel makes the step of an update, and what a step came to. Knows no images.

The learning rate is inside the step, so with a constant rate the trajectory is that of ``torch.optim.SGD``; when the
rate moves, steps already taken keep the rate that they were taken with, which is what lets a sum be exactly m steps.

Tensors of the other kinds bring values, see :mod:`mlfabric.server.value_kernels`; a group's come as their plain sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlfabric.errors import ConfigError
from mlfabric.model.specs import TensorKind
from mlfabric.model.stepping import transition
from mlfabric.model.update_rules import RuleKind, RuleSpec
from mlfabric.server.kernels import AdamKernel, Kernel, LinearKernel, SumKernel
from mlfabric.server.value_kernels import GreatestKernel, MeanKernel

__all__ = ["Kernels", "NotFinite", "StepResult", "mean_kernels", "sum_kernels"]

Kernels = Mapping[TensorKind, Kernel]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """An applied update, or several at once.

    Args:
        version: the version that it made.
        step_norm: l2 norm of new weights minus old weights, over the PARAMETER tensors, as they were stored.
    """

    version: int
    step_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFinite:
    """A refused update: its norm, its step's, its new state's or a buffer's is not finite; nothing was changed.

    Args:
        version: the version that still stands.
        tensor: the first tensor whose step is not finite.
    """

    version: int
    tensor: str


def mean_kernels(rule: RuleSpec, *, lr: float, count: int, steps: int) -> Kernels:
    """Return what makes one step of the mean of ``count`` updates, given their plain sum.

    Args:
        rule: the model's rule.
        lr: learning rate of this step, as planned and logged; finite, >= 0.
        count: of updates, >= 1.
        steps: how many steps there were, this one included.

    Raises:
        ConfigError: ``lr`` is out of range.
    """
    if not (math.isfinite(lr) and lr >= 0):
        raise ConfigError(f"learning rate {lr!r} of a step; allowed: finite and >= 0")
    return {TensorKind.PARAMETER: _one_step(rule, lr, count, steps), **value_kernels(MeanKernel(count=count))}


def value_kernels(means: MeanKernel) -> Kernels:
    """Return what makes new values of buffers, rates and counters."""
    return {TensorKind.BUFFER: means, TensorKind.RATES: means, TensorKind.COUNTER: GreatestKernel()}


def sum_kernels(rule: RuleSpec, *, lrs: Sequence[float], steps: int, means: MeanKernel | None = None) -> Kernels:
    """Return what makes the steps of a group of updates at once, given the images of their sum.

    Args:
        rule: the model's rule.
        lrs: of each update's step, as planned and logged, at least one; ADAM makes one step, with the first.
        steps: how many steps ADAM made, this one included.
        means: what makes buffers of the values that come; that of a value for each unless given.

    Raises:
        ConfigError: a learning rate is out of range.
    """
    count = len(lrs)
    if rule.kind is RuleKind.ADAM:
        return mean_kernels(rule, lr=lrs[0], count=count, steps=steps)
    places = transition(rule, lrs)
    parameters: Kernel = LinearKernel(momentum=0.0, gradient=1.0, decay=places.ww - 1)
    if rule.server_momentum > 0:
        parameters = SumKernel(places=places)
    return {TensorKind.PARAMETER: parameters, **value_kernels(means or MeanKernel(count=count))}


def _one_step(rule: RuleSpec, lr: float, count: int, steps: int) -> Kernel:
    if rule.kind is not RuleKind.ADAM:
        decay = -lr * rule.server_weight_decay
        return LinearKernel(momentum=rule.server_momentum, gradient=-lr / count, decay=decay)
    return AdamKernel(
        lr=lr,
        beta1=rule.beta1,
        beta2=rule.beta2,
        epsilon=rule.epsilon,
        decay=rule.weight_decay,
        scale=1 / count,
        steps=steps,
        decoupled=rule.decoupled,
    )
