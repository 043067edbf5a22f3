"""The models of several learners on one device, row by row in one tensor, and the model that they have in common.

What the optimizer steps lies in flat tensors, one row for each learner: corrections and steps of all learners are a few
operations, however many parameters there are. The common model's own parameters are views of a flat tensor, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch

from mlfabric.errors import LayoutError, UsageError

__all__ = ["LearnerModels", "StandIn"]


class LearnerModels:
    """Rows of weights, gradients and buffers.

    Args:
        model: the common one; each learner begins with its weights. Frozen parameters are shared by all.
        optimizer: of some of its parameters; each learner has one like it, and steps with its present numbers.
        count: how many learners there are, >= 1.

    Attributes:
        weights, gradients: learners x elements.
        buffers: by name, a row for each learner.
        steps: the optimizer of all rows.
        common: elements; the common model's.

    Raises:
        LayoutError: parameters differ in dtype or device.
        UsageError: no optimizer of this kind can be made for the learners.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
        self.model, self._optimizer = model, optimizer
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if not parameters or len({(p.dtype, p.device) for p in parameters}) > 1:
            given = ", ".join(sorted({f"{p.dtype} on {p.device}" for p in parameters})) or "no parameters"
            raise LayoutError(f"{given}; allowed: parameters of one dtype on one device")
        names = {p: name for name, p in model.named_parameters()}
        if missing := [tuple(p.shape) for p in parameters if p not in names]:
            raise UsageError(
                f"parameters of shapes {missing} are not the model's; allowed: an optimizer of its own ones"
            )
        self._parameters = [(names[p], p) for p in parameters]
        self.buffers: dict[str, torch.Tensor] = {}
        self.common = torch.cat([p.detach().reshape(-1) for p in parameters])
        for parameter, view in zip(parameters, self._cut(self.common), strict=True):
            parameter.data = view.view(parameter.shape)
        self._buffer_names = [name for name, _ in model.named_buffers()]
        self.weights = self.common.new_empty(0, len(self.common))
        self._resize_to(count)

    def _cut(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return where each parameter lies in the last dimension."""
        return list(torch.split(flat, [p.numel() for _, p in self._parameters], dim=-1))

    @property
    def count(self) -> int:
        """How many learners there are."""
        return len(self.weights)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.common.device

    def _resize_to(self, count: int) -> None:
        """Have so many rows: first the former ones, then the common model's."""
        kept = min(count, len(self.weights))
        former, self.weights = self.weights, self.common.repeat(count, 1)
        self.weights[:kept] = former[:kept]
        for name, buffer in self.model.named_buffers():
            rows = buffer.detach().repeat(count, *[1] * buffer.dim())
            if kept:
                rows[:kept] = self.buffers[name][:kept]
            self.buffers[name] = rows
        self.gradients = torch.zeros_like(self.weights)
        self.steps = self._made_like(self._optimizer)
        self._modules: list[torch.nn.Module] = []
        self._stand_in: StandIn | None = None

    def resize(self, count: int) -> None:
        """Have so many learners: new ones begin with the common model, the last ones go."""
        former = self.steps.state_dict()["state"]
        self._resize_to(count)
        for place, values in former.items():
            (parameter,) = self.steps.param_groups[place]["params"]
            self.steps.state[parameter] = {name: _resized(value, count) for name, value in values.items()}

    def _made_like(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Make an optimizer of all rows, one tensor for each parameter group."""
        sizes = [sum(p.numel() for p in group["params"]) for group in optimizer.param_groups]
        groups = []
        for group, rows, gradients in zip(
            optimizer.param_groups,
            torch.split(self.weights, sizes, 1),
            torch.split(self.gradients, sizes, 1),
            strict=True,
        ):
            parameter = torch.nn.Parameter(rows)
            parameter.grad = gradients
            groups.append({**_numbers(group), "params": [parameter]})
        known = inspect.signature(type(optimizer)).parameters
        defaults = {name: value for name, value in optimizer.defaults.items() if name in known}
        try:
            return type(optimizer)(groups, **defaults)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{type(optimizer).__name__} for each learner: {error}; allowed: as SGD and AdamW"
            ) from None

    def step(self) -> None:
        """Let each learner make a step of its own, with the numbers that the optimizer's groups have now."""
        vars(self._optimizer)["_opt_called"] = True  # a scheduler that was built on it warns unless it makes steps
        for group, own in zip(self.steps.param_groups, self._optimizer.param_groups, strict=True):
            group.update(_numbers(own))
        self.steps.step()

    def rates(self) -> list[float]:
        """Return the learning rates of the optimizer's groups."""
        return [float(group["lr"]) for group in self._optimizer.param_groups]

    def share_buffers(self) -> None:
        """Let the common model's buffers be the means of the learners', those of integers the first one's."""
        for name, buffer in self.model.named_buffers():
            rows = self.buffers[name]
            buffer.copy_(rows.mean(dim=0) if buffer.is_floating_point() else rows[0])

    @torch.no_grad()
    def move_with(self, move: Callable[[], None]) -> None:
        """Let all learners move as the common model does in what is called."""
        before = self.common.clone()
        move()
        self.weights.add_(self.common - before)

    def restart(self) -> None:
        """Let all learners go on from the common model."""
        self.weights.copy_(self.common.expand_as(self.weights))

    def follow_mode(self) -> None:
        """Have all modules train if the common model does, and else evaluate."""
        stand_ins = [] if self._stand_in is None else [self._stand_in.module]
        for module in (*self._modules, *stand_ins):
            if module.training != self.model.training:
                module.train(self.model.training)

    @property
    def modules(self) -> list[torch.nn.Module]:
        """A module for each learner, over its rows."""
        if not self._modules:
            self._modules = [self._module(row) for row in range(self.count)]
        return self._modules

    def _module(self, row: int) -> torch.nn.Module:
        stand_in = StandIn(self.model, [(name, p.shape) for name, p in self._parameters], self._buffer_names)
        pieces = [self._cut(rows[row].detach()) for rows in (self.weights, self.gradients)]
        for (holder, leaf), (_, p), own, gradient in zip(stand_in.parameters, self._parameters, *pieces, strict=True):
            holder[leaf] = parameter = torch.nn.Parameter(own.view(p.shape))
            parameter.grad = gradient.view(p.shape)
        for (holder, leaf), name in zip(stand_in.buffers, self._buffer_names, strict=True):
            holder[leaf] = self.buffers[name][row]
        return stand_in.module

    @property
    def stand_in(self) -> StandIn:
        """A module that takes any weights."""
        if self._stand_in is None:
            shapes = [(name, p.shape) for name, p in self._parameters]
            self._stand_in = StandIn(self.model, shapes, self._buffer_names)
        return self._stand_in


class StandIn:
    """A copy of a module whose weights and buffers are given to it; parameters that nobody steps are the module's own.

    Attributes:
        module: the copy.
        parameters, buffers: where each one is: a dictionary of some part of the module, and the name in it.
    """

    def __init__(
        self, model: torch.nn.Module, shapes: Sequence[tuple[str, torch.Size]], buffers: Sequence[str]
    ) -> None:
        self.module = deepcopy(model, {id(p): p for p in model.parameters()})
        self._shapes = [shape for _, shape in shapes]
        self._sizes = [shape.numel() for shape in self._shapes]
        owners = [_owner(self.module, name) for name, _ in shapes]
        self.parameters: list[tuple[dict[str, Any], str]] = [(owner._parameters, leaf) for owner, leaf in owners]
        held = [_owner(self.module, name) for name in buffers]
        self.buffers: list[tuple[dict[str, Any], str]] = [(owner._buffers, leaf) for owner, leaf in held]

    def take(self, weights: torch.Tensor, buffers: Sequence[torch.Tensor]) -> None:
        """Have these weights, which lie behind one another in a flat tensor, and these buffers."""
        pieces = torch.split(weights, self._sizes)
        for (holder, leaf), piece, shape in zip(self.parameters, pieces, self._shapes, strict=True):
            holder[leaf] = piece.view(shape)
        for (holder, leaf), buffer in zip(self.buffers, buffers, strict=True):
            holder[leaf] = buffer


def _owner(module: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _resized(value: Any, count: int) -> Any:
    """Return a state of all learners for so many: new ones have zeros; what is not row by row stays as it is."""
    if not torch.is_tensor(value) or value.dim() == 0:
        return value
    rows = torch.zeros(count, *value.shape[1:], dtype=value.dtype, device=value.device)
    kept = min(count, len(value))
    rows[:kept] = value[:kept]
    return rows
