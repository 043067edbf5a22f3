"""What partial rounds are measured with: small models, real or made data, and how long each step is to take.

Delays are slept, so that eight workers fit on two cores: what a step would take on a machine of its own is its *pace*
and its delay. The draws depend on seed, worker and step alone: all methods get the same batches and delays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

__all__ = ["TASKS", "Example", "Schedule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long steps take.

    Args:
        pace_s: a step that is not delayed.
        delays_s: one of the workers, drawn anew for each step, is delayed by the first of them if there is one delay;
            else worker i of N by the ``i + step``-th: shifted after each step.
    """

    pace_s: float
    delays_s: tuple[float, ...]

    def step_s(self, worker: int, workers: int, step: int) -> float:
        """Return how long a step of a worker takes."""
        if len(self.delays_s) == 1:
            is_slow = np.random.default_rng((1, step)).integers(workers) == worker
            return self.pace_s + (self.delays_s[0] if is_slow else 0.0)
        return self.pace_s + self.delays_s[(worker + step) % len(self.delays_s)] if self.delays_s else self.pace_s


class Example(Protocol):
    """A model and its data."""

    model: nn.Module

    def loss(self, worker: int, step: int) -> tuple[torch.Tensor, float]:
        """Return the loss of one batch, and the work in it: 1 is a usual step's."""

    def judged(self) -> float:
        """Return how good the model is on data that it was not trained with."""


def _draw(*numbers: int) -> np.random.Generator:
    return np.random.default_rng(numbers)


class Hyperplane:
    """Linear regression in 8,192 dimensions (eager-SGD, 6.2.1): ``judged`` is the mean squared error.

    Inputs are signs, drawn anew; noise of variance 4.7 makes the least loss about the paper's.
    """

    DIMENSIONS = 8_192
    BATCH = 256
    NOISE = 4.7**0.5
    VALIDATED = 1_024
    is_loss = True

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.model = nn.Linear(self.DIMENSIONS, 1)
        nn.init.zeros_(self.model.weight)
        nn.init.zeros_(self.model.bias)
        self._plane = torch.from_numpy(_draw(seed, 0).standard_normal(self.DIMENSIONS, dtype=np.float32))

    def loss(self, worker: int, step: int) -> tuple[torch.Tensor, float]:
        """Return the loss of a batch."""
        return self._error(_draw(self._seed, 1, worker, step), self.BATCH), 1.0

    def judged(self) -> float:
        """Return the mean squared error on points of its own."""
        with torch.no_grad():
            return float(self._error(_draw(self._seed, 2), self.VALIDATED))

    def _error(self, draw: np.random.Generator, points: int) -> torch.Tensor:
        packed = np.frombuffer(draw.bytes(points * self.DIMENSIONS // 8), dtype=np.uint8)
        signs = torch.from_numpy(np.unpackbits(packed)).view(points, self.DIMENSIONS).float().mul_(2).sub_(1)
        noise = torch.from_numpy(draw.standard_normal(points, dtype=np.float32)) * self.NOISE
        return nn.functional.mse_loss(self.model(signs).squeeze(1), signs @ self._plane + noise)


class Digits:
    """scikit-learn's 1,797 real digits; every fifth tests: ``judged`` is the accuracy in percent."""

    BATCH = 16
    is_loss = False

    def __init__(self, seed: int) -> None:
        from sklearn.datasets import load_digits

        found = load_digits()
        images, labels = torch.from_numpy(found.data / 16).float(), torch.from_numpy(found.target).long()
        tests = torch.arange(len(labels)) % 5 == 4
        self.training, self.held_out = (images[~tests], labels[~tests]), (images[tests], labels[tests])
        self._seed = seed
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def loss(self, worker: int, step: int) -> tuple[torch.Tensor, float]:
        """Return the loss of a batch."""
        images, labels = self.training
        chosen = torch.from_numpy(_draw(self._seed, worker, step).integers(len(labels), size=self.BATCH))
        return nn.functional.cross_entropy(self.model(images[chosen]), labels[chosen]), 1.0

    def judged(self) -> float:
        """Return the accuracy on the test images."""
        images, labels = self.held_out
        with torch.no_grad():
            return 100.0 * float((self.model(images).argmax(1) == labels).float().mean())


class Text:
    """An LSTM on sentences of uneven length: does a sentence's verb agree with its subject? ``judged`` as of digits.

    The grammar: a sentence is a subject, any number of asides and a verb. Subject and verb are singular or plural; an
    aside is a preposition and a noun of any number, which has nothing to do with the verb. Half of all sentences agree.
    A batch's sentences have one length (a bucket), 2 + 2 k words; k is geometric with mean 6, at most 40. So the work
    of a batch varies as its length does: about as much as that of the paper's videos (mean 1.2 s, deviation 0.7 s).
    """

    BATCH = 32
    TESTED = 512
    NOUNS, VERBS, PREPOSITIONS = 12, 8, 4
    MEAN_ASIDES, MOST_ASIDES = 6, 40
    is_loss = False

    def __init__(self, seed: int) -> None:
        self._seed = seed
        torch.manual_seed(seed)
        self.model = _Agreement(2 * self.NOUNS + 2 * self.VERBS + self.PREPOSITIONS)

    def loss(self, worker: int, step: int) -> tuple[torch.Tensor, float]:
        """Return the loss of a batch, and its length in units of the mean."""
        words, labels = self._sentences(_draw(self._seed, 1, worker, step), self.BATCH)
        return nn.functional.cross_entropy(self.model(words), labels), words.shape[1] / (2 + 2 * self.MEAN_ASIDES)

    def judged(self) -> float:
        """Return the accuracy on sentences of its own."""
        right = total = 0
        with torch.no_grad():
            for bucket in range(self.TESTED // self.BATCH):
                words, labels = self._sentences(_draw(self._seed, 2, bucket), self.BATCH)
                right += int((self.model(words).argmax(1) == labels).sum())
                total += len(labels)
        return 100.0 * right / total

    def _sentences(self, draw: np.random.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        asides = min(self.MOST_ASIDES, int(draw.geometric(1 / self.MEAN_ASIDES)))
        words = np.empty((count, 2 + 2 * asides), dtype=np.int64)
        number = draw.integers(2, size=count)
        agrees = draw.integers(2, size=count)
        first_verb = 2 * self.NOUNS
        first_preposition = first_verb + 2 * self.VERBS
        words[:, 0] = 2 * draw.integers(self.NOUNS, size=count) + number
        words[:, 1:-1:2] = first_preposition + draw.integers(self.PREPOSITIONS, size=(count, asides))
        words[:, 2:-1:2] = draw.integers(2 * self.NOUNS, size=(count, asides))
        words[:, -1] = first_verb + 2 * draw.integers(self.VERBS, size=count) + (number ^ (1 - agrees))
        return torch.from_numpy(words), torch.from_numpy(agrees)


class _Agreement(nn.Module):
    """Embedding, LSTM, and a layer that sees the first and the last state."""

    def __init__(self, words: int, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(words))
        chances: torch.Tensor = self.head(torch.cat([states[:, 0], states[:, -1]], dim=1))
        return chances


TASKS: Mapping[str, type[Hyperplane] | type[Digits] | type[Text]] = {
    "hyperplane": Hyperplane,
    "digits": Digits,
    "text": Text,
}
