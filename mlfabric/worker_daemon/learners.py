"""Several learners on one device, and the central average of their models (CROSSBOW: synchronous model averaging, SMA).

::

    learners = mlfabric.Learners(model, sgd, lambda model, x, y: cross_entropy(model(x), y), count=4)
    for x, y in loader:
        learners.step(x, y)

Each learner has a model of its own, and a batch of its own in each iteration. Before its step it is drawn towards the
central model z by the correction ``alpha (w - z)``; z moves by the sum of all corrections, and keeps some of its last
movement: ``z + sum(corrections) + momentum (z - z_before)`` (algorithm 1). Without momentum that is EA-SGD.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from mlfabric.arguments import instance_of, integer_of, number_of
from mlfabric.errors import UsageError
from mlfabric.methods.learner_count import LearnerCount
from mlfabric.worker_daemon.group_rates import is_new_rate
from mlfabric.worker_daemon.learner_engines import ENGINES, Batch, Loss
from mlfabric.worker_daemon.learner_models import LearnerModels

__all__ = ["Learners", "LearnersReport"]

MOMENTUM = 0.9
MOST_LEARNERS = 64
TRIES = 3
"""So many times each engine computes the first batches, before the fastest is taken."""
WARM_UP = 2
"""So many iterations with a new number of learners are not read."""
SPARED = 0.9
"""Of the memory that is free learners take this share at most."""


@runtime_checkable
class InFabric(Protocol):
    """An optimizer of one worker of many, that makes inner steps."""

    @property
    def inner(self) -> torch.optim.Optimizer:
        """Makes them."""

    def stepped(self) -> None:
        """Count an inner step that was made in another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnersReport:
    """How learners are computed.

    Args:
        count: how many there are.
        engine: how their gradients are computed: ``"batched"``, ``"threads"`` or ``"in turn"``; "" before the first.
        bytes_per_learner: what one more takes: weights, gradient, the optimizer's state, buffers, activations of a
            batch; 0 before the first iteration.
        iterations, restarts: how many there were.
    """

    count: int
    engine: str
    bytes_per_learner: int
    iterations: int
    restarts: int


