"""One round of AllReduce that is being carried out: who takes part, who has the result. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from mlfabric.model.ranges import Ranges, count
from mlfabric.planning import Shape
from mlfabric.protocol import Reduce, ReducePart, ReduceRequested, RoundId

__all__ = ["RunningRound", "difference_of"]


@dataclass(slots=True, kw_only=True)
class RunningRound:
    """A round that is being carried out: what its workers asked and are to do, and who has the result.

    The last of its workers was told at ``since_ns``. ``without_stripes`` says that stripes were not to be used, though
    they might have been.

    Workers that are late have parts, and are told of them when they ask. ``receivers`` contribute nothing and get the
    result. ``measured`` has, by worker, what its host's link carried at best, up and down. ``version`` is that of the
    model which the result makes, in rounds without a server. ``summed`` has, by worker, of how many contributions its
    result is the sum, where that is not all of them. ``is_best`` says that nothing that might be learnt of links would
    have made it shorter. ``planned_ns`` is how long it was to take. Nobody watches that while some are late: then it is
    not links that hold it up. Where gradients grow, those watch it whose own one is whole. ``shares`` says that
    others use its links at the same time: what these carry of it tells little. ``after`` is the void round of whose
    result all is kept but ``rest``; None if all of the tensor is summed.
    """

    id: RoundId
    members: dict[str, ReduceRequested]
    parts: Mapping[str, Sequence[ReducePart]]
    reason: str
    reserved: tuple[tuple[str, RoundId, int], ...]
    shape: Shape = Shape.DIRECT
    without_stripes: bool = False
    since_ns: int = 0
    planned_ns: int = 0
    arrived: set[str] = field(default_factory=set)
    measured: dict[str, tuple[int, int]] = field(default_factory=dict)
    receivers: frozenset[str] = frozenset()
    version: int = 0
    summed: Mapping[str, int] = field(default_factory=dict)
    is_best: bool = False
    shares: bool = False
    after: RoundId | None = None
    rest: Ranges = ()

    @property
    def late(self) -> list[str]:
        """Who has not asked yet."""
        return sorted(self.parts.keys() - self.members.keys() - self.receivers)

    @property
    def size_bytes(self) -> int:
        """How long each worker's tensor is."""
        return next(iter(self.members.values())).size_bytes

    @property
    def summed_bytes(self) -> int:
        """How much of it is summed."""
        return count(self.rest) or self.size_bytes

    def ready_bytes(self, worker: str) -> int:
        """Return how much a worker sends without waiting for others."""
        return sum(p.end - p.start for p in self.parts[worker] if p.parent is not None and not p.inputs)

    def coming_bytes(self, worker: str) -> int:
        """Return how much others send to a worker for it to sum."""
        return sum((p.end - p.start) * len(p.inputs) for p in self.parts[worker])

    def held(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return from whom, and to whom, anything that is sent first is held to shares of links."""
        first = [(worker, part.parent) for worker, parts in self.parts.items() for part in parts if not part.inputs]
        streams = [(worker, peer.worker) for worker, peer in first if peer is not None and peer.most_bps]
        return frozenset(worker for worker, _ in streams), frozenset(parent for _, parent in streams)

    def told(self, worker: str) -> Reduce:
        """Return what a receiver is told, or a worker that has asked."""
        request, one = self.members.get(worker), next(iter(self.members.values()))
        grows = any(each.grows for each in self.members.values())
        waits = bool(self.late) or (grows and (request is None or not request.grows))
        return Reduce(
            to=worker,
            reduce=None if request is None else request.reduce,
            round=self.id,
            workers=len(self.parts) - len(self.receivers),
            parts=tuple(self.parts[worker]),
            size_bytes=one.size_bytes,
            dtype=one.dtype,
            version=self.version,
            weight=self.summed.get(worker) or sum(each.weight for each in self.members.values()),
            rates=tuple(map(_mean, zip(*(each.rates for each in self.members.values()), strict=True))),
            planned_ns=0 if waits else self.planned_ns,
            after=self.after,
            rest=self.rest,
            reason=self.reason,
        )


def _mean(values: Sequence[float]) -> float:
    """Return the mean; of equal values exactly that value."""
    return values[0] if min(values) == max(values) else fmean(values)


def difference_of(heads: Mapping[str, ReduceRequested]) -> str:
    """Say who gave what."""
    given: dict[str, list[str]] = {}
    for worker, head in heads.items():
        given.setdefault(f"{head.op.value} of {head.size_bytes} bytes of {head.dtype}", []).append(worker)
    words = "; ".join(f"{what} by {', '.join(workers)}" for what, workers in given.items())
    return f"an AllReduce needs the same size, dtype and op from all workers; given: {words}"
