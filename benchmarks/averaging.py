"""Several learners on one device (CROSSBOW): batches per second, and time and epochs to an accuracy.

1. *throughput*: four learners beside one, and beside plain SGD with the same batch, on one core.
2. *accuracy*: a small LeNet and a small ResNet on digits: SMA beside plain SGD with one learner's batch and with all
   learners' batches together, beside one learner, and beside EA-SGD; each at the best of the same rates.

Times are those of the processor: what else the machine does plays no part. ``mlfabric bench averaging``, 15 minutes;
``--set only=throughput``.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.checking import at_least_one
from benchmarks.eager_tasks import Digits
from benchmarks.forked_workers import progress
from mlfabric.errors import UsageError
from mlfabric.worker_daemon.learners import Learners

__all__ = ["run"]

PARTS = ("throughput", "accuracy")
BATCH, LEARNERS, SIDE = 16, 4, 8
MOMENTUM = 0.9


class _Block(nn.Module):
    """Two convolutions beside a short cut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(inputs)
        return (inputs + made).relu()


def _lenet() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, SIDE, SIDE)),
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def _resnet() -> nn.Module:
    layers = (nn.Unflatten(1, (1, SIDE, SIDE)), nn.Conv2d(1, 8, 3, padding=1), _Block(8), _Block(8), nn.AvgPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


MODELS: Mapping[str, Callable[[], nn.Module]] = {"lenet": _lenet, "resnet": _resnet, "perceptron": _perceptron}
TRAINED: Mapping[str, float] = {"lenet": 98.0, "resnet": 98.6}
"""The models whose training is measured, and to which accuracy in percent."""


def run(only: str = "", trials: int = 3, iterations: int = 400, epochs: int = 60) -> dict[str, Any]:
    """Measure.

    Args:
        only: a part, or several with commas between them; "" for all.
        trials: readings of ``throughput``, seeds of ``accuracy``; medians count.
        iterations: batches of each reading of ``throughput``.
        epochs: a training is given up after so many.

    Returns:
        ``throughput``: by model, four learners over one (``over_one``) and over plain SGD (``over_sgd``), and
        the bytes that a learner takes. ``accuracy``: by model ``over_sgd``, how many times as fast
        SMA is as the faster one of plain SGD's; ``epochs_over_one``; ``time_over_ea``; None where one of the two never
        had the accuracy. ``epochs_by_rate`` has those of one learner and of four at each learning rate; None where that
        would take more than ``epochs``.

    Raises:
        UsageError: there is no such part, or a number is out of range.
    """
    at_least_one(trials=trials, iterations=iterations, epochs=epochs)
    names = only.split(",") if only else list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        raise UsageError(f"only={','.join(unknown)}; allowed: {', '.join(PARTS)}")
    torch.set_num_threads(1)
    measure: dict[str, Callable[[], dict[str, Any]]] = {
        "throughput": lambda: {name: _throughput(name, trials, iterations) for name in MODELS},
        "accuracy": lambda: {name: _accuracy(name, trials, epochs) for name in TRAINED},
    }
    return {name: measure[name]() for name in names}


def _loss(model: Any, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(images), labels)


Step = Callable[[torch.Tensor, torch.Tensor], object]


def _plain(model: nn.Module, rate: float) -> Step:
    """Return a step of plain SGD."""
    sgd = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        sgd.zero_grad()
        _loss(model, images, labels).backward()  # type: ignore[no-untyped-call]
        sgd.step()

    return step


def _learners(model: nn.Module, rate: float, count: int, momentum: float = MOMENTUM) -> Learners:
    sgd = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)
    engine = "auto" if count == 1 else "batched"
    return Learners(model, sgd, _loss, count=count, momentum=momentum, engine=engine)


# Batches per second

WARM_UP = 40


def _throughput(name: str, trials: int, iterations: int) -> dict[str, Any]:
    progress(f"averaging: throughput of {name}")
    images, labels = Digits(0).training
    four, one = (_learners(MODELS[name](), 0.01, count) for count in (LEARNERS, 1))
    steps: dict[str, Step] = {"four": four.step, "one": one.step, "sgd": _plain(MODELS[name](), 0.01)}
    found: dict[str, list[float]] = {way: [] for way in steps}
    for _ in range(trials):
        for way, step in steps.items():
            found[way].append(_per_s(step, images, labels, iterations))
    pace = {way: statistics.median(readings) for way, readings in found.items()}
    return {
        "over_one": pace["four"] / pace["one"],
        "over_sgd": pace["four"] / pace["sgd"],
        "bytes_per_learner": four.report.bytes_per_learner,
    }


