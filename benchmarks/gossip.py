"""Gossip: how fast models come together, what that costs in epochs, and whom a slow worker holds up.

1. *theory*: the ring's second eigenvalue, the contraction of random rings, and how far apart models are after 20
   iterations at 64 workers; measured by runs of the mixing rules, beside what theory says.
2. *epochs*: a classifier of digits with 1 learner and with 16, 32 and 64 virtual ones: epochs to a held-out loss.
3. *slow*: eight workers in a fabric, one of them ten times as slow: what the others make beside a run without it.
4. *even*: eight workers in a fabric, all alike, beside gloo's ring all-reduce: iterations per second.

``mlfabric bench gossip``, 15 minutes; ``--set only=theory,slow``.
"""

from __future__ import annotations

import math
import socket
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call, grad, vmap

from benchmarks.checking import at_least_one
from benchmarks.eager_tasks import Digits
from benchmarks.forked_workers import Begin, progress, settings_of, worked
from benchmarks.processes import scheduler_process
from benchmarks.skew import sleep_until
from benchmarks.testbed.cpu import CpuMeter
from mlfabric.errors import UsageError
from mlfabric.methods.mixing import Mixing, consensus, matrix, second_eigenvalue

__all__ = ["run"]

PARTS = ("theory", "epochs", "slow", "even")
SIZES = (8, 16, 32, 64, 128, 256)
PATIENCE_S = 600.0


def run(
    only: str = "", trials: int = 3, learners: Sequence[int] = (16, 32, 64), epochs: int = 60, steps: int = 100
) -> dict[str, Any]:
    """Measure.

    Args:
        only: a part, or several with commas between them; "" for all.
        trials: seeds of ``epochs``, and runs of ``slow`` and ``even``; medians count.
        learners: how many there are in ``epochs``, one number after the other.
        epochs: of each training's recipe.
        steps: of each worker in ``slow`` and ``even``.

    Returns:
        ``theory``: the greatest relative errors, and ``ring_over_random``: distances after 20 iterations. ``epochs``:
        for each number of learners and method, over one learner, and the best losses, over its best. ``slow``:
        ``others``, steps per second beside a run in which nobody is slow. ``even``: by method, iterations per second
        over the ring's.

    Raises:
        UsageError: there is no such part, or a number is out of range.
        RuntimeError: a process failed.
    """
    at_least_one(trials=trials, epochs=epochs, steps=steps, learners=min(learners, default=0))
    names = only.split(",") if only else list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        raise UsageError(f"only={','.join(unknown)}; allowed: {', '.join(PARTS)}")
    measure: dict[str, Callable[[], dict[str, Any]]] = {
        "theory": _theory,
        "epochs": lambda: {str(n): _medians(_epochs(n, epochs, s) for s in range(trials)) for n in learners},
        "slow": lambda: _medians(_slow(steps) for _ in range(trials)),
        "even": lambda: _medians(_even(steps) for _ in range(trials)),
    }
    return {name: measure[name]() for name in names}


def _medians(found: Iterable[dict[str, float]]) -> dict[str, float]:
    rows = list(found)
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


# What theory says

RANDOM_DRAWS, ITERATIONS, FAR = 400, 20, 64


def _theory() -> dict[str, Any]:
    """Return how far runs are from theory, and the paper's comparison."""
    ring = [second_eigenvalue(matrix(Mixing.RING, n, 0)) / ((1 + 2 * math.cos(2 * math.pi / n)) / 3) for n in SIZES]
    random = [_shrinks(n) / ((n - 3) / (3 * (n - 1))) for n in SIZES]
    far, near = (consensus(mixing, FAR, ITERATIONS)[-1] for mixing in (Mixing.RING, Mixing.RANDOM_RING))
    return {
        "ring_eigenvalue_most_off": max(abs(one - 1) for one in ring),
        "random_contraction_most_off": max(abs(one - 1) for one in random),
        "random_contraction_at_64": _shrinks(FAR),
        "ring_over_random": far / near,
    }


