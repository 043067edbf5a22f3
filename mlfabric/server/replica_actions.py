"""What happens to a replica and what its state machine asks its shell to do, besides what it shares with a server.

Pure values.
"""

from __future__ import annotations

from mlfabric.protocol import (
    Expect,
    FreeModel,
    GroupOf,
    HostModel,
    Logged,
    ModelVersion,
    Promote,
    ServerHolds,
    SumId,
    TransferId,
    Void,
)
from mlfabric.server import actions as act
from mlfabric.values import dataclass

__all__ = [
    "ApplyPrefix",
    "Part",
    "PlantSeed",
    "PrefixApplied",
    "PrefixRefused",
    "ReplicaAction",
    "ReplicaEvent",
    "SeedPlanted",
    "SeedRefused",
    "TakeOver",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPlanted:
    """A seed has become the model's store."""

    model: str
    transfer: SumId


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRefused:
    """A seed cannot be used; the store is as it was."""

    model: str
    transfer: SumId
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixApplied:
    """The store is at ``version`` now."""

    model: str
    version: ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRefused:
    """The store cannot make the steps that the primary made; it is as it was."""

    model: str
    detail: str


ReplicaEvent = (
    HostModel
    | FreeModel
    | act.StoreFreed
    | Expect
    | Void
    | Logged
    | Promote
    | act.TermBegan
    | act.Offered
    | act.Wanted
    | act.PayloadReceived
    | act.TransferBroken
    | SeedPlanted
    | SeedRefused
    | PrefixApplied
    | PrefixRefused
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a transfer brings into a prefix of the log.

    Args:
        place: of an update by itself its place in the prefix, from 1; of a window that of its last update.
        share: of an update by itself in its version's step.
        outdated: a later group follows in the prefix: the values that it brings of buffers are of no consequence.
    """

    transfer: TransferId
    place: int
    share: float = 1.0
    outdated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPrefix:
    """Make the steps of these versions at once.

    Args:
        parts: all that is in them.
        lrs: learning rate of each version; under ADAM of each of the updates, whose sum makes one step.
        is_mean: the mean of ADAM's updates makes one version (synchronous).
        values: how many updates of the prefix's last group are in it: so many values of a buffer have a mean.
        values_before: how many of that group were applied before.
        version: the last one that is made.
    """

    model: str
    parts: tuple[Part, ...]
    lrs: tuple[float, ...]
    is_mean: bool
    values: int
    values_before: int
    version: ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantSeed:
    """Make the model's store of this seed, instead of any before."""

    model: str
    transfer: SumId
    holds: ServerHolds
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """Come as the server whose place this replica takes, with the models as they are now: nothing changes them.

    Args:
        server: its name.
        holds: what it holds of each model.
        made: what was made of the models since the end of the primary's log, in order.
    """

    server: str
    holds: tuple[ServerHolds, ...]
    made: tuple[GroupOf, ...] = ()
    reason: str


ReplicaAction = (
    act.Grant
    | act.Refuse
    | act.Abandon
    | act.Answer
    | act.Forget
    | act.FreeStore
    | act.Report
    | ApplyPrefix
    | PlantSeed
    | TakeOver
)
