"""Learning rate and momentum of each system, found by one small search that is the same for all.

What a network does to training is that gradients take effect late, and nothing else: hence a run's statistics can be
had in one process without a network, from the same batches and the order and delays of a recorded run. That makes the
search a matter of seconds: every setting of the grid trains as many gradients from the same seeds (other ones than are
measured later), and the one that needs the fewest to the target wins.

Momentum is kept as the systems keep it: by the server where asynchronous systems have a plain one, by each worker in
the fabric (its pushes are velocities). For synchronous steps both are the same.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.testbed.catalogue import MomentumAt
from benchmarks.testbed.judging import Curve
from benchmarks.testbed.spec import Commits
from benchmarks.testbed.workload import Workload, WorkloadSpec

__all__ = ["FULL", "QUICK", "Effort", "Setting", "Tried", "Tuning", "search", "train"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Setting:
    """One point of the grid; the learning rate is that of a synchronous step."""

    learning_rate: float
    momentum: float


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
        gradients: to the target, mean over the seeds; None if one of them never met it.
        accuracy: at the end, mean over the seeds.
    """

    setting: Setting
    gradients: float | None
    accuracy: float

    @property
    def rank(self) -> tuple[float, float]:
        """Smaller is better: fewest gradients to the target; without any, the best accuracy."""
        return (float("inf") if self.gradients is None else self.gradients, -self.accuracy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What the search found, with all that it tried."""

    best: Setting
    target: float
    tried: tuple[Tried, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Tuning:
        """Read what ``as_json`` made."""
        tried = (Tried(**{**row, "setting": Setting(**row["setting"])}) for row in values["tried"])
        return cls(best=Setting(**values["best"]), target=values["target"], tried=tuple(tried))


def search(
    spec: WorkloadSpec,
    commits: Commits | None,
    *,
    workers: int,
    target: float,
    momentum_at: MomentumAt = MomentumAt.SERVER,
    effort: Effort = FULL,
    told: Callable[[Tried], None] = lambda _: None,
) -> Tuning:
    """Try every setting of the grid and return the best.

    Args:
        spec: what is trained; its seed is not used.
        commits: of a recorded asynchronous run; None for a synchronous system.
        target: accuracy to be reached.
        told: is given each setting when it has been tried.
    """
    workloads = [WorkloadSpec(model=spec.model, batch_size=spec.batch_size, seed=seed).build() for seed in effort.seeds]
    tried = []
    for setting in effort.grid:
        curves = [
            train(w, setting, commits, workers=workers, iterations=effort.iterations, momentum_at=momentum_at)
            for w in workloads
        ]
        tried.append(_judged(setting, curves, target))
        told(tried[-1])
    return Tuning(best=min(tried, key=lambda row: row.rank).setting, target=target, tried=tuple(tried))


def train(
    workload: Workload,
    setting: Setting,
    commits: Commits | None,
    *,
    workers: int,
    iterations: int,
    momentum_at: MomentumAt = MomentumAt.SERVER,
) -> Curve:
    """Train in this process as a cluster would, gradient by gradient; the curve's times are gradients.

    Args:
        commits: whose gradients take effect in which order and how late, begun again from its middle when it ends; None
            for synchronous training.
        iterations: of ``workers`` gradients each.
    """
    if commits is None:
        models = _synchronous(workload, setting, workers)
    else:
        models = _asynchronous(workload, setting, commits, workers, momentum_at)
    gradients = tuple(i * workers for i in range(iterations + 1))
    accuracy = tuple(workload.accuracy(model) for _, model in zip(gradients, models, strict=False))
    return Curve(time_s=tuple(float(n) for n in gradients), gradients=gradients, accuracy=accuracy)


def _judged(setting: Setting, curves: Sequence[Curve], target: float) -> Tried:
    needed = [curve.gradients_to(target) for curve in curves]
    met = [n for n in needed if n is not None]
    return Tried(
        setting=setting,
        gradients=statistics.fmean(met) if len(met) == len(needed) else None,
        accuracy=statistics.fmean(curve.at_end() for curve in curves),
    )


def _synchronous(workload: Workload, setting: Setting, workers: int) -> Iterator[np.ndarray]:
    """Yield the model at the start and after every step."""
    weights = workload.initial()
    velocity = np.zeros_like(weights)
    step = 0
    while True:
        yield weights
        mean = np.mean([workload.gradient(weights, worker, step)[0] for worker in range(workers)], axis=0)
        velocity = setting.momentum * velocity + mean
        weights = (weights - setting.learning_rate * velocity).astype(np.float32)
        step += 1


def _asynchronous(
    workload: Workload, setting: Setting, commits: Commits, workers: int, momentum_at: MomentumAt
) -> Iterator[np.ndarray]:
    """Yield the model at the start and after every ``workers`` updates."""
    weights = workload.initial()
    kept = max(commits.delays) + 1
    models = deque([weights], maxlen=kept)
    velocities = np.zeros((workers, weights.size), dtype=np.float32)
    steps = [0] * workers
    for applied, (worker, delay) in enumerate(_repeated(commits)):
        if applied % workers == 0:
            yield models[-1]
        read = models[-1 - min(delay, len(models) - 1)]
        gradient, _ = workload.gradient(read, worker, steps[worker])
        steps[worker] += 1
        velocity = velocities[worker if momentum_at is MomentumAt.WORKERS else 0]
        velocity *= setting.momentum
        velocity += gradient
        models.append(models[-1] - np.float32(setting.learning_rate / workers) * velocity)


def _repeated(commits: Commits) -> Iterator[tuple[int, int]]:
    """Yield worker and delay of each commit without end: the second half again and again, as it has no start in it."""
    pairs = list(zip(commits.workers, commits.delays, strict=True))
    yield from pairs
    while True:
        yield from pairs[len(pairs) // 2 :]