def _per_s(step: Step, images: torch.Tensor, labels: torch.Tensor, iterations: int) -> float:
    """Return batches per second of the processor."""
    began_s = 0.0
    for n in range(WARM_UP + iterations):
        if n == WARM_UP:
            began_s = time.process_time()
        at = n * BATCH % (len(labels) - BATCH)
        step(images[at : at + BATCH], labels[at : at + BATCH])
    return iterations / (time.process_time() - began_s)


# Time and epochs to an accuracy

RATES = (0.02, 0.04, 0.08, 0.15)
JUDGED_PER_EPOCH = 4
Made = tuple[Step, int]
"""A step, and how many samples it takes."""


def _accuracy(name: str, trials: int, epochs: int) -> dict[str, Any]:
    """Return how long each way takes to the accuracy, at its best rate; and the epochs of learners at each rate."""
    ways: dict[str, Callable[[nn.Module, float], Made]] = {
        "sma": lambda model, rate: (_learners(model, rate, LEARNERS).step, BATCH),
        "ea": lambda model, rate: (_learners(model, rate, LEARNERS, momentum=0.0).step, BATCH),
        "one": lambda model, rate: (_learners(model, rate, 1).step, BATCH),
        "sgd": lambda model, rate: (_plain(model, rate), BATCH),
        "sgd_of_all": lambda model, rate: (_plain(model, rate), BATCH * LEARNERS),
    }
    took: dict[str, dict[str, float]] = {}
    by_rate: dict[str, dict[str, float | None]] = {f"{rate:g}": {} for rate in RATES}
    for way, make in ways.items():
        progress(f"averaging: {name}, {way}")
        rows = [_medians(_trained(name, make, rate, epochs, seed) for seed in range(trials)) for rate in RATES]
        took[way] = min(rows, key=lambda row: row["cpu_s"])
        if way in ("one", "sma"):
            for at_rate, row in zip(by_rate.values(), rows, strict=True):
                at_rate[way] = row["epochs"] if math.isfinite(row["epochs"]) else None
    fastest = min(took["sgd"], took["sgd_of_all"], key=lambda row: row["cpu_s"])
    return {
        "over_sgd": _over(fastest, took["sma"], "cpu_s"),
        "over_sgd_with_small_batches": _over(took["sgd"], took["sma"], "cpu_s"),
        "epochs_over_one": _over(took["sma"], took["one"], "epochs"),
        "time_over_ea": _over(took["sma"], took["ea"], "cpu_s"),
        **{f"{way}_epochs": row["epochs"] for way, row in took.items() if math.isfinite(row["epochs"])},
        "epochs_by_rate": by_rate,
    }


def _over(one: dict[str, float], other: dict[str, float], figure: str) -> float | None:
    """Return a ratio; None if one of the two never had the accuracy."""
    is_known = math.isfinite(one[figure]) and math.isfinite(other[figure])
    return one[figure] / other[figure] if is_known else None


def _medians(found: Iterable[dict[str, float]]) -> dict[str, float]:
    rows = list(found)
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def _trained(
    name: str, make: Callable[[nn.Module, float], Made], rate: float, epochs: int, seed: int
) -> dict[str, float]:
    """Train until the accuracy is there; return after how many epochs, and seconds of the processor."""
    example = Digits(seed)
    images, labels = example.training
    torch.manual_seed(seed)
    model = MODELS[name]()
    step, taken = make(model, rate)
    spent_s, last = 0.0, epochs * JUDGED_PER_EPOCH
    for quarter, piece in enumerate(_pieces(len(labels), last, seed), start=1):
        began_s = time.process_time()
        for chosen in torch.split(piece, taken):
            if len(chosen) == taken:
                step(images[chosen], labels[chosen])
        spent_s += time.process_time() - began_s
        if _judged(model, *example.held_out) >= TRAINED[name]:
            return {"epochs": quarter / JUDGED_PER_EPOCH, "cpu_s": spent_s}
    return {"epochs": math.inf, "cpu_s": math.inf}


def _pieces(samples: int, count: int, seed: int) -> Iterator[torch.Tensor]:
    """Give the samples of each part of an epoch, in an order of its own for each epoch."""
    draw = torch.Generator().manual_seed(seed)
    for number in range(count):
        if number % JUDGED_PER_EPOCH == 0:
            pieces = torch.randperm(samples, generator=draw).chunk(JUDGED_PER_EPOCH)
        yield pieces[number % JUDGED_PER_EPOCH]


@torch.no_grad()
def _judged(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the accuracy in percent."""
    model.eval()
    right = (model(images).argmax(1) == labels).float().mean()
    model.train()
    return 100.0 * float(right)
