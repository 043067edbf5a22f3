"""The rounds of AllReduce: requests and reports of workers, and instructions to them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from mlfabric.model.ranges import Ranges
from mlfabric.protocol.identities import ReduceId, ReduceOp, RoundId
from mlfabric.protocol.told import SaidByWorker, Told, ToldOfModel
from mlfabric.values import dataclass

__all__ = [
    "BeginState",
    "CancelReduce",
    "FetchState",
    "GiveState",
    "LinkProbed",
    "PassReduce",
    "Peer",
    "Probe",
    "Reduce",
    "ReduceFailed",
    "ReducePart",
    "ReduceRequested",
    "ReduceSettled",
    "RoundArrived",
    "RoundBroken",
    "RoundKept",
    "RoundSlow",
    "RoundsHeld",
    "StateArrived",
    "StateBroken",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceRequested:
    """A worker has a tensor to be summed with those of the others, after all of its earlier requests.

    Args:
        dtype: of the tensor, as in a layout.
        together: the first round waits until this many workers have joined, >= 1; later, how many the last round had.
        settled: the last round whose result every worker has, as far as this one knows.
        arrived: the attempt whose result this worker has; others may not have it.
        computed_from: in rounds without a server, how many rounds the model had that the gradient was computed from;
            of workers that do not wait for rounds, that it had when the gradient was offered.
        updates: how many gradients are added up in the tensor, >= 1.
        weight: of how many equal parts these are the sum, as micro-batches or tokens, >= 1; the mean divides by that.
        rates: learning rate and other settings of each parameter group, in the optimizer's order.
        withdrawn: why it is to be in no round, though it was offered before; "" if it may be.
        grows: it is offered while backward makes it.
        for_all: it is to be in a round of all workers, once all of them have offered something that is.
    """

    reduce: ReduceId
    model: str
    size_bytes: int
    dtype: str
    op: ReduceOp
    together: int = 1
    settled: RoundId | None = None
    arrived: RoundId | None = None
    computed_from: int = 0
    updates: int = 1
    weight: int = 1
    rates: tuple[float, ...] = ()
    withdrawn: str = ""
    grows: bool = False
    for_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsHeld:
    """How far a worker has come that applies rounds by itself.

    Args:
        version: the number of settled rounds that are in its model or wait to be applied to it.
        applied: how many of these its optimizer has applied.
        has_state: it has the model and the optimizer state of that version.
        settled: the last of these rounds.
        arrived: the attempt whose result this worker has; others may not have it.
        together: how many workers begin together, >= 1; later, how many the last round reached.
        known: the last few rounds that its model has come from, oldest first, all settled. Others may have a result
            of one of these, and not know that.
    """

    version: int
    applied: int
    has_state: bool
    settled: RoundId | None = None
    arrived: RoundId | None = None
    together: int = 1
    known: tuple[RoundId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateArrived(SaidByWorker):
    """A worker has fetched the state of this version; ``round`` as in :class:`FetchState`."""

    version: int
    round: RoundId


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBroken(SaidByWorker):
    """A worker cannot fetch model and optimizer state from the peer that it was told; ``detail`` says why.

    ``round`` as in :class:`FetchState`.
    """

    detail: str
    round: RoundId


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
class RoundSlow(SaidByWorker):
    """This attempt goes on much more slowly than planned: at this pace its rest takes ``left_ns``.

    At the planned pace it would take ``usual_ns``. Both are above 0.
    """

    round: RoundId
    left_ns: int
    usual_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundKept(SaidByWorker):
    """What a worker has of the result of this attempt, which is void: ranges of the tensor's bytes."""

    round: RoundId
    kept: Ranges


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
        rate_bps: at about which each of the streams is expected to go: no more is sent ahead than that needs; 0 for as
            much as TCP lets through.
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
    """Take part in this attempt; an earlier one is void.

    Args:
        reduce: what this worker contributes; None if it only receives the result, or, without parts, has none of it.
        workers: how many contribute.
        size_bytes, dtype: of the tensor.
        version: in rounds without a server, which version of the model the result makes.
        weight: the sum of the weights of those contributions that the result is of.
        rates: the means of the contributions' settings of each parameter group.
        planned_ns: how long it is to take; 0 if nobody is to watch that.
        after: the void attempt of whose result everything but the rest is kept; None if all of the tensor is summed.
        rest: the ranges of the tensor's bytes that are summed in place of all of it. Parts are of these bytes, put
            together in their order.
    """

    reduce: ReduceId | None
    round: RoundId
    workers: int
    parts: tuple[ReducePart, ...]
    size_bytes: int
    dtype: str
    version: int = 0
    weight: int = 1
    rates: tuple[float, ...] = ()
    planned_ns: int = 0
    after: RoundId | None = None
    rest: Ranges = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReduce(Told):
    """This attempt is void; there will be another. ``keep`` what is here of the result, and say what that is."""

    round: RoundId
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceSettled(Told):
    """Everybody has the result of this attempt: ``workers`` have it; ``reduce`` as in :class:`Reduce`."""

    reduce: ReduceId | None
    round: RoundId
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceFailed(Told):
    """Give this up; ``reason`` says why."""

    reduce: ReduceId


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReduce(Told):
    """A gradient is in no round: it is added to this worker's next one (``keep``), or dropped; ``reason`` says why."""

    reduce: ReduceId
    keep: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginState(ToldOfModel):
    """The model goes on at ``version`` with this worker's own state; ``round`` stands for that, as for a version."""

    round: RoundId
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchState(ToldOfModel):
    """Fetch model and optimizer state of ``version`` or a later one from a peer; results from there on come here.

    ``round`` makes that version.
    """

    peer: Peer
    version: int
    round: RoundId


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveState(ToldOfModel):
    """A peer will fetch model and optimizer state of ``version`` or a later one with this ticket."""

    peer: Peer
    version: int


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
