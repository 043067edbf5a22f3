"""Learning rate and momentum of each system, found by one small search that is the same for all.

What a network does to training is that gradients take effect late, and nothing else: hence a run's statistics can be
had in one process without a network, from the same batches and the order and delays of a recorded run. That makes the
search a matter of seconds: every setting of the grid trains as many gradients from the same seeds (other ones than are
measured later), and the one that needs the fewest to all targets together wins. A training that never meets a target
counts with all gradients that it made: else one of three would decide.

Of a system of rounds the record says who was in each round, and how late; each round makes one step along the mean.

Of workers that make steps by themselves for each round, all make each round.

Momentum is kept as the systems keep it: by the server where asynchronous systems have a plain one, by each worker in
the fabric (its pushes are velocities). For synchronous steps both are the same.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, cycle, takewhile
from typing import Any

import numpy as np

from benchmarks.testbed.catalogue import MomentumAt
from benchmarks.testbed.judging import Curve
from benchmarks.testbed.spec import Commits
from benchmarks.testbed.workload import Workload, WorkloadSpec

__all__ = ["FULL", "QUICK", "Effort", "Inner", "Setting", "Tried", "Tuning", "search", "train"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Setting:
    """One point of the grid; the learning rate is that of a synchronous step."""

    learning_rate: float
    momentum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """Steps that workers make by themselves for each round; the outer step is one of SGD with Nesterov momentum.

    Args:
        steps: for each round, >= 1.
        learning_rate, momentum: of the outer step; 1 and 0 take the mean of the workers' models.
    """

    steps: int
    learning_rate: float = 1.0
    momentum: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is tried; the same for every system of a table.

    Args:
        grid: settings.
        seeds: of model and batches, other ones than are measured.
        iterations: how long each is trained, in as many gradients each as there are workers.
    """

    grid: tuple[Setting, ...]
    seeds: tuple[int, ...]
    iterations: int


