"""A worker's own model in gossip: it steps by itself, offers its model, and moves by what the mean differs from that.

Between the offer and the mean that comes of it the worker may have made steps: the model becomes ``(own - offered) +
mean``, so nothing that was learnt meanwhile is lost, and as much is given as is taken: the mean over all workers stays
what it is. Without such a step it has the bits of the mean.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mlfabric.errors import UsageError
from mlfabric.model.specs import Method
from mlfabric.worker_daemon.attempts import padded_bytes
from mlfabric.worker_daemon.averaged_buffers import AveragedBuffers
from mlfabric.worker_daemon.flat_gradients import dtype_of_all
from mlfabric.worker_daemon.round_inbox import RoundResult
from mlfabric.worker_daemon.state_image import read_state, write_state
from mlfabric.worker_daemon.step_roles import Offered, RoundOutcome

__all__ = ["GossipModel", "steps_kept"]

_WAITS_FOR_NOBODY = 2**31


def steps_kept(method: Method) -> int:
    """Return how many steps a worker makes at most before it waits for the round that has its last offer."""
    return _WAITS_FOR_NOBODY if method is Method.ADPSGD else 1


class GossipModel:
    """What ``RoundSteps`` trains: a module, and an optimizer that steps it.

    Args:
        optimizer: makes the worker's own steps.
        model: its parameters that the optimizer steps are averaged, and ``AveragedBuffers``.

    Raises:
        LayoutError: there is nothing to train, or a tensor is of a dtype that cannot travel.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        self._optimizer, self._model = optimizer, model
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._buffers = AveragedBuffers(model)
        self._dtype = dtype_of_all(self._parameters, self._buffers.given())
        self.dtype = str(self._dtype).removeprefix("torch.")
        self.size_bytes = padded_bytes(sum(tensor.numel() for tensor in self._averaged()) * self._dtype.itemsize)
        self._offered = self.empty()

    def _averaged(self) -> list[torch.Tensor]:
        return [*self._parameters, *self._buffers.given()]

    def _places(self, flat: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Give each tensor of the model, and where it lies in a flat one."""
        at = 0
        for tensor in self._averaged():
            yield tensor, flat[at : at + tensor.numel()].view(tensor.shape)
            at += tensor.numel()

    def put(self, gathered: torch.Tensor, fresh: bool) -> bool:
        """Make a step of the worker's own, if its gradients and buffers are finite; return whether they are.

        Raises:
            UsageError: no parameter has a gradient; nothing was changed.
        """
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if not gradients:
            raise UsageError("step without a gradient: call backward() on a loss of this model first")
        is_finite = self._buffers.are_sound() and all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        if is_finite:
            self._optimizer.step()
        return is_finite

    def empty(self) -> torch.Tensor:
        """Return memory for a model that is offered."""
        return torch.zeros(self.size_bytes // self._dtype.itemsize, dtype=self._dtype)

    def bytes_of(self, gathered: torch.Tensor) -> memoryview:
        """Offer the present model: return its bytes, in this memory."""
        with torch.no_grad():
            for tensor, place in self._places(gathered):
                place.copy_(tensor)
        self._offered = gathered
        data: memoryview = gathered.view(torch.uint8).numpy().data
        return data

    def add_earlier(self, gathered: torch.Tensor, earlier: torch.Tensor) -> None:
        """Nothing is to be done about it: the next offer has all steps."""

    def rates(self) -> tuple[float, ...]:
        """Return nothing: each worker steps with its own numbers."""
        return ()

    def apply(self, result: RoundResult, total: memoryview) -> None:
        """Let the model go on from a round's mean with what it has learnt since the offer; not if it was in none."""
        if not total:
            return
        mean = torch.frombuffer(total, dtype=self._dtype, count=len(self._offered)).div_(result.weight)
        with torch.no_grad():
            for (tensor, offered), (_, new) in zip(self._places(self._offered), self._places(mean), strict=True):
                tensor.copy_(new.add_(tensor.to(offered.device, offered.dtype) - offered))

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
