"""DropCompute: how much faster training is when workers stop to compute at a threshold.

1. *ratios*: how much longer the slowest of some workers takes than one, with the paper's noise (C.3); simulated.
2. *virtual*: 64 workers of which each step is simulated, a classifier that is really trained: time to the same loss.
3. *real*: the same with eight workers in a fabric.
4. *even*: eight workers in a fabric whose micro-batches all take the same time.

``mlfabric bench dropcompute``, 25 minutes; ``--set only=ratios,virtual``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.checking import at_least_one
from benchmarks.eager_tasks import Digits
from benchmarks.forked_workers import Begin, progress, settings_of, worked
from benchmarks.processes import scheduler_process
from benchmarks.skew import sleep_until
from benchmarks.testbed.cpu import CpuMeter
from mlfabric.errors import UsageError
from mlfabric.methods.drop_compute import NO_THRESHOLD, Timings, begun_before, best_threshold

__all__ = ["run"]

PARTS = ("ratios", "virtual", "real", "even")
MICRO_BATCHES = 12
TIMED_STEPS = 20
RATE = 0.1
SAMPLES = 2
"""Of a micro-batch, in virtual time."""
REAL_PACE_S, REAL_WORKERS = 0.02, 8
PATIENCE_S = 600.0

NOISE_MU, NOISE_SIGMA, NOISE_MEAN, NOISE_BOUND = 4.0, 1.0, 0.5, 5.0
"""The paper's additive noise (B.1): log-normal, scaled to half of a micro-batch's time, at most five times that."""


def run(only: str = "", trials: int = 3, steps: int = 300, real_steps: int = 300, workers: int = 64) -> dict[str, Any]:
    """Measure.

    Args:
        only: a part, or several with commas between them; "" for all.
        trials: seeds; medians count.
        steps, workers: of each training in ``virtual``.
        real_steps: of each training in ``real`` and ``even``.

    Returns:
        ``ratios``: by noise. For the trainings ``time`` (with a threshold over without, to the loss that the training
        without has at its end), ``steps`` (the same ratio), ``predicted`` and ``realised`` speed-up in micro-batches
        per second, and ``dropped``.

    Raises:
        UsageError: there is no such part, or a number is out of range.
        RuntimeError: a process failed.
    """
    at_least_one(trials=trials, steps=steps, real_steps=real_steps, workers=workers)
    names = only.split(",") if only else list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        raise UsageError(f"only={','.join(unknown)}; allowed: {', '.join(PARTS)}")
    measure: dict[str, Callable[[], dict[str, Any]]] = {
        "ratios": _ratios,
        "virtual": lambda: _medians(_virtual(workers, steps, seed) for seed in range(trials)),
        "real": lambda: _medians(_real(real_steps, seed, is_noisy=True) for seed in range(trials)),
        "even": lambda: _medians(_real(real_steps, seed, is_noisy=False) for seed in range(trials)),
    }
    return {name: measure[name]() for name in names}


def _medians(found: Iterable[dict[str, float]]) -> dict[str, float]:
    rows = list(found)
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def _noise(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return by how many times a micro-batch's time each of some is longer."""
    scale = NOISE_MEAN / np.exp(NOISE_MU + NOISE_SIGMA**2 / 2)
    drawn: np.ndarray = np.minimum(scale * draw.lognormal(NOISE_MU, NOISE_SIGMA, shape), NOISE_BOUND)
    return drawn


# The slowest worker's time over one worker's

RATIO_WORKERS, RATIO_BASE_S, RATIO_STEPS = 700, 0.45, 2_000
"""The paper does not say how many workers its table is of, nor what a micro-batch takes without noise. With these two
numbers all ten ratios come out."""
NOISE_MEAN_S = 0.225
PAPER_RATIOS = {
    "lognormal 0.05": 1.496,
    "normal 0.05": 1.302,
    "bernoulli 0.05": 1.283,
    "exponential 0.05": 1.386,
    "gamma 0.05": 1.390,
    "lognormal 0.10": 1.933,
    "lognormal 0.15": 2.394,
    "lognormal 0.20": 2.773,
    "lognormal 0.25": 3.043,
    "lognormal 0.30": 3.400,
}


