"""Ways to compute the gradients of several learners on one device: as one batched model, side by side, or in turn.

Which one is fastest depends on the model: one small operation for all learners costs about what it costs for one; of
large operations each keeps the device busy by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

import torch
from torch.func import vmap

from mlfabric.worker_daemon.learner_models import LearnerModels

__all__ = ["ENGINES", "Batch", "Engine", "Loss"]

Batch = tuple[Any, ...]
Loss = Callable[..., torch.Tensor]
"""Is given a model and what a batch has; returns the mean loss, a scalar."""
Engine = Callable[[LearnerModels, Loss, Sequence[Batch]], torch.Tensor]
"""Puts the gradient of each learner into its row; returns the losses."""


def batched(models: LearnerModels, loss: Loss, batches: Sequence[Batch]) -> torch.Tensor:
    """Compute all learners as one batched model (``torch.func.vmap``); all batches have the same shapes."""
    stacked = [torch.stack(parts) for parts in zip(*batches, strict=True)]
    weights, module = models.weights.detach().requires_grad_(), models.stand_in

    def loss_of(own: torch.Tensor, buffers: list[torch.Tensor], *batch: torch.Tensor) -> torch.Tensor:
        module.take(own, buffers)
        return loss(module.module, *batch)

    with torch.enable_grad():
        losses = vmap(loss_of, randomness="different")(weights, list(models.buffers.values()), *stacked)
        (gradients,) = torch.autograd.grad(losses.sum(), [weights])
    models.gradients.copy_(gradients)
    return losses.detach()


def in_turn(models: LearnerModels, loss: Loss, batches: Sequence[Batch]) -> torch.Tensor:
    """Compute one learner after the other; on a CUDA device each in a stream of its own, so side by side."""
    models.gradients.zero_()
    if models.device.type != "cuda":
        return torch.stack([_one(*each) for each in zip(models.modules, repeat(loss), batches)])
    present = torch.cuda.current_stream(models.device)
    streams = [torch.cuda.Stream(models.device) for _ in batches]  # type: ignore[no-untyped-call]
    found = []
    for stream, module, batch in zip(streams, models.modules, batches, strict=True):
        stream.wait_stream(present)
        with torch.cuda.stream(stream):
            found.append(_one(module, loss, batch))
    for stream in streams:
        present.wait_stream(stream)
    return torch.stack(found)


_POOL = ThreadPoolExecutor(thread_name_prefix="mlfabric learner")


def threads(models: LearnerModels, loss: Loss, batches: Sequence[Batch]) -> torch.Tensor:
    """Compute each learner in a thread."""
    models.gradients.zero_()
    return torch.stack(list(_POOL.map(_one, models.modules, repeat(loss), batches)))


def _one(module: torch.nn.Module, loss: Loss, batch: Batch) -> torch.Tensor:
    with torch.enable_grad():
        found = loss(module, *batch)
        found.backward()  # type: ignore[no-untyped-call]
    return found.detach()


ENGINES: dict[str, Engine] = {"batched": batched, "threads": threads, "in turn": in_turn}
"""By name."""
