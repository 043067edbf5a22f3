"""DropCompute around the loop that accumulates gradients; ``mlfabric.methods.drop_compute`` says what it is.

::

    for step in range(steps):
        for inputs, targets in mlfabric.drop_compute(batches, optimizer, micro_batches=8):
            cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

Without a threshold by hand, the first steps are timed. Then all workers have the same threshold. It is chosen anew when
a worker finds that its steps take longer than they did, or that it drops more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar
from weakref import WeakKeyDictionary

import torch

from mlfabric import clock
from mlfabric.arguments import integer_of, number_of
from mlfabric.errors import UsageError
from mlfabric.methods.drop_compute import UNLIMITED, Threshold
from mlfabric.worker_daemon.local_steps import LocalOptimizer
from mlfabric.worker_daemon.step_teams import Decision, StepTeam, now_ns, team_of

__all__ = ["DropCompute", "DropReport", "drop_compute"]

T = TypeVar("T")
Divisor = Literal["computed", "all"]
Compensation = Literal["none", "larger-batch", "keep"]

TIMED_STEPS, MOST_TIMES = 20, 4_000
LEAST_TIMED_STEPS = 4
"""So many steps are timed, fewer if they have many micro-batches."""
WATCHED_STEPS = 50
DROPS_CHANGE, TIMES_CHANGE = 0.05, 0.2
"""The threshold is chosen anew once a worker drops so much more or less, or computes so much longer or shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropReport:
    """What a threshold was expected to do, and what it has done at this worker.

    Args:
        tau_s: the threshold; infinite for none.
        predicted_speedup, predicted_dropped: of all workers.
        steps: made since it was set.
        dropped: the share of the micro-batches that were not computed since then.
        speedup: micro-batches per second since then, over those of the steps that were timed before; nan if none was.
    """

    tau_s: float
    predicted_speedup: float
    predicted_dropped: float
    steps: int
    dropped: float
    speedup: float

    def extra_steps(self, steps: int) -> int:
        """Return how many more steps than ``steps`` compute as many micro-batches as without a threshold."""
        return math.ceil(steps * self.dropped / (1.0 - self.dropped))


@dataclass(slots=True)
class _Sums:
    """What some steps have done."""

    steps: int = 0
    done: int = 0
    wanted: int = 0
    computed_ns: int = 0
    whole_ns: int = 0

    def add(self, done: int, wanted: int, computed_ns: int, rest_ns: int) -> None:
        """Add a step."""
        self.steps, self.done, self.wanted = self.steps + 1, self.done + done, self.wanted + wanted
        self.computed_ns, self.whole_ns = self.computed_ns + computed_ns, self.whole_ns + computed_ns + rest_ns

    @property
    def dropped(self) -> float:
        """The share of the micro-batches that were not computed; 0 if fast workers have made up for it."""
        return max(0.0, 1.0 - self.done / self.wanted) if self.wanted else 0.0

    @property
    def each_ns(self) -> float:
        """What one took."""
        return self.computed_ns / max(1, self.done)

    @property
    def per_ns(self) -> float:
        """How many were computed in each ns of whole steps."""
        return self.done / self.whole_ns if self.whole_ns else math.nan

    def differs_from(self, other: _Sums) -> bool:
        """Tell whether steps are not what they were."""
        by = abs(self.each_ns - other.each_ns) / max(1.0, other.each_ns)
        return abs(self.dropped - other.dropped) > DROPS_CHANGE or by > TIMES_CHANGE


