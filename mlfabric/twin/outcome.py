"""What came of a run of the twin, as columns, and the figures that people ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Outcome", "Recorder", "Span"]

_WARM_UP = 0.1


@dataclass(frozen=True, slots=True)
class Span:
    """What a worker did from when to when: "compute", "wait", "send" or "get"; in s."""

    worker: int
    what: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run.

    Args:
        name: of the method or baseline.
        ended_s: by worker and step, when the worker had done with it and began the next; shape (workers, steps).
        committed_s: when updates were applied, ascending; without a server: when their workers had their rounds.
        delays: of each of them.
        pushed, dropped: by worker, how many updates.
        members: of each round without a server, how many workers' gradients are in it.
        link_use: by link (up links first), the share of what it could have carried.
        hosts: names, the server's last.
        spans: what workers did in the beginning, if it was asked for.
    """

    name: str
    ended_s: NDArray[np.float64]
    committed_s: NDArray[np.float64]
    delays: NDArray[np.int64]
    pushed: NDArray[np.int64]
    dropped: NDArray[np.int64]
    link_use: NDArray[np.float64]
    hosts: tuple[str, ...]
    members: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    spans: tuple[Span, ...] = field(default=(), repr=False)

    @property
    def iteration_s(self) -> NDArray[np.float64]:
        """The time of every step of every worker, without the first tenth of each; at least one step is left."""
        steps = np.diff(self.ended_s, axis=1, prepend=0.0)
        found: NDArray[np.float64] = steps[:, int(_WARM_UP * steps.shape[1]) :].ravel()
        return found

    @property
    def mean_iteration_s(self) -> float:
        """The mean of them."""
        return float(self.iteration_s.mean())

    @property
    def duration_s(self) -> float:
        """Until the first worker has done with all its steps: from then on others have the links for themselves."""
        return float(self.ended_s[:, -1].min())

    @property
    def updates_per_s(self) -> float:
        """How many updates were applied per second while all workers were at work."""
        since_s = _WARM_UP * self.duration_s
        count = np.count_nonzero((self.committed_s > since_s) & (self.committed_s <= self.duration_s))
        return float(count / (self.duration_s - since_s))

    @property
    def mean_members(self) -> float:
        """How many workers' gradients were in a round on average, without the first tenth; 0 where there are none."""
        rounds = self.members[int(_WARM_UP * len(self.members)) :]
        return float(rounds.mean()) if len(rounds) else 0.0

    @property
    def least_share(self) -> float:
        """The gradients that were applied of the worker that has the fewest, over the mean of all."""
        applied = self.pushed - self.dropped
        return float(applied.min() / max(1e-9, applied.mean()))

    @property
    def drop_share(self) -> float:
        """The share of all updates that were not applied."""
        return float(self.dropped.sum() / max(1, self.pushed.sum()))


class Recorder:
    """Takes in what happens in a run; times in ns."""

    def __init__(self, workers: int, steps: int, spans_until_ns: float = 0.0) -> None:
        self.ended_ns = np.zeros((workers, steps))
        self.pushed = np.zeros(workers, np.int64)
        self.dropped = np.zeros(workers, np.int64)
        self.spans: list[Span] = []
        self._until_ns = spans_until_ns
        self._committed_ns: list[float] = []
        self._delays: list[int] = []

    def wants_spans(self, at_ns: float) -> bool:
        """Return whether spans that begin at an instant are kept."""
        return at_ns < self._until_ns

    def span(self, worker: int, what: str, start_ns: float, end_ns: float) -> None:
        """Keep what a worker did, if it is early enough and took any time."""
        if start_ns < self._until_ns and end_ns > start_ns:
            self.spans.append(Span(worker, what, start_ns / 1e9, end_ns / 1e9))

    def commit(self, at_ns: float, delay: int, count: int = 1) -> None:
        """Note that updates of one delay were applied."""
        self._committed_ns += [at_ns] * count
        self._delays += [delay] * count

    def outcome(
        self, name: str, hosts: tuple[str, ...], link_use: NDArray[np.float64], members: Sequence[int] = ()
    ) -> Outcome:
        """Return all of it."""
        return Outcome(
            name=name,
            ended_s=self.ended_ns / 1e9,
            committed_s=np.array(self._committed_ns) / 1e9,
            delays=np.array(self._delays, np.int64),
            pushed=self.pushed,
            dropped=self.dropped,
            link_use=link_use,
            hosts=hosts,
            members=np.array(members, np.int64),
            spans=tuple(self.spans),
        )
