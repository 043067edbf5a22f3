"""Replication: messages from and to a primary, its replica and workers (paper, section 5.3). Pure."""

from __future__ import annotations

import math

from mlfabric.protocol.identities import Commit, ModelVersion, SumId, TransferId, UpdateId
from mlfabric.protocol.told import SaidByServer, ToldOfModel
from mlfabric.values import dataclass

__all__ = [
    "Fold",
    "Followed",
    "Following",
    "HeldBack",
    "Keep",
    "Logged",
    "NotKept",
    "Release",
    "ReplicaReported",
    "Replicate",
    "Seed",
    "Unfollowed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """The server whose models a replica follows, and how far each of them may be ahead of it (paper, section 5.3).

    Args:
        norm: l2 distance, >= 0; 0 for no lead at all, infinite for no such bound.
        updates: commits, >= 0; None for no such bound.
        is_seeded: it has a model, and could take its server's place.
    """

    server: str
    norm: float = math.inf
    updates: int | None = None
    is_seeded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReported:
    """What a replica holds of a model: it is at ``version`` and also has the bytes of these updates.

    Args:
        version: that it has applied: everything logged up to there and nothing else.
        held: updates that it holds unfolded and has not applied.
        term: of its seed, see :class:`Keep`; 0 before the first.
    """

    replica: str
    model: str
    term: int
    version: ModelVersion
    held: tuple[UpdateId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack(SaidByServer):
    """A primary does not commit these transfers, whose turn it is, until its replica holds more.

    Args:
        alone: they would exceed the bound even if the replica held all earlier commits.
    """

    transfers: tuple[TransferId, ...]
    alone: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotKept:
    """A worker or a replica cannot send or use what it was told to: only the primary's state can close the gap."""

    member: str
    model: str
    term: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep(ToldOfModel):
    """Keep every update of this model that is committed from now on, until told what becomes of it.

    A new term of the replica begins with nothing kept, and ends what an earlier one kept or sent. An empty ``receiver``
    ends it.

    Args:
        term: counts the seeds of the model's replica.
        receiver, address: the replica.
    """

    term: int
    receiver: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold(ToldOfModel):
    """Put a committed update that was kept into the window of updates that are to be sent together.

    Args:
        lrs: learning rates of the versions since the window's last one up to that of this update, which is the last; of
            a window's first update its own alone.
        share: of the update in its version's step: 1, or of an iteration of n updates 1 / n.
        begins: the update's group is later than everything in the window, so from here on only its values of buffers
            count.
    """

    term: int
    update: UpdateId
    lrs: tuple[float, ...]
    share: float
    begins: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(ToldOfModel):
    """Keep these updates no longer: the replica has them, or was seeded with them in it."""

    term: int
    updates: tuple[UpdateId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate(ToldOfModel):
    """Send to the replica, showing the ticket, one update, or the window as it is now; another one begins then.

    Repeat it until the replica has it, or the term is over. ``rate_bps`` 0 means unpaced.
    """

    term: int
    transfer: TransferId
    ticket: bytes
    rate_bps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged(ToldOfModel):
    """A group of the primary's commit log, for its replica."""

    commits: tuple[Commit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed(ToldOfModel):
    """Send weights and optimizer state, as they are at one version, to the replica at ``address``."""

    term: int
    transfer: SumId
    receiver: str
    address: str
    ticket: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed(ToldOfModel):
    """Commit only what keeps the lead over this replica within these bounds (design, section 5, "Replication").

    Args:
        version: that the replica is at.
        held: updates whose bytes it has besides.
        norm, updates: as in :class:`Following`.
    """

    replica: str
    version: ModelVersion
    held: tuple[UpdateId, ...]
    norm: float
    updates: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfollowed(ToldOfModel):
    """The model has no replica any more: nothing bounds the primary's lead."""
