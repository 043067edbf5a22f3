"""How a replica replaces its primary, and how members are told (design, section 6, "Promotion"). Pure."""

from __future__ import annotations

from typing import NamedTuple

from mlfabric.protocol.identities import Commit
from mlfabric.protocol.told import Told, ToldOfModel
from mlfabric.values import dataclass

__all__ = ["GroupOf", "NewServer", "Promote"]


class GroupOf(NamedTuple):
    """Updates of a model that were committed together."""

    model: str
    commits: tuple[Commit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote(Told):
    """Apply what you hold of the log, then come as the server of this name; until you are admitted nothing has changed.

    Args:
        server: the server that it replaces.
        server_epoch: its new epoch, greater than any before.
        known: commits that the primary reported after the version that the replica is known to have; those that the
            replica does not have are lost.
        foretold: updates that the primary may have committed after these, and whose bytes the replica has; their
            versions are numbered in this order.
    """

    server: str
    server_epoch: int
    known: tuple[GroupOf, ...] = ()
    foretold: tuple[GroupOf, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewServer(ToldOfModel):
    """Another process serves this model: what is under way to or from an earlier one is over; say all that is open.

    Args:
        server_epoch: of the new one; messages under another epoch no longer count.
    """

    server_epoch: int
