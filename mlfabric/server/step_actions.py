"""What the store is asked to do with steps, and what it did. Pure values.

A step is applied in one go; that of a unit of work of a model in parts (design, section 5, "Several servers") is
prepared first, and committed or discarded on the scheduler's word.
"""

from __future__ import annotations

from enum import Enum

from mlfabric.protocol import ModelVersion, TransferId
from mlfabric.values import dataclass

__all__ = [
    "ApplyStep",
    "CommitStep",
    "DiscardStep",
    "PrepareRefused",
    "PrepareStep",
    "StepDiscarded",
    "StepDone",
    "StepKind",
    "StepPrepared",
    "StepRefused",
]


class StepKind(Enum):
    """How transfers become a step."""

    ONE = "the step of one update"
    SUM = "the steps of a sum's members, at once"
    MEAN = "one step of the mean of all members"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyStep:
    """Apply the buffers of these transfers together.

    Args:
        transfers: one; of a mean any number, to be added up in this order.
        lrs: the learning rate of each member, in the order of commits.
        version: the (last) one that is made.
    """

    model: str
    transfers: tuple[TransferId, ...]
    kind: StepKind
    lrs: tuple[float, ...]
    version: ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareStep:
    """Make the first pass of a unit's step in a copy of these buffers, which stay as they are; see ``ApplyStep``.

    Args:
        unit: of work, at most one of a model is prepared at a time.
    """

    model: str
    unit: int
    transfers: tuple[TransferId, ...]
    kind: StepKind
    lrs: tuple[float, ...]
    version: ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitStep:
    """Take the step that was prepared out of these transfers."""

    model: str
    unit: int
    transfers: tuple[TransferId, ...]
    version: ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardStep:
    """Throw the step away that was prepared."""

    model: str
    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """The store applied these transfers together; ``step_norm`` is the l2 norm of the whole change."""

    model: str
    transfers: tuple[TransferId, ...]
    step_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRefused:
    """The store found the step not finite; weights and state are as they were.

    Args:
        transfers: that were to be applied together.
        culprits: those of them that are to blame.
        spoilt: those that are not, and whose buffers hold them no more.
    """

    model: str
    transfers: tuple[TransferId, ...]
    detail: str
    culprits: tuple[TransferId, ...]
    spoilt: tuple[TransferId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrepared:
    """The store made the first pass of a unit's step, which waits to be committed or discarded."""

    model: str
    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRefused:
    """The store found a unit's step not finite; nothing was changed.

    Args:
        culprits: those transfers of the unit that are to blame, at least one.
    """

    model: str
    unit: int
    detail: str
    culprits: tuple[TransferId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDiscarded:
    """The store threw a prepared step away."""

    model: str
    unit: int
