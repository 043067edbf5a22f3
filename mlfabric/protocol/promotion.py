"""How a replica replaces its primary, and how members are told (design, section 6, "Promotion"). Pure."""

from __future__ import annotations

from typing import NamedTuple

from mlfabric.protocol.identities import Commit
from mlfabric.values import dataclass

__all__ = ["GroupOf", "NewServer", "Promote"]


class GroupOf(NamedTuple):
    """Updates of a model that were committed together."""

    model: str
    commits: tuple[Commit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """Apply what you hold of the log, then register as the server of this name; nothing changes until you are admitted.

    Args:
        server: the server that it replaces.
        server_epoch: its new epoch, greater than any before.
        known: commits that the primary reported after the version that the replica is known to have; those that the
            replica does not have are lost.
        foretold: updates that the primary may have committed after these, and whose bytes the replica has; their
            versions are numbered in this order.
    """

    to: str
    server: str
    server_epoch: int
    known: tuple[GroupOf, ...] = ()
    foretold: tuple[GroupOf, ...] = ()
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewServer:
    """Another process serves this model: transfers to and from the earlier one are void; announce everything open.

    Args:
        server_epoch: of the new one; messages under another epoch no longer count.
    """

    to: str
    model: str
    server_epoch: int
    reason: str