def _ratios() -> dict[str, Any]:
    """Return for each noise the ratio, the paper's, and how far off it is."""
    found = {}
    for name, wanted in PAPER_RATIOS.items():
        kind, _, variance = name.partition(" ")
        ratio = _ratio(kind, float(variance))
        found[name] = {"ratio": ratio, "paper": wanted, "off": ratio / wanted - 1}
    return {**found, "most_off": max(abs(row["off"]) for row in found.values())}


def _ratio(kind: str, variance: float) -> float:
    """Return the mean time of the slowest worker over that of one."""
    draw, slowest, mean = np.random.default_rng(0), 0.0, 0.0
    for _ in range(RATIO_STEPS):
        step_s = (RATIO_BASE_S + _additive(draw, kind, variance)).sum(axis=1)
        slowest, mean = slowest + float(step_s.max()), mean + float(step_s.mean())
    return slowest / mean


def _additive(draw: np.random.Generator, kind: str, variance: float) -> np.ndarray:
    """Draw noise of this variance, and of mean ``NOISE_MEAN_S``, for all micro-batches of a step."""
    mean, shape = NOISE_MEAN_S, (RATIO_WORKERS, MICRO_BATCHES)
    match kind:
        case "lognormal":
            sigma2 = np.log(1 + variance / mean**2)
            return draw.lognormal(np.log(mean) - sigma2 / 2, np.sqrt(sigma2), shape)
        case "normal":
            return draw.normal(mean, np.sqrt(variance), shape)
        case "bernoulli":
            chance = mean**2 / (variance + mean**2)
            return mean / chance * (draw.random(shape) < chance)
        case "exponential":
            return draw.exponential(mean, shape)
    return draw.gamma(mean**2 / variance, variance / mean, shape)


# 64 workers in virtual time


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """How a training went: of each step when it ended, the loss then, and how many micro-batches it had."""

    ended_s: list[float]
    losses: list[float]
    done: list[int]


def _virtual(workers: int, steps: int, seed: int) -> dict[str, float]:
    """Train with a threshold and without; a step takes what its slowest worker does, and half a micro-batch besides."""
    progress(f"dropcompute: {workers} workers in virtual time, seed {seed}")
    draw = np.random.default_rng((seed, 1))
    computed_s = 1.0 + _noise(draw, (2 * steps, workers, MICRO_BATCHES))
    rest_s = 0.5
    chosen = best_threshold(Timings(computed_s=computed_s[:TIMED_STEPS], rest_s=np.full(TIMED_STEPS, rest_s)))
    plain = _trained(computed_s[:steps], rest_s, NO_THRESHOLD, seed)
    dropping = _trained(computed_s, rest_s, chosen.tau_s, seed)
    after = slice(TIMED_STEPS, steps)
    realised = (np.mean(dropping.done[after]) / np.mean(np.diff(dropping.ended_s)[TIMED_STEPS : steps - 1])) / (
        np.mean(plain.done) / np.mean(np.diff(plain.ended_s))
    )
    return {
        **_compared(plain, dropping),
        "predicted": chosen.speedup,
        "realised": float(realised),
        "dropped": 1 - float(np.mean(dropping.done[after])) / (workers * MICRO_BATCHES),
        "predicted_dropped": chosen.dropped,
    }


