"""A model that is a ledger: its weights alone say which updates were applied, and how often.

Every update of every worker has a place of its own in the tensor ``marks``, and adds one there; all elements of the
tensor ``ballast`` grow by one with every version. With ``RuleSpec(lr=1.0)`` all of this is arithmetic of small whole
numbers in float64, exact in whatever order and grouping updates are added. So the weights are a witness that no service
can talk to: an update that is lost, doubled or torn shows, whatever the logs say.

Where each update makes a version (``is_mean`` false), an element of ``marks`` holds ``DIGITS`` updates, as digits to
the base 4: applied once is 1, twice 2. Where a version is the mean of several updates, an element holds one update,
which adds one over the number of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from mlfabric.protocol import ModelVersion

__all__ = ["BASE", "DIGITS", "Contents", "Ledger"]

BASE = 4
DIGITS = 24


class Contents(NamedTuple):
    """What a ledger held at a version."""

    version: ModelVersion
    marks: np.ndarray
    ballast: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """How a ledger is divided.

    Args:
        writers: how many workers can have a part of it, one after the other or at the same time; >= 1.
        slots: elements of ``marks`` for each; >= 1.
        ballast: elements of ``ballast``; >= 1. They make updates as large as transfers should be.
        is_mean: whether a version is the mean of several updates.
    """

    writers: int
    slots: int = 16
    ballast: int = 8192
    is_mean: bool = False

    @property
    def updates(self) -> int:
        """How many updates each writer can make."""
        return self.slots if self.is_mean else self.slots * DIGITS

    def model(self) -> dict[str, torch.Tensor]:
        """Return an empty ledger, to be registered."""
        return {
            "marks": torch.zeros(self.writers * self.slots, dtype=torch.float64, requires_grad=True),
            "ballast": torch.zeros(self.ballast, dtype=torch.float64, requires_grad=True),
        }

    def give_gradients(self, model: dict[str, torch.Tensor], writer: int, update: int) -> None:
        """Give the model the gradients of a writer's update of this number, from 0."""
        slot, digit = (update, 0) if self.is_mean else divmod(update, DIGITS)
        marks = torch.zeros_like(model["marks"])
        marks[writer * self.slots + slot] = -float(BASE**digit)
        model["marks"].grad = marks
        model["ballast"].grad = torch.full_like(model["ballast"], -1.0)

    def flaw(self, ballast: np.ndarray, version: int) -> str:
        """Say what is wrong with the ballast of a model of this version; "" if nothing is."""
        low, high = float(ballast.min()), float(ballast.max())
        if low < high and not self._equal(low, high):
            return f"version {version} is torn: its elements were changed {low:g} to {high:g} times"
        return "" if self._equal(low, version) else f"version {version} holds {low:g} versions"

    def _equal(self, one: float, other: float) -> bool:
        return abs(one - other) <= (1e-6 if self.is_mean else 0.0)

    def applied(self, marks: np.ndarray, writer: int) -> np.ndarray:
        """Return how often each update of a writer was applied; where versions are means, the shares that it had.

        Raises:
            ValueError: the marks are nothing that updates can make.
        """
        own = marks[writer * self.slots : (writer + 1) * self.slots]
        if self.is_mean:
            return own
        whole = own.astype(np.int64)
        if not np.array_equal(whole, own) or (whole < 0).any() or (whole >= BASE**DIGITS).any():
            raise ValueError(f"the marks of writer {writer} are no sums of its updates: {own.tolist()}")
        digits = whole[:, None] // BASE ** np.arange(DIGITS, dtype=np.int64) % BASE
        return np.asarray(digits.reshape(-1))
