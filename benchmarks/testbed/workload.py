"""What the testbed trains: most of all a small classifier of real digits, as one flat float32 vector; by one thread.

The gradient is written out by hand, straight into the flat vector: tens of processes share a few cores, so a step has
to cost well under a millisecond of CPU, and the rest of its 100 ms is slept (:class:`PaddedCompute`). The model is a
multilayer perceptron with one hidden layer (ReLU) and softmax cross-entropy. Which images a worker takes in a step
depends on seed, worker and step alone, so all systems see the same batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from benchmarks.testbed.digits import CLASSES, PIXELS, Digits, load
from mlfabric.errors import LayoutError, UsageError
from mlfabric.twin.settings import ComputeSetting

__all__ = ["MODELS", "TOPIC_MODELS", "Classifier", "PaddedCompute", "Workload", "WorkloadSpec"]

MODELS: Mapping[str, int] = MappingProxyType({"mlp-50k": 64, "mlp-250k": 314})
"""Widths of the hidden layer by name: 50,890 and 249,640 parameters, 0.2 and 1.0 MB."""

TOPIC_MODELS: Mapping[str, int] = MappingProxyType({"lda-12": 12})
"""Numbers of topics by name: 51,096 counts of words in topics, 0.2 MB; see ``benchmarks.testbed.topics``."""

FULL_INK = 255
NS_PER_S = 1_000_000_000

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What is trained.

    Args:
        model: a name from ``MODELS`` or ``TOPIC_MODELS``.
        batch_size: images per step of a worker, > 0; where topics are found, a step is over all of its documents.
        seed: of the initial model and of the batches, >= 0.
        workers: how many share the data, > 0; images are drawn by each from all, unless they are sliced.
        sliced: each worker draws images from a slice of its own, of one class or two.
    """

    model: str
    batch_size: int
    seed: int
    workers: int = 1
    sliced: bool = False

    def __post_init__(self) -> None:
        allowed_models = (*MODELS, *TOPIC_MODELS)
        for given, good, allowed in (
            (f"model={self.model!r}", self.model in allowed_models, ", ".join(allowed_models)),
            (f"batch_size={self.batch_size}", self.batch_size > 0, "more than 0"),
            (f"seed={self.seed}", self.seed >= 0, "0 or more"),
            (f"workers={self.workers}", self.workers > 0, "more than 0"),
            (f"sliced={self.sliced}", not (self.sliced and self.model in TOPIC_MODELS), "False with topics"),
        ):
            if not good:
                raise UsageError(f"workload: {given}; allowed: {allowed}")

    @property
    def preloaded(self) -> tuple[str, ...]:
        """Modules that a process had better import before it forks workers."""
        return ("benchmarks.testbed.topics",) if self.model in TOPIC_MODELS else ()

    def build(self) -> Workload:
        """Load the data and make the workload.

        Raises:
            UnavailableError: the digits have not been fetched.
        """
        if self.model in TOPIC_MODELS:
            from benchmarks.testbed.topics import Topics

            return Topics(topics=TOPIC_MODELS[self.model], seed=self.seed, workers=self.workers)
        return Classifier(self, load())


class Workload(Protocol):
    """A model and its data."""

    @property
    def n_parameters(self) -> int:
        """How many float32 numbers the model is."""

    def initial(self) -> np.ndarray:
        """Return the model before training: float32, (n_parameters,)."""

    def gradient(
        self, weights: np.ndarray, worker: int, step: int, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, float]:
        """Compute what a step along is subtracted, and the loss; see :meth:`Classifier.gradient`."""

    def turned_away(self) -> None:
        """Hear that what ``gradient`` returned last was not applied and never will be."""

    def accuracy(self, weights: np.ndarray) -> float:
        """Return how good a model is on data that it was not trained with; more is better."""


class _Parts(NamedTuple):
    """A flat vector seen as the model's tensors, without a copy."""

    hidden: torch.Tensor
    hidden_bias: torch.Tensor
    output: torch.Tensor
    output_bias: torch.Tensor


