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
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from mlfabric.errors import ConfigError, UsageError
from mlfabric.rules import RuleKind, RuleSpec

__all__ = ["NOTHING", "Coefficients", "Transition", "UpdateSum", "Vector", "member_coefficients", "transition"]


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


class Vector(Protocol):
    """What numpy arrays and torch tensors have in common; parts are views."""

    def __add__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __getitem__(self, key: Any, /) -> Any: ...


V = TypeVar("V", bound=Vector)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSum(Generic[V]):
    """What the updates within a window of places add up to; places may be empty, or hold others' updates.

    Methods that end in ``in_place`` write to the tensors that they are called on, and nowhere else: those must not be
    shared with another sum or be one another. They need memory for one more tensor of their length; call them on
    ``part`` after ``part`` to need less.

    Args:
        places: what the window does by itself.
        first: of any shape.
        second: of the same shape; None if the server keeps no momentum.
    """

    places: Transition
    first: V
    second: V | None

    @classmethod
    def of(cls, update: V, rule: RuleSpec, lr: float) -> Self:
        """Make the window of one update, in tensors of its own.

        Args:
            update: a gradient.
            rule: of the model; not ADAM.
            lr: learning rate of its step.

        Raises:
            ConfigError, UsageError: as :func:`transition`.
        """
        places, (own,) = transition(rule, [lr]), member_coefficients(rule, [lr])
        second = update * own.second if rule.server_momentum > 0 else None
        return cls(places=places, first=update * own.first, second=second)

    def then(self, later: UpdateSum[V]) -> UpdateSum[V]:
        """Return the window of this one's places followed by those of ``later``.

        Raises:
            UsageError: one has a second tensor and the other has none.
        """
        theirs, moved = self._second_of(later), self.waited(later.places)
        second = None if moved.second is None else moved.second + theirs
        return replace(moved, first=moved.first + later.first, second=second)

    def waited(self, skipped: Transition) -> UpdateSum[V]:
        """Return the window with these places after it: others' updates stand there."""
        first, second = self.first * skipped.ww, self.second
        if second is not None:
            first = first + second * skipped.wh
            second = self.first * skipped.hw + second * skipped.hh
        return UpdateSum(places=self.places.then(skipped), first=first, second=second)

    def beside(self, other: UpdateSum[V]) -> UpdateSum[V]:
        """Return what both add up to; their last places are one and the same, and no place is taken by both.

        Raises:
            UsageError: one has a second tensor and the other has none.
        """
        theirs = self._second_of(other)
        second = None if self.second is None else self.second + theirs
        longer = max(self.places, other.places, key=lambda places: places.steps)
        return UpdateSum(places=longer, first=self.first + other.first, second=second)

    def part(self, start: int, stop: int) -> UpdateSum[V]:
        """Return elements ``start`` to ``stop`` (of the first dimension), as views."""
        second = None if self.second is None else self.second[start:stop]
        return replace(self, first=self.first[start:stop], second=second)

    def add_update_in_place(self, update: V, coefficients: Coefficients) -> None:
        """Add one update that stands within this window; in any order.

        This is how an aggregator sums what workers send: ``places`` is known from the start, tensors begin as zeros.

        Args:
            update: of the sum's shape.
            coefficients: its own, of ``member_coefficients`` of the whole window.

        Raises:
            UsageError: both tensors are one.
        """
        self._check_writable()
        first, second = self.first, self.second
        first += update * coefficients.first
        if second is not None and coefficients.second:
            second += update * coefficients.second

    def add_in_place(self, other: UpdateSum[V], behind: Transition = NOTHING) -> None:
        """Add a sum that stands within this window, ``behind`` places before its end; in any order.

        Raises:
            UsageError: one has a second tensor and the other has none, both tensors are one, or the window has no such
                places.
        """
        self._check_writable()
        self._second_of(other)
        if other.places.steps + behind.steps > self.places.steps:
            raise UsageError(
                f"{other.places.steps} places, {behind.steps} before the end of a window of {self.places.steps}; "
                f"allowed: {self.places.steps - other.places.steps} at most before its end"
            )
        moved = other.waited(behind) if behind.steps else other
        first, second = self.first, self.second
        first += moved.first
        if second is not None:
            second += moved.second

    def append_in_place(self, later: UpdateSum[V], skipped: Transition = NOTHING) -> UpdateSum[V]:
        """Put ``later`` behind this window, with the places of ``skipped`` between them.

        This is how a worker folds updates that its replica has not got yet.

        Returns:
            The longer window, in the same tensors; this one is no more.

        Raises:
            UsageError: one has a second tensor and the other has none, or both tensors are one.
        """
        self._check_writable()
        self._second_of(later)
        behind = skipped.then(later.places)
        _carry_in_place(behind, self.first, self.second)
        first, second = self.first, self.second
        first += later.first
        if second is not None:
            second += later.second
        return replace(self, places=self.places.then(behind))

    def apply(self, weights: V, history: V | None) -> tuple[V, V | None]:
        """Return weights and history as that many single steps would leave them.

        Args:
            weights, history: of the same shape; without momentum a history is handed back as it is.

        Raises:
            UsageError: there is momentum, but no history.
        """
        p = self.places
        if self.second is None:
            return weights + (weights * (p.ww - 1) + self.first), history
        before = _given(history)
        moved = weights * (p.ww - 1) + before * p.wh + self.first
        return weights + moved, weights * p.hw + before * p.hh + self.second

    def apply_in_place(self, weights: V, history: V | None) -> None:
        """Bring weights and history to where that many single steps would leave them; see :meth:`apply`."""
        _carry_in_place(self.places, weights, None if self.second is None else _given(history))
        weights += self.first
        if self.second is not None:
            past = _given(history)
            past += self.second

    def _second_of(self, other: UpdateSum[V]) -> V | None:
        if (self.second is None) != (other.second is None):
            raise UsageError("a sum with a second tensor and one without; allowed: sums of one job")
        return other.second

    def _check_writable(self) -> None:
        if self.first is self.second:
            raise UsageError("first and second are one tensor; give each its own to add in place")


def _carry_in_place(places: Transition, first: Any, second: Any | None) -> None:
    if second is None:
        if places.ww != 1:
            first *= places.ww
        return
    from_first = first * places.hw if places.hw else None
    if places.ww != 1:
        first *= places.ww
    first += second * places.wh
    second *= places.hh
    if from_first is not None:
        second += from_first


def _given(history: V | None) -> V:
    if history is None:
        raise UsageError("momentum, but no history; give the history, zeros at first")
    return history
