"""The rounds of AllReduce: requests and reports of workers, and instructions to them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from mlfabric.protocol.identities import ReduceId, ReduceOp, RoundId
from mlfabric.protocol.told import SaidByWorker, Told, ToldOfModel
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
    """A worker has a tensor to be summed with those of the others, after all of its earlier requests.

    Args:
        dtype: of the tensor, as in a layout.
        together: the first round waits until this many workers have joined, >= 1; later, how many the last round had.
        settled: the last round whose result every worker has, as far as this one knows.
        arrived: the attempt whose result this worker has; others may not have it.
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
class RoundArrived(SaidByWorker):
    """A worker has the result of this attempt, and has handed on what it was to hand on.

    ``up_bps`` and ``down_bps`` are the best rates of its host's link meanwhile; 0 if unknown.
    """

    round: RoundId
    up_bps: int = 0
    down_bps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBroken(SaidByWorker):
    """A worker cannot do its part of this attempt; ``detail`` says why."""

    round: RoundId
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbed(SaidByWorker):
    """A worker was sent a probe: at which rate it came.

    Args:
        worker: who received it.
        round: after which it was sent.
        source: the worker that sent it.
        bps: without headers, > 0.
    """

    round: RoundId
    source: str
    bps: int


class Peer(NamedTuple):
    """The other end of an edge, and the ticket for it; ``address`` is "" if the other end connects to this worker.

    ``most_bps`` limits the rate at which this worker sends to it; 0 if the links need no limit.
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
        inputs: workers that offer sums, or tensors of their own.
        parent: the worker that is offered the sum of these and this worker's own; None at the root.
        source: the worker from which the result is fetched; None at the root.
        takers: workers that fetch the result here.
        rate_bps: the approximate rate at which to spread each of the streams; 0 for full speed.
    """

    start: int
    end: int
    inputs: tuple[Peer, ...]
    parent: Peer | None
    source: Peer | None
    takers: tuple[Peer, ...]
    rate_bps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Told):
    """Take part in this attempt; an earlier one for the same ``reduce`` is void. ``workers`` is how many take part."""

    reduce: ReduceId
    round: RoundId
    workers: int
    parts: tuple[ReducePart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReduce(Told):
    """This attempt is void; there will be another."""

    round: RoundId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceSettled(Told):
    """Every one of ``workers`` workers has the result of this attempt."""

    reduce: ReduceId
    round: RoundId
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceFailed(Told):
    """Give this up; ``reason`` says why."""

    reduce: ReduceId


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(ToldOfModel):
    """Send some bytes that mean nothing to each of the targets in turn, and time those that come from the sources.

    Links are idle now, so this shows their rates. Earlier probes are void.

    Args:
        round: that has just been settled.
        size_bytes: of each, > 0.
        slot_ns: the time after which the next one begins.
    """

    round: RoundId
    size_bytes: int
    targets: tuple[Peer, ...]
    sources: tuple[Peer, ...]
    slot_ns: int
