"""One sum, one of its inputs, one model that is handed on, and one who waits for it: the rows of the tables. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from mlfabric.model.specs import ModelSpec
from mlfabric.protocol import GetId, HandOn, HandOnTo, ModelVersion, Sum, SumId, SumInput, TransferId
from mlfabric.transfer.offers import GetState, TransferState

__all__ = [
    "Handing",
    "Incoming",
    "RunningSum",
    "Stage",
    "Target",
]


@dataclass(slots=True, kw_only=True)
class Incoming:
    """An input that this aggregator was told of.

    Args:
        sum: what it goes into, as input ``index``.
        after: the transfers to this aggregator that the plan ends before this one starts.
        connection: where it was offered; None before, and when that has gone.
    """

    sum: SumId
    index: int
    plan: SumInput
    after: frozenset[TransferId]
    since_ns: int
    state: TransferState = TransferState.EXPECTED
    connection: int | None = None


class Stage(Enum):
    """How far a sum is."""

    WAITING = "waits for memory"
    SUMMING = "adds up what comes"
    OFFERED = "adds up what comes and sends it on"
    SEALING = "has everything and sends the rest of it"
    SENT = "waits for outcomes"


@dataclass(slots=True, kw_only=True)
class RunningSum:
    """A sum that this aggregator was told to make."""

    plan: Sum
    spec: ModelSpec
    stage: Stage = Stage.WAITING

    @property
    def order(self) -> tuple[int, SumId]:
        """Its place where memory is short."""
        return self.plan.seq, self.plan.sum

    @property
    def size_bytes(self) -> int:
        """Size of its payload."""
        return self.plan.images * self.spec.layout.size_bytes


@dataclass(slots=True, kw_only=True)
class Target:
    """Somebody whom a model is to be handed on to."""

    plan: HandOnTo
    state: GetState = GetState.PLANNED
    connection: int | None = None


@dataclass(slots=True, kw_only=True)
class Handing:
    """A model that is fetched and handed on.

    Args:
        fetching: its buffer is reserved and its source has been asked.
        version: what comes; None before its first byte.
        arrived: all of it is here.
    """

    plan: HandOn
    spec: ModelSpec
    since_ns: int
    fetching: bool = False
    version: ModelVersion | None = None
    arrived: bool = False
    targets: dict[GetId, Target] = field(default_factory=dict)