FULL = Effort(
    grid=tuple(
        Setting(learning_rate=rate, momentum=momentum) for momentum in (0.0, 0.5, 0.9) for rate in (0.1, 0.2, 0.4, 0.8)
    ),
    seeds=(1001, 1002, 1003),
    iterations=60,
)
QUICK = Effort(
    grid=tuple(Setting(learning_rate=rate, momentum=0.5) for rate in (0.1, 0.2)), seeds=(1001,), iterations=15
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """How one setting did.

    Args:
        gradients: to each target, mean over the seeds; where it was never met, all that were made.
        accuracy: at the end, mean over the seeds.
    """

    setting: Setting
    gradients: tuple[float, ...]
    accuracy: float

    @property
    def rank(self) -> tuple[float, float]:
        """Smaller is better: fewest gradients to all targets, added up; then the best accuracy."""
        return sum(self.gradients), -self.accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What the search found, with all that it tried."""

    best: Setting
    targets: tuple[float, ...]
    tried: tuple[Tried, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Tuning:
        """Read what ``as_json`` made."""
        tried = (
            Tried(setting=Setting(**row["setting"]), gradients=tuple(row["gradients"]), accuracy=row["accuracy"])
            for row in values["tried"]
        )
        return cls(best=Setting(**values["best"]), targets=tuple(values["targets"]), tried=tuple(tried))


def search(
    spec: WorkloadSpec,
    commits: Commits | None,
    *,
    workers: int,
    targets: Sequence[float],
    momentum_at: MomentumAt = MomentumAt.SERVER,
    inner: Inner | None = None,
    effort: Effort = FULL,
    told: Callable[[Tried], None] = lambda _: None,
) -> Tuning:
    """Try every setting of the grid and return the best.

    Args:
        spec: what is trained; its seed is not used.
        commits: of a recorded run in which gradients come late; None for a synchronous system.
        targets: accuracies to be reached, ascending.
        inner: steps that workers make by themselves, if they do.
        told: is given each setting when it has been tried.
    """
    workloads = [WorkloadSpec(model=spec.model, batch_size=spec.batch_size, seed=seed).build() for seed in effort.seeds]
    tried = []
    for setting in effort.grid:
        curves = [
            train(
                w,
                setting,
                commits,
                workers=workers,
                iterations=effort.iterations,
                momentum_at=momentum_at,
                inner=inner,
            )
            for w in workloads
        ]
        tried.append(_judged(setting, curves, targets))
        told(tried[-1])
    return Tuning(best=min(tried, key=lambda row: row.rank).setting, targets=tuple(targets), tried=tuple(tried))


def train(
    workload: Workload,
    setting: Setting,
    commits: Commits | None,
    *,
    workers: int,
    iterations: int,
    momentum_at: MomentumAt = MomentumAt.SERVER,
    inner: Inner | None = None,
) -> Curve:
    """Train in this process as a cluster would, gradient by gradient; the curve's times are gradients.

    Args:
        commits: whose gradients take effect in which order and how late, begun again from its middle when it ends; None
            for synchronous training.
        inner: steps that workers make by themselves, if they do; then ``commits`` is None.
        iterations: of ``workers`` gradients each.
    """
    if inner is not None:
        models = _with_inner_steps(workload, setting, workers, inner)
    elif commits is None:
        models = _synchronous(workload, setting, workers)
    elif commits.rounds:
        models = _in_rounds(workload, setting, commits, workers)
    else:
        models = _asynchronous(workload, setting, commits, workers, momentum_at)
    found = [
        (gradients, workload.accuracy(model))
        for gradients, model in takewhile(lambda made: made[0] <= iterations * workers, models)
    ]
    gradients = tuple(n for n, _ in found)
    return Curve(time_s=tuple(map(float, gradients)), gradients=gradients, accuracy=tuple(one for _, one in found))


def _judged(setting: Setting, curves: Sequence[Curve], targets: Sequence[float]) -> Tried:
    return Tried(
        setting=setting,
        gradients=tuple(statistics.fmean(_needed(curve, target) for curve in curves) for target in targets),
        accuracy=statistics.fmean(curve.at_end() for curve in curves),
    )


def _needed(curve: Curve, target: float) -> float:
    """Return the gradients to a target; all that were made if it was never met."""
    needed = curve.gradients_to(target)
    return curve.gradients[-1] if needed is None else needed


def _synchronous(workload: Workload, setting: Setting, workers: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield how many gradients the model has taken, and the model, at the start and after every step."""
    weights = workload.initial()
    velocity = np.zeros_like(weights)
    step = 0
    while True:
        yield step * workers, weights
        mean = np.mean([workload.gradient(weights, worker, step)[0] for worker in range(workers)], axis=0)
        velocity = setting.momentum * velocity + mean
        weights = (weights - setting.learning_rate * velocity).astype(np.float32)
        step += 1


def _with_inner_steps(
    workload: Workload, setting: Setting, workers: int, inner: Inner
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the same at the start and after every round; the setting is that of the inner steps."""
    outer, step = workload.initial(), 0
    velocities, outer_velocity = np.zeros((workers, outer.size), dtype=np.float32), np.zeros_like(outer)
    while True:
        yield step * workers, outer
        movement = np.zeros_like(outer)
        for worker in range(workers):
            own = outer.copy()
            for n in range(inner.steps):
                gradient, _ = workload.gradient(own, worker, step + n)
                velocities[worker] = setting.momentum * velocities[worker] + gradient
                own -= np.float32(setting.learning_rate) * velocities[worker]
            movement += (outer - own) / workers
        outer_velocity = inner.momentum * outer_velocity + movement
        outer = (outer - inner.learning_rate * (movement + inner.momentum * outer_velocity)).astype(np.float32)
        step += inner.steps


def _asynchronous(
    workload: Workload, setting: Setting, commits: Commits, workers: int, momentum_at: MomentumAt
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the same at the start and after every ``workers`` updates."""
    weights = workload.initial()
    kept = max(commits.delays) + 1
    models = deque([weights], maxlen=kept)
    velocities = np.zeros((workers, weights.size), dtype=np.float32)
    steps = [0] * workers
    for applied, (worker, delay) in enumerate(_repeated(commits)):
        if applied % workers == 0:
            yield applied, models[-1]
        read = models[-1 - min(delay, len(models) - 1)]
        gradient, _ = workload.gradient(read, worker, steps[worker])
        steps[worker] += 1
        velocity = velocities[worker if momentum_at is MomentumAt.WORKERS else 0]
        velocity *= setting.momentum
        velocity += gradient
        models.append(models[-1] - np.float32(setting.learning_rate / workers) * velocity)


def _in_rounds(
    workload: Workload, setting: Setting, commits: Commits, workers: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the same at the start and after every round, but for small rounds that follow each other closely.

    The second half of the rounds comes again and again; without the last one, which those few make who are left at the
    end: in the middle of training its gradients would weigh as much as those of all.
    """
    weights, taken, yielded = workload.initial(), 0, -workers
    models = deque([weights], maxlen=max(commits.delays) + 1)
    velocity = np.zeros_like(weights)
    steps = [0] * workers
    rounds = commits.by_round()[:-1]
    for members in chain(rounds, cycle(rounds[len(rounds) // 2 :])):
        if taken - yielded >= workers // 2:
            yield taken, models[-1]
            yielded = taken
        gradients = []
        for worker, delay in members:
            read = models[-1 - min(delay, len(models) - 1)]
            gradients.append(workload.gradient(read, worker, steps[worker])[0])
            steps[worker] += 1
        velocity = setting.momentum * velocity + np.mean(gradients, axis=0)
        models.append((models[-1] - setting.learning_rate * velocity).astype(np.float32))
        taken += len(members)


def _repeated(commits: Commits) -> Iterator[tuple[int, int]]:
    """Yield worker and delay of each commit without end: the second half again and again, as it has no start in it."""
    pairs = list(zip(commits.workers, commits.delays, strict=True))
    yield from pairs
    while True:
        yield from pairs[len(pairs) // 2 :]
