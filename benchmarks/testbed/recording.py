"""What a worker keeps of its run while it trains: the times of its steps, and copies of the model."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from benchmarks.testbed.runs import NS_PER_S, Snapshot, WorkerLog

__all__ = ["SnapshotKeeper", "StepRecorder"]


@dataclass(slots=True, kw_only=True)
class StepRecorder:
    """Keeps what a worker's log will say, at little cost per step."""

    started_ns: list[int] = field(default_factory=list)
    computed_ns: list[int] = field(default_factory=list)
    ended_ns: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Say that a step starts."""
        self.started_ns.append(time.monotonic_ns())

    def computed(self, loss: float) -> None:
        """Say that the step has its gradient."""
        self.computed_ns.append(time.monotonic_ns())
        self.losses.append(loss)

    def end(self) -> int:
        """Say that the worker has the model for its next step; return the time in ns."""
        self.ended_ns.append(time.monotonic_ns())
        return self.ended_ns[-1]

    def log(self, *, rank: int, began_ns: int, overruns: int, snapshots: tuple[Snapshot, ...] = ()) -> WorkerLog:
        """Return the log of all steps that ended."""
        steps = len(self.ended_ns)
        return WorkerLog(
            rank=rank,
            began_ns=began_ns,
            started_ns=np.array(self.started_ns[:steps], dtype=np.int64),
            computed_ns=np.array(self.computed_ns[:steps], dtype=np.int64),
            ended_ns=np.array(self.ended_ns, dtype=np.int64),
            losses=np.array(self.losses[:steps], dtype=np.float32),
            overruns=overruns,
            snapshots=snapshots,
        )


class SnapshotKeeper:
    """Copies the model when it is offered.

    Args:
        every_ns: how much time is between two copies at least; 0 copies every model that is offered.
    """

    def __init__(self, every_ns: int = NS_PER_S) -> None:
        self._every_ns = every_ns
        self._taken: list[Snapshot] = []

    def offer(self, now_ns: int, updates: int, weights: np.ndarray) -> None:
        """Take a snapshot if one is due."""
        if not self._taken or now_ns - self._taken[-1].time_ns >= self._every_ns:
            self._taken.append(Snapshot(time_ns=now_ns, updates=updates, weights=weights.copy()))

    @property
    def taken(self) -> tuple[Snapshot, ...]:
        """The snapshots, in the order of their times."""
        return tuple(self._taken)

    def finish(self, now_ns: int, updates: int, weights: np.ndarray) -> tuple[Snapshot, ...]:
        """Take the last one, due or not, and return all in the order of their times."""
        if not self._taken or self._taken[-1].updates < updates:
            self._taken.append(Snapshot(time_ns=now_ns, updates=updates, weights=weights.copy()))
        return self.taken
