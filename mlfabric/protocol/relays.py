"""Instructions to aggregators: which sums to make, which models to relay. Pure."""

from __future__ import annotations

from typing import NamedTuple

from mlfabric.protocol.identities import GetId, SumId, TransferId, UpdateId
from mlfabric.protocol.told import Told, ToldOfModel
from mlfabric.values import dataclass

__all__ = [
    "CancelHandOn",
    "CancelSum",
    "HandOn",
    "HandOnTo",
    "Sum",
    "SumInput",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SumInput:
    """One input of a sum.

    Args:
        first, second: factors of an update for the sum's first image, and for its second if it has one; an input that
            is a sum is added unchanged, image by image.
        size_bytes: of everything sent.
        after: as in :class:`Expect`, for transfers to this aggregator.
    """

    transfer: TransferId
    ticket: bytes
    first: float
    second: float
    size_bytes: int
    after: tuple[TransferId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum(Told):
    """Receive the inputs, add them up, and offer the sum to ``receiver`` at ``address``, showing the ticket.

    Args:
        members: the updates in it, in the order of commits.
        images: how many the sum has: 1, or 2 for a rule with momentum.
        cut_through: offer it at once and send while more arrives; else offer it once it is complete.
        rate_bps: of the sum; 0 means unpaced.
        seq: sums of lower ``seq`` are served first if memory is short.
    """

    sum: SumId
    model: str
    inputs: tuple[SumInput, ...]
    members: tuple[UpdateId, ...]
    images: int
    cut_through: bool
    receiver: str
    address: str
    ticket: bytes
    rate_bps: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelSum(ToldOfModel):
    """Give this sum up, whatever has arrived of it; who sends to it or waits for it is told."""

    sum: SumId


class HandOnTo(NamedTuple):
    """A receiver of a relayed model, and the ticket that it will show; ``rate_bps`` 0 means unpaced."""

    get: GetId
    ticket: bytes
    rate_bps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOn(Told):
    """Fetch the model from ``source`` for ``get``, a get of the aggregator's own, and send it on while it comes.

    Args:
        ticket: to be shown to ``source``.
        targets: the members that will fetch it; another aggregator's own get is a lower level.
    """

    get: GetId
    model: str
    source: str
    address: str
    ticket: bytes
    targets: tuple[HandOnTo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelHandOn(ToldOfModel):
    """Nobody will come any more for what was fetched as ``get``."""

    get: GetId
