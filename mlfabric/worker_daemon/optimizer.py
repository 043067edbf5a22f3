"""An optimizer whose ``step`` goes through the fabric.

It looks like the ``torch.optim.SGD`` that it was made from; the step itself is taken by the server, with the same rule.
Each ``step()`` pushes the gradients and installs the model that the step before asked for, so communication overlaps
with the next batch's computation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlfabric.errors import UsageError
from mlfabric.specs import RuleSpec, Schedule
from mlfabric.worker_daemon.worker import PushHandle, Worker

__all__ = ["FabricOptimizer", "rule_of"]


def rule_of(optimizer: torch.optim.Optimizer) -> RuleSpec:
    """Return the update rule that does what ``optimizer`` does.

    Raises:
        UsageError: it is not plain SGD, or its parameter groups differ.
    """
    if type(optimizer) is not torch.optim.SGD:
        raise UsageError(f"cannot take over {type(optimizer).__name__}; allowed: torch.optim.SGD")
    first, *others = optimizer.param_groups
    for key, wanted in (("dampening", 0), ("nesterov", False), ("maximize", False)):
        if first[key] != wanted:
            raise UsageError(f"cannot take over SGD with {key}={first[key]}; allowed: {wanted}")
    for key in ("lr", "momentum", "weight_decay"):
        values = {float(group[key]) for group in (first, *others)}
        if len(values) > 1:
            raise UsageError(f"parameter groups differ in {key}: {sorted(values)}; the server keeps one rule per model")
    return RuleSpec(
        lr=float(first["lr"]),
        momentum=float(first["momentum"]),
        weight_decay=float(first["weight_decay"]),
        schedule=Schedule.CONSTANT,
    )


class FabricOptimizer(torch.optim.Optimizer):
    """A worker in the shape of an optimizer; made by ``mlfabric.wrap``.

    Args:
        optimizer: whose parameters and settings are taken over; it takes no step itself.
        worker: a registered worker of the same model; the first model is installed at once.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, worker: Worker) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.worker = worker
        self.last_push: PushHandle | None = None
        worker.get()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Push the gradients, install the model that the last step asked for; return the closure's loss, if any.

        Raises:
            FabricClosedError: the worker has left the fabric.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.last_push = self.worker.exchange()
        return loss

    def finish(self) -> None:
        """Wait for open pushes and install the newest model, for an evaluation."""
        self.worker.drain()
        self.worker.get()
