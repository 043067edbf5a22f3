"""The data, the model and its accuracy: scikit-learn's digits, 1,797 real images of 8 x 8 pixels.

360 of them, the same share of every digit, are kept for testing; nothing is trained on those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from mlfabric.demo.scenario import Scenario

__all__ = ["TEST_IMAGES", "Digits", "accuracy", "batches", "load", "make_model"]

TEST_IMAGES = 360
MEAN, DEVIATION = 4.9, 6.0
SIDE, CHANNELS, CLASSES = 8, 32, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """Images as float32 rows of 64 values (mean 0, deviation 1), labels as int64; no image is in both sets."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


def load(seed: int) -> Digits:
    """Return the data, split by ``seed``."""
    pixels, labels = load_digits(return_X_y=True)
    images = ((pixels - MEAN) / DEVIATION).astype(np.float32)
    split = train_test_split(images, labels, test_size=TEST_IMAGES, stratify=labels, random_state=seed)
    train_x, test_x, train_y, test_y = (torch.from_numpy(part) for part in split)
    return Digits(train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)


def make_model(scenario: Scenario) -> torch.nn.Module:
    """Return the classifier with the initial weights of the scenario's seed."""
    with torch.random.fork_rng():
        torch.manual_seed(scenario.seed)
        return torch.nn.Sequential(
            torch.nn.Unflatten(1, (1, SIDE, SIDE)),
            torch.nn.Conv2d(1, CHANNELS, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(CHANNELS, 2 * CHANNELS, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(CHANNELS * SIDE**2 // 2, scenario.hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(scenario.hidden, CLASSES),
        )


def batches(scenario: Scenario, data: Digits, rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches without end: the training set in a new order for each pass, another one for each rank."""
    random = np.random.default_rng([scenario.seed, rank])
    order = np.empty(0, dtype=np.int64)
    while True:
        while len(order) < scenario.batch:
            order = np.concatenate([order, random.permutation(len(data.train_x))])
        chosen, order = torch.from_numpy(order[: scenario.batch]), order[scenario.batch :]
        yield data.train_x[chosen], data.train_y[chosen]


def accuracy(model: torch.nn.Module, data: Digits) -> float:
    """Return the share of test images that ``model`` classifies rightly."""
    with torch.no_grad():
        return float((model(data.test_x).argmax(dim=1) == data.test_y).double().mean())
