"""How a replica takes its primary's place, and how members learn of it (design, section 6, "Promotion"). Pure."""

from __future__ import annotations

from typing import NamedTuple

from mlfabric.protocol.identities import Commit
from mlfabric.values import dataclass

__all__ = ["GroupOf", "NewServer", "Promote"]


class GroupOf(NamedTuple):
    """What was committed together of a model."""

    model: str
    commits: tuple[Commit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promote:
    """Apply what you hold of the log, then come as the server of this name; until you are admitted nothing has changed.

    Args:
        server: whose place it takes.
        server_epoch: that it serves under: greater than any before.
        known: what the primary has told of after the version that the replica is known to have: if the replica has not
            come to it, it is lost.
        foretold: what the primary may have committed after all that, and the replica has the bytes of; versions are
            numbered as they come.
    """

    to: str
    server: str
    server_epoch: int
    known: tuple[GroupOf, ...] = ()
    foretold: tuple[GroupOf, ...] = ()
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewServer:
    """Another process serves this model: what is under way to or from an earlier one is over; say all that is open.

    Args:
        server_epoch: of the new one; what is said under another epoch counts no longer.
    """

    to: str
    model: str
    server_epoch: int
    reason: str