def _shrinks(workers: int) -> float:
    """Return by how much the squared distance from the mean shrinks in an iteration, over many draws of the ring.

    Theory: (n - 3) / (3 (n - 1)), as the three weights of 1/3 share a squared length of 1/3.
    """
    draw, found = np.random.default_rng(workers), []
    for iteration in range(RANDOM_DRAWS):
        models = draw.standard_normal((workers, 8))
        models -= models.mean(axis=0)
        mixed = matrix(Mixing.RANDOM_RING, workers, iteration) @ models
        found.append(float((mixed**2).sum() / (models**2).sum()))
    return statistics.fmean(found)


# Epochs to a held-out loss

EACH_BATCH, MOMENTUM, WARM_UP = 8, 0.9, 0.1
RATES = (0.05, 0.1, 0.2, 0.3, 0.4)
JUDGED_EVERY = 2
NEAR_BEST = 1.1
METHODS = {"rand": Mixing.RANDOM_RING, "d1d": Mixing.FULL, "dpsgd": Mixing.RING, "adpsgd": Mixing.PAIRS}


def _epochs(learners: int, epochs: int, seed: int) -> dict[str, float]:
    """Return by method after how many epochs the loss is a tenth above one learner's best, over its number of epochs.

    All train by the same recipe, each at the best of the same rates. One learner has the batch of all.
    """
    progress(f"gossip: {learners} virtual learners, seed {seed}")
    one = [_losses(Mixing.FULL, 1, learners * EACH_BATCH, rate, epochs, seed) for rate in RATES]
    target = NEAR_BEST * min(map(min, one))
    found = {
        name: [_losses(mixing, learners, learners * EACH_BATCH, rate, epochs, seed) for rate in RATES]
        for name, mixing in METHODS.items()
    }
    alone = min(_steps_to(target, losses) for losses in one)
    over = {name: min(_steps_to(target, losses) for losses in each) / alone for name, each in found.items()}
    best = {f"{name}_best_loss": min(map(min, each)) / min(map(min, one)) for name, each in found.items()}
    return {"share_of_recipe": alone / len(one[0]), **over, **best}


def _steps_to(target: float, losses: Sequence[float]) -> float:
    return next((n + 1.0 for n, loss in enumerate(losses) if loss <= target), math.inf)


