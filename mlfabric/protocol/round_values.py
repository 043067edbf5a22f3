"""The rounds of an AllReduce: what workers ask for and report, and what they are told. Pure."""

from __future__ import annotations

from typing import NamedTuple

from mlfabric.protocol.identities import ReduceId, ReduceOp, RoundId
from mlfabric.values import dataclass

__all__ = [
    "CancelReduce",
    "LinkProbed",
    "Peer",
    "Probe",
    "Reduce",
    "ReduceFailed",
    "ReducePart",
    "ReduceRequested",
    "ReduceSettled",
    "RoundArrived",
    "RoundBroken",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceRequested:
    """A worker has a tensor that is to be summed with those of the others, after all that it asked for before.

    Args:
        dtype: of the tensor, as in a layout.
        together: the first round waits until so many workers have joined, >= 1; after it, how many the last one had.
        settled: the last round whose result every worker has, as far as this one knows.
        arrived: the attempt whose result is here; others may not have it.
    """

    reduce: ReduceId
    model: str
    size_bytes: int
    dtype: str
    op: ReduceOp
    together: int = 1
    settled: RoundId | None = None
    arrived: RoundId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundArrived:
    """A worker has the result of this attempt, and has handed on what it was to hand on.

    ``up_bps`` and ``down_bps`` are what its host's link carried at best meanwhile; 0 if unknown.
    """

    worker: str
    model: str
    round: RoundId
    up_bps: int = 0
    down_bps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBroken:
    """A worker cannot do its part of this attempt; ``detail`` says why."""

    worker: str
    model: str
    round: RoundId
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbed:
    """A worker was sent a probe: at which rate it came.

    Args:
        worker: who received it.
        round: after which it was sent.
        source: the worker that sent it.
        bps: without headers, > 0.
    """

    worker: str
    model: str
    round: RoundId
    source: str
    bps: int


class Peer(NamedTuple):
    """The other end of an edge, and the ticket that is shown on it; ``address`` is "" if it comes to us.

    ``most_bps`` is at most at which what we send to it is to be spread out; 0 if links carry more than comes.
    """

    worker: str
    address: str
    ticket: bytes
    most_bps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducePart:
    """What a worker does for one range of the tensor's bytes: two trees, into a root and out of it.

    Args:
        start, end: the range; ``start`` is a multiple of 16.
        inputs: who offers the sum of its own and others' tensors.
        parent: who is offered the sum of these and our own; None at the root.
        source: from whom the result is fetched; None at the root.
        takers: who fetches the result here.
        rate_bps: at about which each of the streams is to be spread out; 0 for as fast as it goes.
    """

    start: int
    end: int
    inputs: tuple[Peer, ...]
    parent: Peer | None
    source: Peer | None
    takers: tuple[Peer, ...]
    rate_bps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """Take part in this attempt; an earlier one for the same ``reduce`` is void. ``workers`` is how many take part."""

    to: str
    reduce: ReduceId
    round: RoundId
    workers: int
    parts: tuple[ReducePart, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReduce:
    """This attempt is void; there will be another."""

    to: str
    round: RoundId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceSettled:
    """Every one of ``workers`` workers has the result of this attempt."""

    to: str
    reduce: ReduceId
    round: RoundId
    workers: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceFailed:
    """Give this up; ``reason`` says why."""

    to: str
    reduce: ReduceId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Send some bytes that mean nothing to each of the targets in turn, and time those that come from the sources.

    Links are idle now, so this shows what they carry. What is left of an earlier one is void.

    Args:
        round: that has just been settled.
        size_bytes: of each, > 0.
        slot_ns: after so long the next one is begun.
    """

    to: str
    model: str
    round: RoundId
    size_bytes: int
    targets: tuple[Peer, ...]
    sources: tuple[Peer, ...]
    slot_ns: int
    reason: str
