"""Where a model is, for norms: two real numbers, as a complex one, that take the steps that the exact ones take. Pure.

The exact numbers of ``exact`` know which updates are in a model and have no length. These have one, and so a distance
from one version to another; they take no part in anything that is compared for equality.
"""

from __future__ import annotations

import cmath
import math
from typing import NamedTuple

from mlfabric.model.update_rules import RuleKind, RuleSpec

__all__ = ["Motion", "direction", "moved"]


class Motion(NamedTuple):
    """Weights, what the rule remembers (of ADAM both averages), and how many steps it made."""

    weights: complex
    history: complex = 0j
    squares: complex = 0j
    steps: int = 0


def direction(step: int) -> complex:
    """Return a vector of length 1 that follows from an update's exact number of 64 bits."""
    return cmath.rect(1.0, 2 * math.pi * step / 2**64)


def moved(rule: RuleSpec, at: Motion, gradient: complex, lr: float) -> Motion:
    """Return where one step leads: the rule as its documentation puts it."""
    whole = gradient + rule.server_weight_decay * at.weights
    if rule.kind is RuleKind.ADAM:
        return _adam(rule, at, whole, lr)
    step = rule.server_momentum * at.history - lr * whole
    return Motion(at.weights + step, step, 0j, at.steps + 1)


def _adam(rule: RuleSpec, at: Motion, whole: complex, lr: float) -> Motion:
    steps = at.steps + 1
    history = rule.beta1 * at.history + (1 - rule.beta1) * whole
    squared = complex(whole.real**2, whole.imag**2)
    squares = rule.beta2 * at.squares + (1 - rule.beta2) * squared
    mean, square = history / (1 - rule.beta1**steps), squares / (1 - rule.beta2**steps)
    step = complex(
        mean.real / (math.sqrt(square.real) + rule.epsilon), mean.imag / (math.sqrt(square.imag) + rule.epsilon)
    )
    return Motion(at.weights - lr * step, history, squares, steps)
