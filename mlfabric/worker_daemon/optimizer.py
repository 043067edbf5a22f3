"""An optimizer whose ``step`` goes through the fabric.

It looks like the optimizer that it was made from; the step itself is taken by the server, with the same rule.
Asynchronous, each ``step()`` pushes the gradients and installs the model that the step before asked for, so
communication overlaps with the next batch's computation. In the other modes it waits for the model that has this very
step in it: workers that count on one another's iterations must not run ahead of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlfabric.errors import UsageError
from mlfabric.rules import RuleKind, RuleSpec
from mlfabric.specs import Mode
from mlfabric.worker_daemon.worker import PushHandle, Worker

__all__ = ["FabricOptimizer", "rule_of"]


# Settings that the server's rules lack, and the only value that can be taken over; those not listed change no result.
_FIXED: dict[type[torch.optim.Optimizer], dict[str, object]] = {
    torch.optim.SGD: {"dampening": 0, "nesterov": False, "maximize": False},
    torch.optim.Adam: {"amsgrad": False, "maximize": False},
    torch.optim.AdamW: {"amsgrad": False, "maximize": False, "weight_decay": 0},
}


def rule_of(optimizer: torch.optim.Optimizer) -> RuleSpec:
    """Return the update rule that does what ``optimizer`` does.

    Raises:
        UsageError: it is none of SGD, Adam and AdamW, has settings that no rule has, or its parameter groups differ.
        ConfigError: a setting is out of a rule's range.
    """
    kind = type(optimizer)
    if kind not in _FIXED:
        allowed = ", ".join(f"torch.optim.{each.__name__}" for each in _FIXED)
        raise UsageError(f"cannot take over {kind.__name__}; allowed: {allowed}")
    first, *others = optimizer.param_groups
    for key, wanted in _FIXED[kind].items():
        if first[key] != wanted:
            raise UsageError(f"cannot take over {kind.__name__} with {key}={first[key]}; allowed: {wanted}")
    fields = _sgd_of(first) if kind is torch.optim.SGD else _adam_of(first)
    for group in others:
        theirs = _sgd_of(group) if kind is torch.optim.SGD else _adam_of(group)
        for key, value in fields.items():
            if theirs[key] != value:
                values = f"{[value, theirs[key]]}"
                raise UsageError(f"parameter groups differ in {key}: {values}; the server keeps one rule per model")
    return RuleSpec(**fields)


def _sgd_of(group: dict[str, Any]) -> dict[str, Any]:
    return {key: float(group[key]) for key in ("lr", "momentum", "weight_decay")}


def _adam_of(group: dict[str, Any]) -> dict[str, Any]:
    beta1, beta2 = map(float, group["betas"])
    plain = {key: float(group[key]) for key in ("lr", "weight_decay")}
    return {**plain, "kind": RuleKind.ADAM, "beta1": beta1, "beta2": beta2, "epsilon": float(group["eps"])}


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
        """Push the gradients, install the model that follows; return the closure's loss, if any.

        Asynchronous, the model is the one that the last step asked for.

        Raises:
            FabricClosedError: the worker has left the fabric.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.worker.mode is Mode.ASYNCHRONOUS:
            self.last_push = self.worker.exchange()
        else:
            self.last_push = self.worker.push()
            self.worker.get()
        return loss

    def finish(self) -> None:
        """Wait for open pushes and install the newest model, for an evaluation."""
        self.worker.drain()
        self.worker.get()