class DropCompute(Generic[T]):
    """The steps of one worker; made by :func:`drop_compute`. To iterate over it is to make a step.

    Args:
        team: the other workers.
        micro_batches: of a step, >= 1.
        threshold_s: by hand; None to have it chosen.
        divide_by: whether a step's gradient is the mean over the micro-batches that were computed, or over all.
        compensation: "larger-batch" lets workers that are fast compute more, so that as many are computed on average as
            without a threshold; "keep" keeps dropped ones, see :meth:`dropped_batches`.
    """

    def __init__(
        self,
        team: StepTeam,
        *,
        micro_batches: int,
        threshold_s: float | None,
        divide_by: Divisor,
        compensation: Compensation,
    ) -> None:
        self.settings = micro_batches, threshold_s, divide_by, compensation
        self._team, self._micro_batches = team, micro_batches
        self._divide_by, self._compensation = divide_by, compensation
        self._is_automatic = threshold_s is None
        self._threshold = UNLIMITED
        if threshold_s is not None:
            self._threshold = Threshold(tau_s=threshold_s, speedup=math.nan, dropped=math.nan)
        self._source: Iterator[T] = iter(())
        self._kept: list[T] = []
        self._is_timing = self._is_automatic
        self._is_broken_off = False
        self._computed_ns: list[int] = []
        self._rest_ns: list[int] = []
        self._enough = max(LEAST_TIMED_STEPS, min(TIMED_STEPS, MOST_TIMES // micro_batches))
        self._timed_steps = 0
        self._timed, self._since, self._window, self._first = _Sums(), _Sums(), _Sums(), _Sums()
        """Of the steps without a threshold, of those since it was set, and of these the last ones, and the first."""
        self._step: tuple[list[int], int, int] | None = None
        """What the micro-batches of the last step took, when they were done, and how many were wanted."""

    def over(self, batches: Iterable[T]) -> DropCompute[T]:
        """Take the micro-batches of the next steps from here."""
        self._source = iter(batches)
        return self

    @property
    def report(self) -> DropReport:
        """What the threshold was expected to do, and what it has done."""
        return DropReport(
            tau_s=self._threshold.tau_s,
            predicted_speedup=self._threshold.speedup,
            predicted_dropped=self._threshold.dropped,
            steps=self._since.steps,
            dropped=self._since.dropped,
            speedup=self._since.per_ns / self._timed.per_ns,
        )

    def dropped_batches(self) -> list[T]:
        """Return the micro-batches that were dropped since the last call, to train on them later; see ``keep``."""
        kept, self._kept = self._kept, []
        return kept

    def __iter__(self) -> Iterator[T]:
        if self._is_broken_off:
            self._is_broken_off = False
            raise UsageError("a step was left in its midst; let the loop over its micro-batches end by itself")
        self._close_step()
        self._is_broken_off = True
        most, tau_ns = self._most(), self._threshold.tau_s * 1e9
        took_ns: list[int] = []
        began_ns = before_ns = now_ns(self._team.device)
        with self._team.joins.accumulating():
            while len(took_ns) < most and (not took_ns or before_ns - began_ns < tau_ns):
                try:
                    batch = next(self._source)
                except StopIteration:
                    most = len(took_ns)
                    break
                yield batch
                done_ns = now_ns(self._team.device)
                took_ns.append(done_ns - before_ns)
                before_ns = done_ns
        self._is_broken_off = False
        if self._compensation == "keep" and len(took_ns) < most:
            self._kept += [batch for _, batch in zip(range(most - len(took_ns)), self._source, strict=False)]
        if took_ns:
            done_ns = clock.monotonic_ns()
            self._team.joins.join(len(took_ns), len(took_ns) if self._divide_by == "computed" else self._micro_batches)
            self._step = took_ns, done_ns, min(most, self._micro_batches)

    def _most(self) -> int:
        """Return how many micro-batches a step may have."""
        if self._compensation != "larger-batch" or self._threshold is UNLIMITED:
            return self._micro_batches
        dropped = self._since.dropped if math.isnan(self._threshold.dropped) else self._threshold.dropped
        return math.ceil(self._micro_batches / (1.0 - min(dropped, 0.5)))

    # The threshold

    def _close_step(self) -> None:
        """Count the last step, now that it is known what it took besides."""
        if self._step is None:
            return
        (took_ns, done_ns, wanted), self._step = self._step, None
        computed_ns, rest_ns = sum(took_ns), clock.monotonic_ns() - done_ns
        if not self._is_timing:
            for sums in (self._since, self._window):
                sums.add(len(took_ns), wanted, computed_ns, rest_ns)
        else:
            self._timed_steps += 1
            if len(took_ns) == self._micro_batches:
                self._timed.add(len(took_ns), wanted, computed_ns, rest_ns)
                self._computed_ns += took_ns
                self._rest_ns.append(rest_ns)
        if self._is_automatic:
            self._look()

    def _look(self) -> None:
        """Say what was timed once it is enough, or that steps have changed; take what was decided."""
        if self._timed_steps >= self._enough:
            self._team.agrees.tell(self._micro_batches, self._computed_ns, self._rest_ns, self._enough)
            self._forget_times()
        elif not self._is_timing and self._window.steps >= WATCHED_STEPS:
            if not self._first.steps:
                self._first = self._window
            self._team.agrees.tell_change(self._micro_batches, has_changed=self._window.differs_from(self._first))
            self._window = _Sums()
        if (decision := self._team.agrees.decided()) is not None:
            self._take(decision)

    def _take(self, decision: Decision) -> None:
        if decision.measures and self._is_timing:
            return
        self._threshold, self._is_timing = decision.threshold, decision.measures
        self._since, self._window, self._first = _Sums(), _Sums(), _Sums()
        self._forget_times()
        if decision.measures:
            self._timed = _Sums()

    def _forget_times(self) -> None:
        self._computed_ns, self._rest_ns, self._timed_steps = [], [], 0


_made: WeakKeyDictionary[Any, DropCompute[Any]] = WeakKeyDictionary()
"""By worker."""


def drop_compute(
    batches: Iterable[T],
    worker: Any,
    *,
    micro_batches: int,
    threshold: float | Literal["auto"] = "auto",
    divide_by: Divisor = "computed",
    compensation: Compensation = "none",
) -> DropCompute[T]:
    """Return the micro-batches of a step, fewer of them if the step takes long (DropCompute).

    The loop over them makes the gradient of one step; the step itself comes after it. Losses are not divided by the
    number of micro-batches: the step's gradient is the mean over those of all workers. A step has at least one.

    With a wrapped optimizer that makes inner steps (``local-sgd``, ``diloco``) each micro-batch is an inner step, and
    the movement is offered at the end of the loop.

    Args:
        batches: of this step, as the pieces of a larger one; or an iterator over those of many steps, of which each
            step takes some: then nothing is dropped but time, and an epoch has more steps.
        worker: what ``mlfabric.wrap`` has returned, of a method without a server and without ``overlap``; or a
            ``DistributedDataParallel``, without any fabric.
        micro_batches: how many a step has, >= 1; the same at all workers.
        threshold: after so many seconds of a step no micro-batch is begun, > 0. ``"auto"`` times steps without one, and
            chooses the one with the most samples per second, the same for all workers; none if none is worth it.
        divide_by: ``"computed"``: a step's gradient is the mean over the micro-batches that were computed. ``"all"``:
            their sum over all that were wanted; what is dropped makes the step shorter.
        compensation: for what is dropped. ``"larger-batch"``: workers that are fast compute more than
            ``micro_batches``. ``"keep"``: keeps it, see ``dropped_batches``. For extra steps, see
            ``report.extra_steps``.

    Returns:
        To be iterated over, for one step each time; always the same object for a worker. ``report`` says what the
        threshold is, and what it does.

    Raises:
        UsageError: an argument cannot be used; or the worker's last step was left in its midst.
    """
    integer_of("micro_batches", micro_batches, least=1, most=MOST_TIMES // LEAST_TIMED_STEPS)
    threshold_s = None if threshold == "auto" else number_of("threshold", threshold)
    if threshold_s is not None and not threshold_s > 0:
        raise UsageError(f"threshold={threshold!r}; allowed: 'auto', or a number of seconds above 0")
    _one_of("divide_by", divide_by, ("computed", "all"))
    _one_of("compensation", compensation, ("none", "larger-batch", "keep"))
    if divide_by == "all" and isinstance(worker, LocalOptimizer):
        raise UsageError("divide_by='all' with inner steps; allowed: 'computed', as a movement has no divisor")
    if isinstance(batches, torch.utils.data.DataLoader):
        raise UsageError("batches=a DataLoader, which begins anew at each step; allowed: iter(loader), made once")
    settings = micro_batches, threshold_s, divide_by, compensation
    found: DropCompute[Any] | None = _made.get(worker)
    if found is None:
        found = DropCompute(
            team_of(worker),
            micro_batches=micro_batches,
            threshold_s=threshold_s,
            divide_by=divide_by,
            compensation=compensation,
        )
        _made[worker] = found
    elif found.settings != settings:
        raise UsageError(f"drop_compute with {settings} after {found.settings}; allowed: the same in all steps")
    return found.over(batches)


def _one_of(name: str, given: object, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise UsageError(f"{name}={given!r}; allowed: {', '.join(map(repr, allowed))}")
