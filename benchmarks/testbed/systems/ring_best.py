"""A ring of the workers that have the best links now, overlapped with backward; all others are shut out.

The strongest plain opponent of rounds: it is given what no real one has. It knows what links will carry, so its members
change with the weather, at once. A worker that comes anew has model and velocity at no cost, through memory that the
hosts of this computer share. And the groups of all periods are made before the run begins.

The members of the next step are those of the period in which the first member finishes its gradient; it says so in the
vector that is summed, and through the shared memory to the workers that are shut out, which look there now and then.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import torch.distributed as dist

from benchmarks.testbed.networks import Forecast
from benchmarks.testbed.recording import SnapshotKeeper, StepRecorder
from benchmarks.testbed.runs import NS_PER_S, Place, RunPlan, WorkerLog, worker_name
from benchmarks.testbed.systems.collective import agree_on_start, group
from benchmarks.testbed.systems.ring_overlap import BucketSum
from benchmarks.testbed.systems.sgd import Momentum
from benchmarks.testbed.workload import Workload

__all__ = ["worker"]

LOOK_S = 0.005
SET_UP_S = 60.0
"""For how long before the run groups may be in the making: so many more periods get one."""


def worker(place: Place, plan: RunPlan) -> WorkerLog:
    """Train in the ring whenever this worker's links are among the best.

    Raises:
        RuntimeError: the other workers cannot be reached.
    """
    workload = plan.workload.build()
    model = Momentum(workload.initial(), step_size=plan.learning_rate, momentum=plan.momentum)
    with group(place), _shared_model(place, workload.n_parameters) as shared:
        return _Training(place, plan, workload, model, _Rings.made(place, plan), shared).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Now:
    """Where the run is: how many steps were made, in which period's ring the next one is, whether there is none."""

    steps: int
    period: int
    is_over: bool = False

    def packed(self) -> int:
        """Return it as one number, which is written at once."""
        return (self.steps << 32) | (self.period << 1) | self.is_over

    @classmethod
    def unpacked(cls, number: int) -> Self:
        """Read what ``packed`` returned."""
        return cls(steps=number >> 32, period=(number >> 1) & 0x7FFFFFFF, is_over=bool(number & 1))


class _SharedModel:
    """The newest model and where the run is, in memory that all workers share; a ring's first member writes it."""

    def __init__(self, path: Path, elements: int) -> None:
        self._now = np.memmap(path, np.int64, "r+", shape=(1,))
        self._values = np.memmap(path, np.float32, "r+", offset=8, shape=(2, elements))

    def write(self, now: _Now, model: Momentum) -> None:
        """Say where the run is, once the model is there."""
        self._values[0], self._values[1] = model.weights, model.velocity
        self._now[0] = now.packed()

    def read_now(self) -> _Now:
        """Return where the run is."""
        return _Now.unpacked(int(self._now[0]))

    def read_into(self, model: Momentum) -> None:
        """Take over the newest model."""
        model.weights[:], model.velocity[:] = self._values[0], self._values[1]


@contextmanager
def _shared_model(place: Place, elements: int) -> Iterator[_SharedModel]:
    """Make the shared memory at rank 0, and open it everywhere; nothing is left of it at the end."""
    told: list[str | None] = [None]
    if place.own_rank == 0:
        handle, told[0] = tempfile.mkstemp(prefix="ring-best-")
        os.truncate(handle, 8 + 8 * elements)
        os.close(handle)
    dist.broadcast_object_list(told, src=0)
    assert told[0] is not None, "rank 0 told"
    shared = _SharedModel(Path(told[0]), elements)
    dist.barrier()
    if place.own_rank == 0:
        os.unlink(told[0])
    yield shared


