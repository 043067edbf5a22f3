"""A model that its worker's own torch optimizer steps with the sums of rounds; and how a training thread waits."""

from __future__ import annotations

import threading
from typing import TypeVar

import torch

from mlfabric.worker_daemon.flat_gradients import FlatGradients
from mlfabric.worker_daemon.group_rates import rates_of, with_rates
from mlfabric.worker_daemon.round_inbox import RoundResult
from mlfabric.worker_daemon.state_image import read_state, write_state
from mlfabric.worker_daemon.step_roles import Answer, Offered, RoundOutcome

__all__ = ["ThreadWaits", "TrainedModel"]

T = TypeVar("T")


class TrainedModel:
    """What ``RoundSteps`` trains: a module and its optimizer.

    Args:
        optimizer: steps the model.
        flat: how gradients travel.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, flat: FlatGradients) -> None:
        self._optimizer, self._model, self._flat = optimizer, model, flat
        self.size_bytes, self.dtype = flat.size_bytes, flat.dtype

    def put(self, gathered: torch.Tensor, fresh: bool) -> bool:
        """Put the present gradients into memory; see ``FlatGradients.add_into``."""
        return self._flat.add_into(gathered, fresh=fresh)

    def empty(self) -> torch.Tensor:
        """Return memory for gradients."""
        return self._flat.empty()

    def bytes_of(self, gathered: torch.Tensor) -> memoryview:
        """Return the bytes that travel."""
        data: memoryview = gathered.view(torch.uint8).numpy().data
        return data

    def add_earlier(self, gathered: torch.Tensor, earlier: torch.Tensor) -> None:
        """Add to gradients those of earlier steps."""
        self._flat.add_earlier(gathered, earlier)

    def rates(self) -> tuple[float, ...]:
        """Return the numbers of the optimizer as they are now."""
        return rates_of(self._optimizer)

    def apply(self, result: RoundResult, total: memoryview) -> None:
        """Make a step with a round's sum; the script's gradients stay where they are."""
        gradients = [parameter.grad for parameter in self._flat.parameters]
        try:
            self._flat.spread(total, result.workers, result.weight)
            with with_rates(self._optimizer, result.rates):
                self._optimizer.step()
        finally:
            for parameter, gradient in zip(self._flat.parameters, gradients, strict=True):
                parameter.grad = gradient

    def write(self) -> memoryview:
        """Return weights and optimizer state."""
        return write_state(self._model, self._optimizer)

    def read(self, image: memoryview) -> None:
        """Install what a peer's ``write`` has returned."""
        read_state(image, self._model, self._optimizer)

    def included(self, offered: Offered[torch.Tensor], outcome: RoundOutcome) -> None:
        """Nothing is to be done about it."""

    def dropped(self, gathered: torch.Tensor) -> None:
        """Nothing is to be done about it."""


class ThreadWaits:
    """Waits that block the thread."""

    def __init__(self) -> None:
        self._news = threading.Event()
        self.wake = self._news.set

    async def news(self) -> None:
        """Wait until ``wake`` was called since the last wait."""
        self._news.wait()
        self._news.clear()

    async def known(self, answer: Answer[T]) -> T:
        """Wait for an answer."""
        return answer.result()

    async def crossing(self) -> None:
        """Nothing has to be waited for: news crosses by itself."""