class Learners:
    """Learners on one device.

    Args:
        model: the central model; it always has the average, to evaluate and to save.
        optimizer: of its parameters. Each learner has one like it; learning-rate schedulers act on all. Each of its
            numbers must depend on one element's values alone, as in SGD, Adam and AdamW. If it is what
            ``mlfabric.wrap`` has returned with method sma, local-sgd or diloco, this device is one worker of many, and
            each iteration of its learners is one of its inner steps.
        loss: is given a model and what a batch has; returns the mean loss of the batch.
        count: how many learners; ``"auto"`` for as many as bring more batches per second (algorithm 2).
        alpha: how strongly learners are drawn to the central model, above 0 and at most 1; 1 over their number unless
            given.
        momentum: of the central model, 0 to below 1; 0 makes it EA-SGD.
        engine: how gradients are computed: ``"batched"`` (one batched model), ``"threads"``, ``"in turn"``; ``"auto"``
            measures which is the fastest for the model. Batches of different shapes are always computed in turn.

    Raises:
        LayoutError: the model's parameters differ in dtype or device.
        UsageError: an argument cannot be used.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        *,
        count: int | str = "auto",
        alpha: float | None = None,
        momentum: float = MOMENTUM,
        engine: str = "auto",
    ) -> None:
        instance_of(torch.nn.Module, "model", model, "a torch.nn.Module")
        instance_of(torch.optim.Optimizer, "optimizer", optimizer, "a torch.optim.Optimizer")
        if not callable(loss):
            raise UsageError(f"loss={loss!r}; allowed: a function of a model and a batch")
        self._fabric = optimizer if isinstance(optimizer, InFabric) else None
        if self._fabric is not None:
            optimizer = self._fabric.inner
        self.model, self._optimizer, self._loss = model, optimizer, loss
        self._tuner = LearnerCount(MOST_LEARNERS) if count == "auto" else None
        fixed = 1 if count == "auto" else integer_of("count", count, least=1)
        self._alpha = None if alpha is None else number_of("alpha", alpha)
        self._momentum = number_of("momentum", momentum)
        if self._alpha is not None and not 0 < self._alpha <= 1:
            raise UsageError(f"alpha={alpha}; allowed: above 0, at most 1")
        if not 0 <= self._momentum < 1:
            raise UsageError(f"momentum={momentum}; allowed: 0 to below 1")
        if engine not in ("auto", *ENGINES):
            raise UsageError(f"engine={engine!r}; allowed: auto, {', '.join(ENGINES)}")
        self._wanted_engine, self._engine = engine, "" if engine == "auto" else engine
        self._free_bytes = int(SPARED * _free_bytes(optimizer.param_groups[0]["params"][0].device))
        """What all learners together may take."""
        self._check_fit(fixed, _least_bytes(optimizer))
        self._models = LearnerModels(model, optimizer, fixed)
        self._velocity = torch.zeros_like(self._models.common)
        self._rates = self._models.rates()
        self._waiting: list[Batch] = []
        self._bytes_each = self._iterations = self._restarts = self._fresh = 0

    @property
    def count(self) -> int:
        """How many learners there are: so many batches make an iteration."""
        return self._models.count

    @property
    def is_tuning(self) -> bool:
        """Whether the best number of learners is still looked for."""
        return self._tuner is not None and not self._tuner.is_settled

    @property
    def report(self) -> LearnersReport:
        """How they are computed."""
        return LearnersReport(
            count=self.count,
            engine=self._engine,
            bytes_per_learner=self._bytes_each,
            iterations=self._iterations,
            restarts=self._restarts,
        )

    def step(self, *batch: Any) -> torch.Tensor | None:
        """Give the next learner its batch; once each has one, make an iteration.

        Args:
            batch: what the loss is given besides the model.

        Returns:
            The losses of all learners if an iteration was made, else None.

        Raises:
            UsageError: so many learners do not fit into the memory that is free.
        """
        self._waiting.append(batch)
        if len(self._waiting) < self.count:
            return None
        batches, self._waiting = self._waiting, []
        if not self._bytes_each:
            self._measure_memory(batches[0])
        self._models.follow_mode()
        is_even = len({_shapes(batch) for batch in batches}) == 1
        if not self._engine and is_even:
            self._engine = self._fastest(batches)
        began_s = time.perf_counter()
        losses = ENGINES[self._engine if is_even else "in turn"](self._models, self._loss, batches)
        self._average()
        if self._fabric is not None:
            self._models.move_with(self._fabric.stepped)
        self._iterations += 1
        self._tune(began_s)
        return losses

    @torch.no_grad()
    def _average(self) -> None:
        """Make the step of each learner and of the central model."""
        models = self._models
        rates, self._rates = self._rates, models.rates()
        if any(is_new_rate(new, old) for new, old in zip(self._rates, rates, strict=True)):
            self.restart()
        corrections = (models.weights - models.common).mul_(self._alpha or 1 / self.count)
        models.step()
        models.weights.sub_(corrections)
        self._velocity.mul_(self._momentum).add_(corrections.sum(dim=0))
        models.common.add_(self._velocity)
        models.share_buffers()

    @torch.no_grad()
    def restart(self) -> None:
        """Let all learners go on from the central model, at rest; a great change of the learning rate does it, too."""
        self._models.restart()
        self._velocity.zero_()
        self._restarts += 1

    # Which engine, and how many

    def _fastest(self, batches: list[Batch]) -> str:
        """Return which engine computes these batches fastest; one that cannot compute the model is left out."""
        if self.count == 1:
            return "in turn"
        kept = {name: values.clone() for name, values in self._models.buffers.items()}
        took_s: dict[str, float] = {}
        failures = []
        for name in ENGINES:
            try:
                took_s[name] = min(self._timed(name, batches) for _ in range(TRIES))
            except (RuntimeError, NotImplementedError, ValueError) as error:
                failures.append(error)
            with torch.no_grad():
                for buffer, values in kept.items():
                    self._models.buffers[buffer].copy_(values)
        if not took_s:
            raise failures[-1]
        return min(took_s, key=lambda name: took_s[name])

    def _timed(self, engine: str, batches: list[Batch]) -> float:
        began_s = time.perf_counter()
        ENGINES[engine](self._models, self._loss, batches)
        self._wait()
        return time.perf_counter() - began_s

    def _wait(self) -> None:
        if self._models.device.type == "cuda":
            torch.cuda.synchronize(self._models.device)

    def _tune(self, began_s: float) -> None:
        """Read how long the iteration took; have another number of learners if that is to be tried."""
        if self._tuner is None or self._tuner.is_settled:
            return
        self._wait()
        self._fresh += 1
        if self._fresh <= WARM_UP:
            return
        self._tuner.read(self.count / (time.perf_counter() - began_s))
        if self._tuner.count != self.count:
            self._models.resize(self._tuner.count)
            self._fresh, self._engine = 0, "" if self._wanted_engine == "auto" else self._wanted_engine

    def _measure_memory(self, batch: Batch) -> None:
        """Find out what a learner takes; refuse a number that does not fit.

        Raises:
            UsageError: says how many would.
        """
        saved = [0]

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved[0] += tensor.numel() * tensor.element_size()
            return tensor

        buffers = sum(buffer.numel() * buffer.element_size() for buffer in self.model.buffers())
        was = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.enable_grad():
            self._loss(self.model, *batch)
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(was[name])
        self._bytes_each = _least_bytes(self._optimizer) + buffers + saved[0]
        if self._tuner is not None:
            self._tuner.limit(min(MOST_LEARNERS, self._fits(self._bytes_each)))
        self._check_fit(self.count, self._bytes_each)

    def _fits(self, bytes_each: int) -> int:
        """Return how many learners fit, at least one: that one is what training takes anyway."""
        return max(1, self._free_bytes // bytes_each)

    def _check_fit(self, count: int, bytes_each: int) -> None:
        fits = self._fits(bytes_each)
        if count > fits:
            each, free = bytes_each / 2**20, self._free_bytes / 2**20
            raise UsageError(
                f"count={count}: a learner takes {each:.1f} MiB and {free:.0f} MiB are free; allowed: up to {fits}"
            )


def _free_bytes(device: torch.device) -> int:
    """Return how much memory can be had: of a CUDA device, else of the machine, what files fill included."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    told = Path("/proc/meminfo")
    lines = told.read_text().splitlines() if told.exists() else []
    kib = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * kib[0] if kib else sys.maxsize


def _least_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return what a learner takes without activations: weights, gradient, correction, and the optimizer's averages."""
    averages = sum(len(_as_tuple(optimizer.defaults.get(name))) for name in ("momentum", "betas"))
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return (3 + averages) * int(sum(p.numel() * p.element_size() for p in parameters))


def _shapes(batch: Batch) -> tuple[torch.Size | None, ...]:
    return tuple(part.shape if torch.is_tensor(part) else None for part in batch)


def _as_tuple(number: Any) -> tuple[Any, ...]:
    """Return what an optimizer keeps averages of: none of a momentum of 0, two of a pair of betas."""
    return tuple(number) if isinstance(number, tuple) else (number,) if number else ()
