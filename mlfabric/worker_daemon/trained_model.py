"""A model that its worker's own torch optimizer steps with the sums of rounds; and how a training thread waits."""

from __future__ import annotations

import threading
from collections.abc import Sequence
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
        parts: how the gradients of each part of the model travel; each round has one of them, in turn.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, parts: Sequence[FlatGradients]
    ) -> None:
        self._optimizer, self._model, self._parts = optimizer, model, parts
        self._turn, self.dtype = parts[0], parts[0].dtype
        """The part whose gradients were put into memory last."""

    @property
    def size_bytes(self) -> int:
        """Of what travels."""
        return self._turn.size_bytes

    def put(self, gathered: torch.Tensor, fresh: bool) -> bool:
        """Put the present gradients, which are of one part, into memory; see ``FlatGradients.add_into``."""
        self._turn = next((part for part in self._parts if part.has_gradients), self._parts[0])
        return self._turn.add_into(gathered[: self._turn.numel], fresh=fresh)

    def empty(self) -> torch.Tensor:
        """Return memory for gradients of any part."""
        return max(self._parts, key=lambda part: part.numel).empty()

    def bytes_of(self, gathered: torch.Tensor) -> memoryview:
        """Return the bytes that travel."""
        data: memoryview = gathered[: self._turn.numel].view(torch.uint8).numpy().data
        return data

    def add_earlier(self, gathered: torch.Tensor, earlier: torch.Tensor) -> None:
        """Add to gradients those of earlier steps."""
        assert len(self._parts) == 1, "what is in no round is another part's than the next one"
        self._turn.add_earlier(gathered, earlier)

    def rates(self) -> tuple[float, ...]:
        """Return the numbers of the optimizer as they are now."""
        return rates_of(self._optimizer)

    def apply(self, result: RoundResult, total: memoryview) -> None:
        """Make a step with a round's sum; the script's gradients stay where they are."""
        parameters = [parameter for part in self._parts for parameter in part.parameters]
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        try:
            turn = self._parts[(result.version - 1) % len(self._parts)]
            turn.spread(total, result.workers, result.weight)
            with with_rates(self._optimizer, result.rates):
                self._optimizer.step()
        finally:
            for parameter, gradient in zip(parameters, gradients, strict=True):
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