class Classifier:
    """A multilayer perceptron and the digits; computes with one thread, whatever else this process does with torch.

    Args:
        spec: what to train.
        digits: the data.

    Attributes:
        spec: what is trained.
    """

    def __init__(self, spec: WorkloadSpec, digits: Digits) -> None:
        torch.set_num_threads(1)
        self.spec = spec
        self._digits = digits
        width = MODELS[spec.model]
        self._shapes = ((PIXELS, width), (width,), (width, CLASSES), (CLASSES,))
        self._sizes = [int(np.prod(shape)) for shape in self._shapes]
        self.n_parameters = sum(self._sizes)

    def initial(self) -> np.ndarray:
        """Return the model before training: float32, (n_parameters,); He's initialisation, biases 0."""
        random = np.random.default_rng((self.spec.seed, 0))
        weights = np.zeros(self.n_parameters, dtype=np.float32)
        parts = self._parts(weights)
        for part, inputs in ((parts.hidden, PIXELS), (parts.output, MODELS[self.spec.model])):
            drawn = random.normal(scale=(2 / inputs) ** 0.5, size=tuple(part.shape))
            part.copy_(torch.from_numpy(drawn))
        return weights

    def gradient(
        self, weights: np.ndarray, worker: int, step: int, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, float]:
        """Compute the gradient of the mean loss of one batch.

        Args:
            weights: float32, (n_parameters,).
            worker, step: which batch, each >= 0.
            out: float32, (n_parameters,): takes the gradient instead of a new vector.

        Returns:
            The gradient, and the mean cross-entropy in nats.

        Raises:
            LayoutError: ``weights`` or ``out`` has another shape or dtype.
        """
        gradient = np.empty(self.n_parameters, dtype=np.float32) if out is None else out
        parts, slopes = self._parts(weights), self._parts(gradient)
        images, labels = self._batch(worker, step)
        hidden = torch.addmm(parts.hidden_bias, images, parts.hidden).relu_()
        log_chances = torch.addmm(parts.output_bias, hidden, parts.output).log_softmax(1)
        rows = torch.arange(len(labels))
        loss = -float(log_chances[rows, labels].mean())
        at_output = log_chances.exp_()
        at_output[rows, labels] -= 1
        at_output /= len(labels)
        at_hidden = torch.mm(at_output, parts.output.t()).mul_(hidden > 0)
        torch.mm(hidden.t(), at_output, out=slopes.output)
        torch.sum(at_output, 0, out=slopes.output_bias)
        torch.mm(images.t(), at_hidden, out=slopes.hidden)
        torch.sum(at_hidden, 0, out=slopes.hidden_bias)
        return gradient, loss

    def turned_away(self) -> None:
        """Do nothing: a gradient is of its batch, and another batch has another."""

    def accuracy(self, weights: np.ndarray) -> float:
        """Return the share of the test images that the model recognises."""
        return float(self._recognised(weights).mean())

    def accuracy_on(self, classes: Collection[int], weights: np.ndarray) -> float:
        """Return the share of the test images of some classes that the model recognises."""
        return float(self._recognised(weights)[np.isin(self._digits.test_labels, list(classes))].mean())

    def classes_of(self, workers: Collection[int]) -> list[int]:
        """Return the classes of which these workers have most of the images, if the images are sliced."""
        slices = [self._digits.train_labels[self._slice_of(worker)] for worker in workers]
        theirs = np.bincount(np.concatenate(slices), minlength=CLASSES)
        of_all = np.bincount(self._digits.train_labels, minlength=CLASSES)
        return [int(label) for label in np.flatnonzero(2 * theirs > of_all)]

    def _recognised(self, weights: np.ndarray) -> np.ndarray:
        """Return which of the test images the model recognises."""
        parts = self._parts(weights)
        hidden = torch.addmm(parts.hidden_bias, _ink(self._digits.test_images), parts.hidden).relu_()
        chosen = torch.addmm(parts.output_bias, hidden, parts.output).argmax(1)
        recognised: np.ndarray = chosen.numpy() == self._digits.test_labels
        return recognised

    def _slice_of(self, worker: int) -> slice:
        """Return which of the training images, sorted by class, a worker draws from."""
        images = len(self._digits.train_labels)
        if not self.spec.sliced:
            return slice(0, images)
        return slice(images * worker // self.spec.workers, images * (worker + 1) // self.spec.workers)

    def _batch(self, worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = np.random.default_rng((self.spec.seed, 1, worker, step))
        own = self._slice_of(worker)
        chosen = random.integers(own.start, own.stop, size=self.spec.batch_size)
        return _ink(self._digits.train_images[chosen]), torch.from_numpy(self._digits.train_labels[chosen])

    def _parts(self, flat: np.ndarray) -> _Parts:
        if flat.shape != (self.n_parameters,) or flat.dtype != np.float32:
            raise LayoutError(
                f"a vector of {flat.dtype} and shape {flat.shape} for {self.spec.model}; "
                f"allowed: float32 and ({self.n_parameters},)"
            )
        pieces = torch.split_with_sizes(torch.from_numpy(flat), self._sizes)
        return _Parts(*(piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)))


def _ink(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images).to(torch.float32).div_(FULL_INK)


class PaddedCompute:
    """Makes a worker's steps last as long as the run's setting says, by sleeping after the real work.

    Args:
        setting: which steps are slow.
        seed: of them.
        worker: whose steps.
        base_s: how long a step lasts that is not slow, >= 0.
        dilation: by how much all steps are stretched, >= 1.
        now_ns, sleep_s: the clock, and what waits on it.
    """

    def __init__(
        self,
        setting: ComputeSetting,
        *,
        seed: int,
        worker: int,
        base_s: float,
        dilation: float,
        now_ns: Callable[[], int] = time.monotonic_ns,
        sleep_s: Callable[[float], None] = time.sleep,
    ) -> None:
        self._setting = setting
        self._seed = seed
        self._worker = worker
        self._base_ns = base_s * dilation * NS_PER_S
        self._now_ns = now_ns
        self._sleep_s = sleep_s
        self.overruns = 0

    def lasts_ns(self, step: int) -> int:
        """Return how long a step lasts."""
        return int(self._base_ns * self._setting.slowdown(self._seed, self._worker, step))

    def run(self, step: int, function: Callable[[], Result]) -> Result:
        """Call a function and return its result when the step's time is over; count it if it took longer."""
        over_ns = self._now_ns() + self.lasts_ns(step)
        result = function()
        left_ns = over_ns - self._now_ns()
        if left_ns >= 0:
            self._sleep_s(left_ns / NS_PER_S)
        else:
            self.overruns += 1
        return result
