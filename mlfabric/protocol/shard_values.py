"""How several servers, each with a shard of a model, commit the same steps in the same order (paper, 10.2). Pure.

A **unit** is what commits together: one push, or one iteration of a synchronous job. Every server with a shard of the
model prepares it, and only then all of them commit it, or all discard it::

    scheduler                       server of each part
      Prepare(unit) ────────────────▶  first pass
            ◀──────────────────────  Prepared(unit)
      Conclude(unit, commit) ───────▶  commits or throws away
            ◀──────────────────────  CommitsReported
"""

from __future__ import annotations

from mlfabric.protocol.identities import DropReason, ModelVersion, TransferId, UpdateId
from mlfabric.protocol.told import SaidByServer, ToldOfModel
from mlfabric.values import dataclass

__all__ = ["Conclude", "Prepare", "Prepared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(ToldOfModel):
    """Make the first pass of one step of a part: these transfers, which are all here, in this order; then say so.

    Args:
        unit: number of the unit, the same at all shards of the model; greater for later ones.
        transfers: a lone update, a sum, or all transfers of an iteration.
        version: the version that the step will make.
    """

    unit: int
    transfers: tuple[TransferId, ...]
    version: ModelVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclude(ToldOfModel):
    """Commit the unit that was prepared, or throw the step away and keep what it was made of."""

    unit: int
    commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(SaidByServer):
    """The first pass is made; or it was refused, and changed nothing.

    Args:
        culprits: the updates at fault (not finite, delay above the bound); empty if no update is at fault.
        cause: why these updates cannot be applied; None if accepted, or if no update is at fault.
        detail: a refusal in words.
    """

    unit: int
    accepted: bool
    culprits: tuple[UpdateId, ...] = ()
    cause: DropReason | None = None
    detail: str = ""
