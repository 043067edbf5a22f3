"""Sums of updates that act as single steps (design, section 5, "Momentum and sums"). Pure; arithmetic only.

The rule is ``h <- gamma*h + u; w <- w + h``. What a window of m places does to (w, h) is linear in its updates, so the
window travels as two tensors, or as one if gamma is 0::

    S = sum u_j          A = sum gamma^(m-j) u_j          (u_j the update at place j, 1 to m)

    w <- w + (S - gamma*A) / (1-gamma) + gamma*(1-gamma^m)/(1-gamma) * h          h <- gamma^m * h + A

which is the form with ``z = w + gamma/(1-gamma) h`` of the design, solved for w. S and A are sums over the updates, so
windows can be put one after the other, and windows of the same places can be laid over each other: a worker folds its
own updates, wherever they stand, with empty places between them, and what several workers folded adds up to the window.

Accuracy: ``S - gamma*A`` loses up to ``1 / (1-gamma)`` of the precision of one step. A window of one is therefore taken
as the rule has it, bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

from mlfabric.errors import UsageError

__all__ = ["UpdateSum", "Vector"]


class Vector(Protocol):
    """What numpy arrays and torch tensors have in common; parts are views."""

    def __add__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __getitem__(self, key: Any, /) -> Any: ...


V = TypeVar("V", bound=Vector)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSum(Generic[V]):
    """What the updates within a window of ``count`` places add up to; places may be empty.

    Methods that end in ``in_place`` write to the tensors that they are called on, and nowhere else: those must not be
    shared with another sum or be one another. They need memory for one more tensor of their length; call them on
    ``part`` after ``part`` to need less.

    Args:
        gamma: momentum, 0 to below 1.
        count: places, >= 0.
        total: S, of any shape.
        history: A, of the same shape; None if gamma is 0.
    """

    gamma: float
    count: int
    total: V
    history: V | None

    def __post_init__(self) -> None:
        if not 0 <= self.gamma < 1:
            raise UsageError(f"gamma={self.gamma}; allowed: 0 to below 1")
        if (self.history is None) != (self.gamma == 0):
            given = "no history" if self.history is None else "a history"
            raise UsageError(f"gamma={self.gamma} with {given}; allowed: a history if and only if gamma is above 0")

    @classmethod
    def of(cls, update: V, gamma: float) -> Self:
        """Make the window of one update; its tensors are the update itself."""
        return cls(gamma=gamma, count=1, total=update, history=update if gamma > 0 else None)

    def then(self, later: UpdateSum[V]) -> UpdateSum[V]:
        """Return the window of this one's places followed by those of ``later``.

        Raises:
            UsageError: they are not of one gamma.
        """
        self._check_gamma(later)
        history = None
        if self.history is not None:
            history = self.history * self.gamma**later.count + later.history
        return replace(self, count=self.count + later.count, total=self.total + later.total, history=history)

    def waited(self, places: int) -> UpdateSum[V]:
        """Return the window with ``places`` empty ones after it: others' updates stand there."""
        history = None if self.history is None else self.history * self.gamma**places
        return replace(self, count=self.count + places, history=history)

    def beside(self, other: UpdateSum[V]) -> UpdateSum[V]:
        """Return what both add up to; their last places are one and the same, and no place is taken by both.

        Raises:
            UsageError: they are not of one gamma.
        """
        self._check_gamma(other)
        history = None if self.history is None else self.history + other.history
        return replace(self, count=max(self.count, other.count), total=self.total + other.total, history=history)

    def part(self, start: int, stop: int) -> UpdateSum[V]:
        """Return elements ``start`` to ``stop`` (of the first dimension), as views."""
        history = None if self.history is None else self.history[start:stop]
        return replace(self, total=self.total[start:stop], history=history)

    def add_in_place(self, other: UpdateSum[V], behind: int) -> None:
        """Add what stands within this window, ``behind`` places before its end; in any order.

        This is how an aggregator sums what arrives: ``count`` is known from the start, its tensors begin as zeros.

        Raises:
            UsageError: they are not of one gamma, both tensors are one, or the window has no such places.
        """
        self._check_writable(other)
        if not 0 <= behind <= self.count - other.count:
            raise UsageError(
                f"{other.count} places, {behind} before the end of a window of {self.count}; "
                f"allowed: 0 to {self.count - other.count} before its end"
            )
        total, history, theirs = self.total, self.history, other.history
        total += other.total
        if history is not None and theirs is not None:
            history += theirs if behind == 0 else theirs * self.gamma**behind

    def append_in_place(self, later: UpdateSum[V], skipped: int = 0) -> UpdateSum[V]:
        """Put ``later`` behind this window, with ``skipped`` empty places between them.

        This is how a worker folds updates that its replica has not got yet.

        Returns:
            The longer window, in the same tensors; this one is no more.

        Raises:
            UsageError: they are not of one gamma, or both tensors are one.
        """
        self._check_writable(later)
        total, history = self.total, self.history
        total += later.total
        if history is not None:
            history *= self.gamma ** (skipped + later.count)
            history += later.history
        return replace(self, count=self.count + skipped + later.count)

    def apply(self, weights: V, history: V | None) -> tuple[V, V | None]:
        """Return weights and history as ``count`` single steps would leave them.

        Args:
            weights, history: of the same shape; without momentum a history is handed back as it is.

        Raises:
            UsageError: there is momentum, but no history.
        """
        if self.history is None:
            return weights + self.total, history
        before = _given(history)
        if self.count == 1:
            after = before * self.gamma + self.total
            return weights + after, after
        moved = (self.total - self.history * self.gamma) * (1 / (1 - self.gamma))
        moved = moved + before * coasting(self.gamma, self.count)
        return weights + moved, before * self.gamma**self.count + self.history

    def apply_in_place(self, weights: V, history: V | None) -> None:
        """Bring weights and history to where ``count`` single steps would leave them; see :meth:`apply`."""
        if self.history is None:
            weights += self.total
            return
        after = _given(history)
        if self.count != 1:
            weights += (self.total - self.history * self.gamma) * (1 / (1 - self.gamma))
            weights += after * coasting(self.gamma, self.count)
        after *= self.gamma**self.count
        after += self.history
        if self.count == 1:
            weights += after

    def _check_gamma(self, other: UpdateSum[V]) -> None:
        if other.gamma != self.gamma:
            raise UsageError(f"sums with gamma={self.gamma} and gamma={other.gamma}; allowed: sums of one job")

    def _check_writable(self, other: UpdateSum[V]) -> None:
        self._check_gamma(other)
        if self.total is self.history:
            raise UsageError("total and history are one tensor; give each its own to add in place")


def coasting(gamma: float, steps: int) -> float:
    """Return how far ``steps`` steps without an update carry the weights, in histories: gamma + ... + gamma^steps."""
    if gamma == 0:
        return 0.0
    return gamma / (1 - gamma) * -math.expm1(steps * math.log(gamma))


def _given(history: V | None) -> V:
    if history is None:
        raise UsageError("momentum, but no history; give the history, zeros at first")
    return history
