"""Sums of updates that act as single steps (design, section 5, "Momentum and sums"). Pure; arithmetic only.

With the state (w, h) every rule of SGD is affine: the step of gradient g with learning rate lr is ::

    (w, h)  <-  M (w, h) + b g        M = [[1 - lr*wd, gamma], [-lr*wd, gamma]]        b = -lr * (1, 1)

and m steps are, with ``P = M_m ... M_1`` and ``C_j = M_m ... M_(j+1) b_j``, ::

    (w, h)  <-  P (w, h) + sum_j C_j g_j

So a group of m updates travels as two images, ``first = sum C_j[0] g_j`` and ``second = sum C_j[1] g_j``, or as the
first alone if the server keeps no momentum. P and C are numbers that everybody can work out from the learning rates.
Nothing is divided, so nothing is lost near gamma = 1; the learning rate may move, and weights may decay.

Both images are sums over the updates. So windows can be put one after the other, and windows of the same places can be
laid over each other: a worker folds its own updates, wherever they stand, with others' places between them, and what
several workers folded adds up to the window. What is skipped matters by its learning rates alone.

All of this is about tensors of kind PARAMETER. The values of buffers are added up plainly in the first image, and
whoever makes the steps divides by their number; of counters the sum has the greatest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mlfabric.errors import ConfigError, UsageError
from mlfabric.model.update_rules import RuleKind, RuleSpec

__all__ = ["NOTHING", "Coefficients", "Transition", "member_coefficients", "transition"]


class Coefficients(NamedTuple):
    """What one update is multiplied with for the first image and for the second."""

    first: float
    second: float


class Transition(NamedTuple):
    """What ``steps`` steps do to weights and history, whatever their updates are: the matrix P of a window.

    The new weights are ``ww * w + wh * h``, the new history is ``hw * w + hh * h``.
    """

    steps: int
    ww: float
    wh: float
    hw: float
    hh: float

    def then(self, later: Transition) -> Transition:
        """Return the transition of these places followed by those of ``later``."""
        return Transition(
            self.steps + later.steps,
            later.ww * self.ww + later.wh * self.hw,
            later.ww * self.wh + later.wh * self.hh,
            later.hw * self.ww + later.hh * self.hw,
            later.hw * self.wh + later.hh * self.hh,
        )

    def after(self, update: Coefficients) -> Coefficients:
        """Return the coefficients of an update once these places follow it."""
        return Coefficients(
            self.ww * update.first + self.wh * update.second, self.hw * update.first + self.hh * update.second
        )


NOTHING = Transition(0, 1.0, 0.0, 0.0, 1.0)
"""The transition of no place."""


def transition(rule: RuleSpec, lrs: Sequence[float]) -> Transition:
    """Return what the steps of these learning rates do to weights and history by themselves.

    Args:
        rule: of the model.
        lrs: learning rates of the steps, in the order of commits; finite, >= 0.

    Raises:
        ConfigError: a learning rate is out of range.
        UsageError: the rule is ADAM, which is not linear.
    """
    places = NOTHING
    for step in _steps(rule, lrs):
        places = places.then(step)
    return places


def member_coefficients(rule: RuleSpec, lrs: Sequence[float]) -> tuple[Coefficients, ...]:
    """Return with what each of a group's updates goes into the group's images.

    Under ADAM a group's sum is plain, and makes one step of the updates' mean.

    Args:
        rule: of the model.
        lrs: learning rate of each member's step, in the order of commits; finite, >= 0.

    Raises:
        ConfigError: a learning rate is out of range.
    """
    if rule.kind is RuleKind.ADAM:
        _check(lrs)
        return (Coefficients(1.0, 0.0),) * len(lrs)
    steps, places, found = _steps(rule, lrs), NOTHING, []
    for lr, step in zip(reversed(lrs), reversed(steps), strict=True):
        found.append(places.after(_own(rule, lr)))
        places = step.then(places)
    return tuple(reversed(found))


def _own(rule: RuleSpec, lr: float) -> Coefficients:
    return Coefficients(-lr, -lr if rule.server_momentum > 0 else 0.0)


def _steps(rule: RuleSpec, lrs: Sequence[float]) -> list[Transition]:
    if rule.kind is RuleKind.ADAM:
        raise UsageError("steps of adam are not linear in the gradients; allowed: sgd, adadelay")
    _check(lrs)
    gamma, decay = rule.server_momentum, rule.server_weight_decay
    if gamma == 0:
        return [Transition(1, 1 - lr * decay, 0.0, 0.0, 0.0) for lr in lrs]
    return [Transition(1, 1 - lr * decay, gamma, -lr * decay, gamma) for lr in lrs]


def _check(lrs: Sequence[float]) -> None:
    for lr in lrs:
        if not (math.isfinite(lr) and lr >= 0):
            raise ConfigError(f"learning rate {lr!r} of a step; allowed: finite and >= 0")
