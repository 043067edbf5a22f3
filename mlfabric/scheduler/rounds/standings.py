"""How each worker of one model stands that applies rounds by itself. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from statistics import median

from mlfabric.methods import Readiness
from mlfabric.protocol import ReduceRequested, RoundId

__all__ = ["Standing", "Standings"]

_REMEMBERED = 200
"""How many computations the usual time is the median of."""
_STEPS = 8
"""How many of each worker's last steps are known."""
_NAMED = 3
"""How many workers that are in no round are named."""


@dataclass(slots=True)
class Standing:
    """How one worker stands.

    Args:
        applied: how many rounds its optimizer had applied when it was last heard of.
        since_ns: since when it has had the gradient that it offers; without one, since when it has been computing.
        is_current: it has the model of the newest version, but for results that wait to be applied; or fetches it.
        is_behind: too many results wait to be applied; it gets no more of them, and fetches the model when it is
            through with what it computes.
        fetches_from: the peer from which it is to fetch model and optimizer state; "" if it has them.
        fetches: the round that makes the version which it is to fetch.
        was_late: a round was made without its last gradient.
        offer: the gradient that it offers, if any.
        took_ns: how long its last steps took.
    """

    applied: int
    since_ns: int
    is_current: bool = False
    is_behind: bool = False
    fetches_from: str = ""
    fetches: RoundId | None = None
    was_late: bool = False
    offer: ReduceRequested | None = None
    took_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_STEPS))

    @property
    def has_state(self) -> bool:
        """Whether it has the model of the newest version now."""
        return self.is_current and not self.fetches_from

    def computes_from(self, version: int, now_ns: int, *, was_late: bool = False) -> None:
        """Note that it applies all rounds up to this one and computes the next gradient."""
        self.applied, self.since_ns, self.offer, self.was_late = version, now_ns, None, was_late


class Standings:
    """Those of all workers of one model that are here."""

    def __init__(self) -> None:
        self.of: dict[str, Standing] = {}
        self._took_ns: deque[int] = deque(maxlen=_REMEMBERED)

    @property
    def usual_ns(self) -> int | None:
        """How long workers usually compute; None if that is unknown."""
        return round(median(self._took_ns)) if self._took_ns else None

    def offered(self, standing: Standing, offer: ReduceRequested, now_ns: int) -> None:
        """Note that a worker has a gradient now."""
        if standing.offer is None:
            standing.took_ns.append(now_ns - standing.since_ns)
            self._took_ns.append(standing.took_ns[-1])
            standing.since_ns = now_ns
        standing.offer = offer

    def offers(self) -> dict[str, ReduceRequested]:
        """Return all gradients that have no outcome."""
        found = ((worker, standing.offer) for worker, standing in sorted(self.of.items()))
        return {worker: offer for worker, offer in found if offer is not None}

    def heads(self) -> dict[str, ReduceRequested]:
        """Return what the next round may have: what is for a round of all only if everybody has offered such."""
        offers = self.offers()
        if all(one.offer is not None and one.offer.for_all for one in self.of.values() if one.has_state):
            return offers
        return {worker: offer for worker, offer in offers.items() if not offer.for_all}

    def readiness(self, version: int, since_full: int, settled_ns: int, round_ns: int | None) -> Readiness:
        """Say who is ready for the next round, and who is not; see :class:`Readiness`."""
        having = {worker: one for worker, one in self.of.items() if one.has_state}
        return Readiness(
            ready_ns={worker: self.of[worker].since_ns for worker in self.heads()},
            computing_ns={worker: one.since_ns for worker, one in having.items() if one.offer is None},
            usual_ns=self.usual_ns,
            version=version,
            since_full=since_full,
            recent_ns={worker: one.took_ns for worker, one in having.items()},
            settled_ns=settled_ns,
            round_ns=round_ns,
        )

    def receivers(self, heads: Collection[str]) -> list[str]:
        """Return the workers that get the next round's result though they contribute nothing."""
        return sorted(worker for worker, one in self.of.items() if one.is_current and worker not in heads)

    def who_is_in(self, heads: Collection[str], now_ns: int) -> str:
        """Say how many workers the next round has, those of ``heads``, and why the others are not in it."""
        outside = [self._outside(worker, one, now_ns) for worker, one in sorted(self.of.items()) if worker not in heads]
        more = f" and {len(outside) - _NAMED} more" if len(outside) > _NAMED else ""
        without = f" without {', '.join(outside[:_NAMED])}{more}" if outside else ""
        return f"{len(self.of) - len(outside)} of {len(self.of)} workers{without}"

    def _outside(self, worker: str, standing: Standing, now_ns: int) -> str:
        if standing.fetches_from:
            return f"{worker} (fetches the model)"
        usual_s, took_s = (self.usual_ns or 0) / 1e9, (now_ns - standing.since_ns) / 1e9
        return f"{worker} (not ready: has computed for {took_s:.2f} s, usual are {usual_s:.2f} s)"

    def gives_no_more(self, giver: str) -> None:
        """Note that a worker is gone, or gets no more results: who fetches from it needs another peer."""
        for one in self.of.values():
            if one.fetches_from == giver:
                one.is_current = False

    def behind(self, version: int, most: int) -> Iterator[str]:
        """Give the workers at which too many results wait to be applied.

        Args:
            version: of the last settled round.
            most: how many may wait.
        """
        for worker, one in sorted(self.of.items()):
            if one.is_current and one.offer is None and version - one.applied >= most:
                yield worker

    def peer_for(self, worker: str) -> str | None:
        """Return from whom a worker is to fetch the state: a worker that has it, and gives it to few; None if nobody.

        One that has applied more rounds than others can give the state earlier.
        """
        gives = [one.fetches_from for one in self.of.values()]
        before = self.of[worker].fetches_from
        able = [other for other, one in self.of.items() if one.has_state and other != worker]

        newest = max((self.of[other].applied for other in able), default=0)

        def cost(other: str) -> tuple[bool, bool, int, str]:
            return other == before, self.of[other].applied < newest, gives.count(other), other

        return min(able, key=cost, default=None)
