"""An optimizer whose ``step`` goes through the fabric.

It looks like the optimizer that it was made from, and shares its parameter groups and state: schedulers may be built on
either. Asynchronous, each ``step()`` pushes an update and installs the model that the step before asked for, so
communication overlaps with the next batch's computation. With the other methods it waits for the model that has this
very step in it: workers that count on one another's iterations must not run ahead of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlfabric.errors import UsageError
from mlfabric.model.specs import Method
from mlfabric.model.update_rules import RuleKind, RuleSpec
from mlfabric.worker_daemon.taken_over import TakenOver
from mlfabric.worker_daemon.worker import PushHandle, Worker

__all__ = ["FabricOptimizer"]


class FabricOptimizer(TakenOver):
    """A worker in the shape of an optimizer; made by ``mlfabric.wrap``.

    The last step needs no :meth:`finish` to be in the model: the process's end waits for open pushes.

    Args:
        optimizer: whose parameters and settings are taken over; it takes no step itself.
        worker: a registered worker of the same model; the first model is installed at once.
        rule: of the job.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, worker: Worker, rule: RuleSpec) -> None:
        super().__init__(optimizer)
        self._rule = rule
        self.worker = worker
        self.last_push: PushHandle | None = None
        worker.get()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Push the gradients, install the model that follows; return the closure's loss, if any.

        Asynchronous, the model is the one that the last step asked for.

        Raises:
            UsageError: a parameter group has got a setting that cannot be taken over; nothing was pushed.
            FabricClosedError: the worker has left the fabric.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        vars(self._taken_over)["_opt_called"] = True  # a scheduler that was built on it warns unless it makes steps
        if self.worker.method is Method.ASYNCHRONOUS:
            self.last_push = self.worker.exchange()
        else:
            self.last_push = self.worker.push()
            self.worker.get()
        return loss

    def finish(self) -> None:
        """Wait for open pushes and install the newest model: for an evaluation, or to save it."""
        self.worker.drain()
        self.worker.get()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over parameter groups and velocity, as :meth:`state_dict` gave them, or that of a plain optimizer.

        Raises:
            UsageError: it has state that the server keeps.
        """
        is_ours = self._rule.kind is RuleKind.SGD and not self._rule.momentum
        if state_dict["state"] and not is_ours:
            raise UsageError(
                "a state dict with averages or momentum, which the server keeps; allowed: one without, such as this "
                "optimizer's own. The server's come back with its checkpoints"
            )
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: what the model consists of was settled when it was registered.

        Raises:
            UsageError: always, once it is made.
        """
        if "worker" in vars(self):
            raise UsageError(
                "add_param_group after wrap: all workers and servers know the model's parameters as they were; give "
                "the optimizer all groups before wrap (lr=0 makes no steps)"
            )
        super().add_param_group(param_group)