class _Rings:
    """The members of each period's ring, and its group.

    Args:
        forecast: what links will carry.
        first: the first period that has a group.
        members: of each period from then on, by rank, ascending; the last ones stay.
        groups: by members.
    """

    def __init__(
        self,
        forecast: Forecast,
        first: int,
        members: Sequence[tuple[int, ...]],
        groups: dict[tuple[int, ...], dist.ProcessGroup],
    ) -> None:
        self._forecast, self._first, self._members, self._groups = forecast, first, members, groups

    @classmethod
    def made(cls, place: Place, plan: RunPlan) -> Self:
        """Make the groups of all periods that the run may last; all workers do so together."""
        assert plan.forecast is not None, "the weather has begun"
        forecast, names = plan.forecast, [worker_name(rank) for rank in range(place.workers)]
        first = forecast.period_at(agree_on_start())
        count = 1 + math.ceil((plan.duration_s + SET_UP_S) * NS_PER_S / forecast.period_ns)
        members = [
            tuple(names.index(name) for name in forecast.best(names, plan.members or place.workers, period))
            for period in range(first, first + count)
        ]
        groups = {ranks: dist.new_group(list(ranks)) for ranks in dict.fromkeys(members)}
        return cls(forecast, first, members, groups)

    def period_at(self, time_ns: int) -> int:
        """Return the number of the period at a time, counted from the first that has a group."""
        return min(self._forecast.period_at(time_ns) - self._first, len(self._members) - 1)

    def members(self, period: int) -> tuple[int, ...]:
        """Return the ranks of a period's members."""
        return self._members[period]

    def group(self, period: int) -> dist.ProcessGroup:
        """Return the group of a period's members."""
        return self._groups[self._members[period]]


class _Training:
    """One worker's run."""

    def __init__(
        self, place: Place, plan: RunPlan, workload: Workload, model: Momentum, rings: _Rings, shared: _SharedModel
    ) -> None:
        self._rank, self._plan, self._workload = place.own_rank, plan, workload
        self._model, self._rings, self._shared = model, rings, shared
        self._sum = BucketSum(place, plan, workload, numbers=2)
        self._recorder, self._keeper = StepRecorder(), SnapshotKeeper(every_ns=0)
        self._rounds: list[int] = []
        self._began_ns = 0

    def run(self) -> WorkerLog:
        """Train until the run is over."""
        self._began_ns = agree_on_start()
        now, has_model = _Now(steps=0, period=self._rings.period_at(self._began_ns)), True
        while not now.is_over:
            if self._rank in self._rings.members(now.period):
                if not has_model:
                    self._shared.read_into(self._model)
                now, has_model = self._step(now), True
            else:
                now, has_model = self._wait(now), False
        log = self._recorder.log(rank=self._rank, began_ns=self._began_ns, overruns=self._sum.compute.overruns)
        return replace(
            log,
            snapshots=self._keeper.taken,
            applied_ns=log.ended_ns,
            delays=np.zeros(len(self._rounds), dtype=np.int32),
            rounds=np.array(self._rounds, dtype=np.int64),
        )

    def _step(self, now: _Now) -> _Now:
        """Make a step with the other members; return where the run is then."""
        leads = self._rings.members(now.period)[0] == self._rank
        if leads and now.steps == 0:
            self._keeper.offer(self._began_ns, 0, self._model.weights)
        own = len(self._rounds)
        self._recorder.start()
        gradient = partial(self._gradient, own)
        loss = self._sum.make(self._rings.group(now.period), gradient, own, partial(self._say, leads, now.steps + 1))
        self._recorder.computed(loss)
        self._sum.finish()
        self._model.step(self._sum.gradient)
        ended_ns = self._recorder.end()
        is_over, period = self._sum.numbers.tolist()
        self._rounds.append(now.steps + 1)
        after = _Now(steps=now.steps + 1, period=int(period), is_over=is_over > 0)
        if leads:
            self._shared.write(after, self._model)
            self._keeper.offer(ended_ns, after.steps, self._model.weights)
        return after

    def _gradient(self, step: int, out: np.ndarray) -> tuple[np.ndarray, float]:
        return self._workload.gradient(self._model.weights, self._rank, step, out)

    def _say(self, leads: bool, steps: int) -> list[float]:
        """Return whether the run is over, and the period of the next step: the first member says it for all."""
        now_ns = time.monotonic_ns()
        judged = partial(self._workload.accuracy, self._model.weights) if leads else None
        is_over = self._plan.is_over(self._began_ns, now_ns, steps, judged)
        return [float(is_over), float(self._rings.period_at(now_ns)) if leads else 0.0]

    def _wait(self, now: _Now) -> _Now:
        """Wait until the ring has made another step; return where the run is then."""
        while (found := self._shared.read_now()).steps <= now.steps:
            time.sleep(LOOK_S)
        return found