def _losses(mixing: Mixing, learners: int, total_batch: int, rate: float, epochs: int, seed: int) -> list[float]:
    """Train all learners as one batched model; return the held-out losses of the mean of their models.

    The recipe: momentum, a warm-up over a tenth of the steps, then a rate that falls to 0.
    """
    example = Digits(seed)
    (images, labels), held_out = example.training, example.held_out
    model = example.model
    weights = {name: p.detach().repeat(learners, *[1] * p.dim()) for name, p in model.named_parameters()}
    velocity = {name: torch.zeros_like(value) for name, value in weights.items()}

    def loss_of(one: dict[str, torch.Tensor], inputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(model, one, (inputs,)), wanted)

    gradients_of, losses = vmap(grad(loss_of)), list[float]()
    draw, steps = torch.Generator().manual_seed(seed), epochs * len(labels) // total_batch
    for step in range(steps):
        chosen = torch.randint(len(labels), (learners, total_batch // learners), generator=draw)
        gradients = gradients_of(weights, images[chosen], labels[chosen])
        mixed = torch.from_numpy(matrix(mixing, learners, step, seed)).float()
        rate_now = rate * min(1.0, (step + 1) / (WARM_UP * steps)) * (1 - step / steps)
        for name, gradient in gradients.items():
            velocity[name] = MOMENTUM * velocity[name] + gradient
            averaged = (mixed @ weights[name].reshape(learners, -1)).view_as(weights[name])
            weights[name] = averaged - rate_now * velocity[name]
        if step % JUDGED_EVERY == 0:
            with torch.no_grad():
                losses.append(float(loss_of({name: one.mean(dim=0) for name, one in weights.items()}, *held_out)))
    return losses


# Eight workers in a fabric

WORKERS, PACE_S, SLOW_TIMES, WIDTH = 8, 0.05, 10, 400


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What one worker does: it trains by a method for so many steps, of which each takes this long."""

    rank: int
    method: str
    steps: int
    step_s: float
    scheduler: str
    port: int


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


def _slow(steps: int) -> dict[str, float]:
    """Return what seven workers make in pairs with a slow one, beside a run in which none is slow."""
    with CpuMeter() as cpu:
        alone = _in_fabric("adpsgd", steps, slow=False)
        beside = _in_fabric("adpsgd", steps, slow=True)
    before, after = (statistics.median(one["steps_per_s"] for one in found[1:]) for found in (alone, beside))
    return {
        "others": after / before,
        "slow_worker": beside[0]["steps_per_s"] / alone[0]["steps_per_s"],
        "rounds_per_step": beside[1]["rounds"] / steps,
        **_used(cpu),
    }


def _even(steps: int) -> dict[str, float]:
    """Return iterations per second by method, over those of gloo's ring in the same run."""
    with CpuMeter() as cpu:
        found = {method: _in_fabric(method, steps, slow=False) for method in ("ring", *METHODS)}
    pace = {method: statistics.median(one["steps_per_s"] for one in each) for method, each in found.items()}
    return {**{method: pace[method] / pace["ring"] for method in METHODS}, **_used(cpu)}


def _used(cpu: CpuMeter) -> dict[str, float]:
    return {"cpu_used_share": cpu.used_share, "cpu_saturated_share": cpu.saturated_share}


def _in_fabric(method: str, steps: int, *, slow: bool) -> list[dict[str, float]]:
    progress(f"gossip: {WORKERS} workers, {method}{', one of them slow' if slow else ''}")
    with scheduler_process() as (scheduler, _):
        port = _free_port()
        tasks = [
            _Task(
                rank=rank,
                method=method,
                steps=steps // SLOW_TIMES if slow and rank == 0 else steps,
                step_s=PACE_S * (SLOW_TIMES if slow and rank == 0 else 1),
                scheduler=scheduler,
                port=port,
            )
            for rank in range(WORKERS)
        ]
        return worked(_work, tasks, PATIENCE_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _work(task: _Task, begin: Begin) -> dict[str, float]:
    """Train, most of each step asleep; return steps per second, and how many rounds there were."""
    import mlfabric

    torch.set_num_threads(1)
    model, example = _model(), Digits(0)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    fabric: Any = None
    if task.method == "ring":
        store = f"tcp://127.0.0.1:{task.port}"
        limit = timedelta(seconds=PATIENCE_S)
        dist.init_process_group("gloo", init_method=store, rank=task.rank, world_size=WORKERS, timeout=limit)
    else:
        settings = settings_of(task.scheduler, task.rank)
        fabric = mlfabric.wrap(sgd, model, method=task.method, workers=WORKERS, settings=settings)
    step_once = fabric.step if fabric is not None else _ring_step(sgd, model)
    images, labels = example.training
    began_s = begin()
    sleep_until(began_s)
    for step in range(task.steps):
        until_s = time.monotonic() + task.step_s
        at = (step * WORKERS + task.rank) * example.BATCH % (len(labels) - example.BATCH)
        sgd.zero_grad()
        chosen = slice(at, at + example.BATCH)
        nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
        sleep_until(until_s)
        step_once()
    took_s = time.monotonic() - began_s
    rounds = float(task.steps if fabric is None else fabric.version)
    if fabric is None:
        dist.destroy_process_group()
    else:
        fabric.agree()
        fabric.leave()
    return {"steps_per_s": task.steps / took_s, "rounds": rounds}


def _ring_step(sgd: torch.optim.Optimizer, model: nn.Module) -> Callable[[], None]:
    """Return a step with the mean of all workers' gradients, along gloo's ring."""

    def step() -> None:
        flat = torch.cat([gradient.reshape(-1) for gradient in _gradients(model)])
        dist.all_reduce(flat)
        at = 0
        for gradient in _gradients(model):
            gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient) / WORKERS)
            at += gradient.numel()
        sgd.step()

    return step


def _gradients(model: nn.Module) -> Iterator[torch.Tensor]:
    return (parameter.grad for parameter in model.parameters() if parameter.grad is not None)