def _trained(computed_s: np.ndarray, rest_s: float, tau_s: float, seed: int) -> _Course:
    """Train a classifier of digits on the micro-batches that are computed in each step."""
    example, course, at_s = Digits(seed), _Course(ended_s=[], losses=[], done=[]), 0.0
    sgd = torch.optim.SGD(example.model.parameters(), lr=RATE)
    images, labels = example.training
    draw = torch.Generator().manual_seed(seed)
    for step, times_s in enumerate(computed_s):
        begun, ends_s = begun_before(tau_s if step >= TIMED_STEPS else NO_THRESHOLD, times_s)
        at_s += float(np.where(begun, ends_s, 0.0).max()) + rest_s
        done = int(begun.sum())
        chosen = torch.randint(len(labels), (done * SAMPLES,), generator=draw)
        sgd.zero_grad()
        nn.functional.cross_entropy(example.model(images[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
        sgd.step()
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(example.model(images), labels))
        course.ended_s.append(at_s)
        course.losses.append(loss)
        course.done.append(done)
    return course


def _compared(plain: _Course, dropping: _Course) -> dict[str, float]:
    """Return time and steps to the plain training's last loss, over its own."""
    target = plain.losses[-1]
    to = next((n for n, loss in enumerate(dropping.losses) if loss <= target), None)
    if to is None:
        return {"time": float("inf"), "steps": float("inf")}
    return {"time": dropping.ended_s[to] / plain.ended_s[-1], "steps": (to + 1) / len(plain.losses)}


# Eight workers in a fabric


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What one worker does."""

    rank: int
    steps: int
    seed: int
    is_noisy: bool
    drops: bool
    scheduler: str


def _real(steps: int, seed: int, *, is_noisy: bool) -> dict[str, float]:
    """Train with a threshold and without, in a fabric."""
    with CpuMeter() as cpu:
        plain = _in_fabric(steps, seed, is_noisy=is_noisy, drops=False)
        dropping = _in_fabric(steps * 5 // 4, seed, is_noisy=is_noisy, drops=True)
    courses = [_Course(ended_s=one["ended_s"], losses=one["losses"], done=[]) for one in (plain[0], dropping[0])]
    reports = [one["report"] for one in dropping]
    dropped = statistics.fmean(one["dropped"] for one in reports)
    return {
        **_compared(*courses),
        "predicted": reports[0]["predicted_speedup"],
        "realised": (1 - dropped) * _step_s(courses[0]) / _step_s(courses[1]),
        "dropped": dropped,
        "predicted_dropped": reports[0]["predicted_dropped"],
        "cpu_used_share": cpu.used_share,
        "cpu_saturated_share": cpu.saturated_share,
    }


def _step_s(course: _Course) -> float:
    """Return what a step takes on average, once a threshold may be there."""
    after = course.ended_s[2 * TIMED_STEPS :]
    return (after[-1] - after[0]) / (len(after) - 1)


def _in_fabric(steps: int, seed: int, *, is_noisy: bool, drops: bool) -> list[dict[str, Any]]:
    progress(f"dropcompute: {REAL_WORKERS} workers, seed {seed}, {'with' if drops else 'without'} a threshold")
    with scheduler_process() as (scheduler, _):
        tasks = [
            _Task(rank=rank, steps=steps, seed=seed, is_noisy=is_noisy, drops=drops, scheduler=scheduler)
            for rank in range(REAL_WORKERS)
        ]
        return worked(_work, tasks, PATIENCE_S)


def _work(task: _Task, begin: Begin) -> dict[str, Any]:
    """Train; a micro-batch takes ``REAL_PACE_S`` and its noise, most of which is slept."""
    import mlfabric

    torch.set_num_threads(1)
    example = Digits(task.seed)
    sgd = torch.optim.SGD(example.model.parameters(), lr=RATE)
    settings = settings_of(task.scheduler, task.rank)
    optimizer = mlfabric.wrap(sgd, example.model, method="all-reduce", workers=REAL_WORKERS, settings=settings)
    threshold: Any = "auto" if task.drops else 1e9
    draw, ended_s, losses = np.random.default_rng((task.seed, task.rank)), list[float](), list[float]()
    began_s = begin()
    sleep_until(began_s)
    for step in range(task.steps):
        noise = _noise(draw, (MICRO_BATCHES,)) if task.is_noisy else np.zeros(MICRO_BATCHES)
        loop = mlfabric.drop_compute(range(MICRO_BATCHES), optimizer, micro_batches=MICRO_BATCHES, threshold=threshold)
        optimizer.zero_grad()
        for micro in loop:
            until_s = time.monotonic() + REAL_PACE_S * (1 + noise[micro])
            loss, _ = example.loss(task.rank, step * MICRO_BATCHES + micro)
            loss.backward()  # type: ignore[no-untyped-call]
            sleep_until(until_s)
        optimizer.step()
        if task.rank == 0:
            ended_s.append(time.monotonic() - began_s)
            images, labels = example.training
            with torch.no_grad():
                losses.append(float(nn.functional.cross_entropy(example.model(images), labels)))
    report = loop.report
    optimizer.leave()
    names = ("predicted_speedup", "predicted_dropped", "dropped")
    return {"ended_s": ended_s, "losses": losses, "report": {name: getattr(report, name) for name in names}}
