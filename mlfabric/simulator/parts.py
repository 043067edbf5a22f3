"""A stand-in for the store of a part of a model: a step is prepared beside the weights, then taken or thrown away.

The numbers are those of :mod:`mlfabric.simulator.double`. Each pin keeps the version that it was made for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlfabric.protocol import GetId, ServerHolds, UpdateId
from mlfabric.server.actions import ApplyStep, CommitStep, PrepareStep, StepKind
from mlfabric.simulator.exact import PRIME, Image, Weights, mean_of, single_step, sum_step
from mlfabric.specs import RuleSpec

__all__ = ["Checkpoint", "PartStore", "Preparation", "result_of", "step_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a server writes of a part after a step."""

    holds: ServerHolds
    weights: Weights

    def resumed(self) -> ServerHolds:
        """Return what a server holds that goes on from here, as ``server/resume.py`` does."""
        return replace(self.holds, received=(), replica="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """A step that is prepared: the order, the updates in it, and the weights that it leads to."""

    order: PrepareStep
    members: tuple[UpdateId, ...]
    weights: Weights


def result_of(
    rule: RuleSpec, kind: StepKind, lrs: tuple[float, ...], weights: Weights, images: Sequence[Image]
) -> Weights:
    """Return the weights and history that a step leads to."""
    match kind:
        case StepKind.ONE:
            return single_step(rule, weights, images[0][0], lrs[0])
        case StepKind.SUM:
            return sum_step(rule, weights, images[0], lrs)
        case StepKind.MEAN:
            total = sum(image[0] for image in images) % PRIME
            return single_step(rule, weights, mean_of(total, len(lrs)), lrs[0])


def step_of(order: PrepareStep) -> ApplyStep:
    """Return a step that is prepared as one that is applied in one go."""
    return ApplyStep(
        model=order.model, transfers=order.transfers, kind=order.kind, lrs=order.lrs, version=order.version
    )


class PartStore:
    """The weights of one part of a model."""

    def __init__(self, rule: RuleSpec) -> None:
        self.version = 0
        self.prepared: Preparation | None = None
        self._rule = rule
        self._weights: Weights | None = None
        self._pins: dict[GetId, tuple[int, int]] = {}

    @property
    def value(self) -> int:
        """The weights."""
        assert self._weights is not None, "the part has no weights"
        return self._weights[0]

    @property
    def pins(self) -> int:
        """How many gets hold a version."""
        return len(self._pins)

    @property
    def weights(self) -> Weights:
        """The weights and their history."""
        assert self._weights is not None, "the part has no weights"
        return self._weights

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        self._weights, self.version = checkpoint.weights, checkpoint.holds.version.number

    def initialise(self, value: int) -> None:
        """Take the first weights."""
        assert self._weights is None, "the part was given weights twice"
        self._weights = (value, 0)

    def prepare(self, order: PrepareStep, members: tuple[UpdateId, ...], images: Sequence[Image]) -> None:
        """Make the first pass of a step; the weights stay as they are."""
        assert self.prepared is None, f"{order} is prepared while {self.prepared} is"
        assert self._weights is not None, "the part has no weights"
        weights = result_of(self._rule, order.kind, order.lrs, self._weights, images)
        self.prepared = Preparation(order=order, members=members, weights=weights)

    def commit(self, order: CommitStep) -> Preparation:
        """Take the step that was prepared."""
        prepared, self.prepared = self.prepared, None
        assert prepared is not None, f"{order} though nothing is prepared"
        assert (prepared.order.unit, prepared.order.transfers) == (order.unit, order.transfers), f"{order}: {prepared}"
        assert order.version.number == self.version + 1, f"{order} after version {self.version}"
        self._weights, self.version = prepared.weights, order.version.number
        return prepared

    def discard(self) -> None:
        """Throw the step away that was prepared."""
        assert self.prepared is not None, "there is nothing to throw away"
        self.prepared = None

    def pin(self, get: GetId, number: int) -> None:
        """Keep the present version for a get."""
        assert get not in self._pins, f"{get} is pinned twice"
        assert number == self.version, f"{get} is pinned at version {number}; the part is at {self.version}"
        self._pins[get] = (self.version, self.value)

    def unpin(self, get: GetId) -> None:
        """Let a version go."""
        del self._pins[get]

    def pinned(self, get: GetId) -> tuple[int, int]:
        """Return the version that is kept for a get, and its weights."""
        assert get in self._pins, f"{get} is served though it was not pinned"
        return self._pins[get]
