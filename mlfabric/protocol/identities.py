"""Identities of updates, gets, sums, rounds and versions, and outcomes of updates. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from mlfabric.model.samples import Samples
from mlfabric.values import dataclass

__all__ = [
    "Commit",
    "Committed",
    "DropReason",
    "Dropped",
    "GetId",
    "Lost",
    "ModelVersion",
    "Outcome",
    "ReduceId",
    "ReduceOp",
    "RoundId",
    "SumId",
    "TransferId",
    "UpdateId",
    "UpdateKind",
]


class UpdateId(NamedTuple):
    """Identity of an update for ever: its worker, that worker's incarnation, a counter from 0.

    As a tuple it equals the :class:`GetId` with the same numbers, so keep the two in separate tables.
    """

    worker: str
    incarnation: int
    counter: int

    def __str__(self) -> str:
        return f"{self.worker}#{self.counter}"


class GetId(NamedTuple):
    """Identity of a get, counted separately from updates."""

    worker: str
    incarnation: int
    counter: int

    def __str__(self) -> str:
        return f"{self.worker}?{self.counter}"


class SumId(NamedTuple):
    """Identity of a sum for ever: the number of the scheduler's term, and a counter from 0."""

    term: int
    counter: int

    def __str__(self) -> str:
        return f"sum {self.counter}"


class ReduceId(NamedTuple):
    """Identity of a worker's request for an AllReduce, counted separately from updates and gets."""

    worker: str
    incarnation: int
    counter: int

    def __str__(self) -> str:
        return f"{self.worker}+{self.counter}"


class RoundId(NamedTuple):
    """Identity of one attempt at an AllReduce of all workers: the number of the scheduler's term, and a counter from 1.

    Later ones are greater.
    """

    term: int
    counter: int

    def __str__(self) -> str:
        return f"round {self.counter}"


TransferId = UpdateId | SumId
"""What is sent to a server in one piece: an update, or the sum of several."""


class ModelVersion(NamedTuple):
    """A model's version; ``epoch`` grows when a server resumes or is promoted, so pairs compare correctly."""

    epoch: int
    number: int

    def reaches(self, wanted: ModelVersion) -> bool:
        """Tell whether this is at least the version that is waited for; under another epoch nobody waits."""
        return self.epoch != wanted.epoch or self.number >= wanted.number


class UpdateKind(Enum):
    """What the bytes of an update contain."""

    GRADIENT = "gradient"
    INITIAL = "initial weights"
    STATE = "weights and optimizer state of one version"


class ReduceOp(Enum):
    """What an AllReduce makes of the tensors of all workers."""

    SUM = "sum"
    MEAN = "mean"


class DropReason(Enum):
    """Why an update was not, and will not be, applied."""

    DEADLINE_PAST = "its deadline passed before it could be planned"
    DEADLINE_CONFLICT = "more updates were due at its deadline than positions were left"
    NEXT_IS_FASTER = "the next update would finish before it (the paper's rule)"
    NO_CAPACITY = "a link on its path has no capacity"
    DELAY_BOUND = "the server found its delay above the bound"
    NOT_FINITE = "it holds NaN or Inf, or its step would"
    ROLLED_BACK = "it was computed on a version that was lost"
    DUPLICATE = "it was applied before"
    FUTURE_VERSION = "it claims a version that does not exist yet"
    WRONG_LAYOUT = "its layout or length is not the model's"
    CHANGED = "its tensors were changed while it was on its way"
    NOT_REPLICATED = "its worker is gone, and without it the replica cannot get it"
    WORKER_GONE = "its worker is gone, and not all of its parts are here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The update was applied: it made ``version``, with delay ``tau``."""

    version: ModelVersion
    tau: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """The update was refused and never applied; ``detail`` says it in words."""

    cause: DropReason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The update's outcome cannot be known, or a server died with it; within a stated bound, and counted."""

    detail: str


Outcome = Committed | Dropped | Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One update's entry in a server's commit log as the scheduler sees it.

    Args:
        version: that it made.
        step_norm: l2 norm of the change that its group made to the weights; the same for all of the group.
        samples: what the update was computed from, if that is known.
    """

    update: UpdateId
    version: ModelVersion
    tau: int
    lr: float
    step_norm: float
    samples: Samples = ()
