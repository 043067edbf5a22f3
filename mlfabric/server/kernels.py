"""Arithmetic of steps on flat tensors: what is made of an update before anything changes, and the change itself.

Every kernel works in two passes. ``make`` reads weights and state and sums norms; it may use the update's own memory as
scratch. ``take`` writes weights and state, and cannot fail. Between the two the step can be thrown away.

Arithmetic is in the tensor's dtype; for float16 and bfloat16 in float32, the step rounded once and the weight once.
Norms are summed in float64. They are finite exactly if all elements are (short of float64 elements beyond 1e154,
whose squares overflow: refused likewise), so they are also the test for NaN and Inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch

from mlfabric.model.stepping import Transition

__all__ = [
    "CHUNK_ELEMENTS",
    "COMPUTE_DTYPES",
    "AdamKernel",
    "Kernel",
    "LinearKernel",
    "Norms",
    "SumKernel",
    "Tensors",
    "all_finite",
    "chunks",
    "square_norm",
]

# Just below the size from which torch splits every single operation over its threads. Each split ends in a barrier
# that costs a time slice where cores are shared: on a busy host a step of 100 MB took seconds instead of 0.1 s.
CHUNK_ELEMENTS = 32_752
COMPUTE_DTYPES = {torch.float16: torch.float32, torch.bfloat16: torch.float32}

Tensors = Sequence[torch.Tensor]
"""Flat tensors of one length and dtype: the images of an update, or of optimizer state."""


class Norms(NamedTuple):
    """Squared l2 norms of what came, of the change to the stored weights, and of the new state where it is new."""

    update_sq: float = 0.0
    step_sq: float = 0.0
    state_sq: float = 0.0

    def plus(self, more: Norms) -> Norms:
        """Return the norms of both together."""
        return Norms(self.update_sq + more.update_sq, self.step_sq + more.step_sq, self.state_sq + more.state_sq)

    @property
    def are_finite(self) -> bool:
        """Whether nothing of it is NaN or Inf."""
        return all(map(math.isfinite, self))


class Kernel(Protocol):
    """One way to make a step of an update, for tensors of one kind."""

    def make(self, updates: Tensors, weights: torch.Tensor, state: Tensors) -> Norms:
        """Make the step; weights and state are only read, the updates' memory becomes the kernel's."""

    def take(self, updates: Tensors, weights: torch.Tensor, target: torch.Tensor, state: Tensors) -> None:
        """Write the new weights to ``target``, which may be ``weights``, and the new state; after ``make``."""

    def is_finite(self, updates: Tensors, weights: torch.Tensor, state: Tensors) -> bool:
        """Tell whether this part of what ``make`` made is finite."""


def chunks(elements: int) -> Iterator[slice]:
    """Cut a flat tensor into parts that one thread works through near its caches."""
    for start in range(0, elements, CHUNK_ELEMENTS):
        yield slice(start, start + CHUNK_ELEMENTS)


def all_finite(flat: torch.Tensor) -> bool:
    """Tell whether no element is NaN or Inf."""
    return all(bool(flat[part].isfinite().all()) for part in chunks(flat.numel()))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearKernel:
    """``step = momentum * history + gradient * update + decay * weight``; the step is the next history.

    For one update; or a sum of updates without momentum, which has its learning rates inside.
    """

    momentum: float
    gradient: float
    decay: float

    def make(self, updates: Tensors, weights: torch.Tensor, state: Tensors) -> Norms:
        """Turn the update into the step, in place."""
        norms = Norms()
        for part in chunks(weights.numel()):
            norms = norms.plus(self._make_chunk(updates[0][part], weights[part], [past[part] for past in state]))
        return norms

    def _make_chunk(self, update: torch.Tensor, weights: torch.Tensor, state: Tensors) -> Norms:
        step = update.to(COMPUTE_DTYPES.get(update.dtype, update.dtype))
        update_sq = square_norm(step)
        step.mul_(self.gradient)
        if self.decay:
            step.add_(weights, alpha=self.decay)
        for history in state:
            step.add_(history, alpha=self.momentum)
        update.copy_(step)
        return Norms(update_sq, _square_of_change(weights, update))

    def take(self, updates: Tensors, weights: torch.Tensor, target: torch.Tensor, state: Tensors) -> None:
        """Add the step; it is the new history."""
        _add_and_keep(updates[0], updates[0], weights, target, state)

    def is_finite(self, updates: Tensors, weights: torch.Tensor, state: Tensors) -> bool:
        """Tell whether the step and the weights after it are finite."""
        return all_finite(updates[0]) and all_finite(updates[0] + weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumKernel:
    """A sum of updates under momentum, two images: ``(w, h) <- P (w, h) + (first, second)``."""

    places: Transition

    def make(self, updates: Tensors, weights: torch.Tensor, state: Tensors) -> Norms:
        """Turn the first image into the change of the weights and the second into the new history, in place."""
        norms = Norms()
        for part in chunks(weights.numel()):
            norms = norms.plus(self._make_chunk(updates[0][part], updates[1][part], weights[part], state[0][part]))
        return norms

    def _make_chunk(
        self, first: torch.Tensor, second: torch.Tensor, weights: torch.Tensor, history: torch.Tensor
    ) -> Norms:
        dtype = COMPUTE_DTYPES.get(first.dtype, first.dtype)
        change, after = first.to(dtype), second.to(dtype)
        update_sq = square_norm(change) + square_norm(after)
        change.add_(history, alpha=self.places.wh)
        after.add_(history, alpha=self.places.hh)
        if self.places.ww != 1:
            change.add_(weights, alpha=self.places.ww - 1)
            after.add_(weights, alpha=self.places.hw)
        first.copy_(change)
        second.copy_(after)
        return Norms(update_sq, _square_of_change(weights, first), square_norm(second))

    def take(self, updates: Tensors, weights: torch.Tensor, target: torch.Tensor, state: Tensors) -> None:
        """Add the change, keep the history."""
        _add_and_keep(updates[0], updates[1], weights, target, state)

    def is_finite(self, updates: Tensors, weights: torch.Tensor, state: Tensors) -> bool:
        """Tell whether the change, the weights after it and the new history are finite."""
        return all(map(all_finite, updates)) and all_finite(updates[0] + weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamKernel:
    """The step of ``torch.optim.Adam`` with the update times ``scale``, operation by operation.

    State is the averages of gradients and of their squares. Nothing is kept between the passes: the second makes the
    same numbers again, which costs less than memory for them.

    Args:
        decoupled: decay shrinks the weights, as in ``torch.optim.AdamW``; else it is added to the gradient.
        steps: how many were made, this one included.
    """

    lr: float
    beta1: float
    beta2: float
    epsilon: float
    decay: float
    scale: float
    steps: int
    decoupled: bool = False

    def at(self, rate: float, decay: float) -> AdamKernel:
        """Return the same step with the rates of an update: a multiple of the learning rate, and the weight decay."""
        return replace(self, lr=self.lr * rate, decay=decay)

    def make(self, updates: Tensors, weights: torch.Tensor, state: Tensors) -> Norms:
        """Sum the norms; nothing is written."""
        norms = Norms()
        for part in chunks(weights.numel()):
            update, before = updates[0][part], weights[part]
            after, mean, square = self._stepped(update, before, state[0][part], state[1][part])
            step_sq = square_norm(after.double().sub_(before.double()))
            norms = norms.plus(Norms(square_norm(update), step_sq, square_norm(mean) + square_norm(square)))
        return norms

    def take(self, updates: Tensors, weights: torch.Tensor, target: torch.Tensor, state: Tensors) -> None:
        """Write weights and averages."""
        for part in chunks(weights.numel()):
            mean, square = state[0][part], state[1][part]
            made = self._stepped(updates[0][part], weights[part], mean, square)
            for kept, new in zip((target[part], mean, square), made, strict=True):
                kept.copy_(new)

    def is_finite(self, updates: Tensors, weights: torch.Tensor, state: Tensors) -> bool:
        """Tell whether the new weights and averages are finite."""
        return self.make(updates, weights, state).are_finite

    def _stepped(
        self, update: torch.Tensor, weights: torch.Tensor, mean: torch.Tensor, square: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        gradient = update if self.scale == 1 else update * self.scale
        if self.decay and self.decoupled:
            weights = weights * (1 - self.lr * self.decay)
        elif self.decay:
            gradient = gradient.add(weights, alpha=self.decay)
        mean = mean.lerp(gradient, 1 - self.beta1)
        square = (square * self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        root = square.sqrt().div_(math.sqrt(1 - self.beta2**self.steps)).add_(self.epsilon)
        return torch.addcdiv(weights, mean, root, value=-self.lr / (1 - self.beta1**self.steps)), mean, square


def _add_and_keep(
    change: torch.Tensor, kept: torch.Tensor, weights: torch.Tensor, target: torch.Tensor, state: Tensors
) -> None:
    for part in chunks(weights.numel()):
        torch.add(weights[part], change[part], out=target[part])
        for history in state:
            history[part].copy_(kept[part])


def square_norm(x: torch.Tensor) -> float:
    """Return the squared l2 norm, in float64."""
    return float(torch.linalg.vector_norm(x.double())) ** 2


def _square_of_change(weights: torch.Tensor, step: torch.Tensor) -> float:
    """Return the square of the difference of what is stored: what rounding does to the weights belongs to the norm."""
    return square_norm(torch.add(weights, step).double().sub_(weights.double()))
