"""What was registered of a model, and whether it is still the model: found at each push and get, by identity alone.

A layer that was replaced, frozen or converted is trained no more, or not the one that the fabric knows: nothing of that
would be seen in what travels. A buffer is a value: a module may assign it anew, as ``self.mean = 0.9 * self.mean``
does, and the new tensor travels from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import torch

from mlfabric.errors import LayoutError, UsageError
from mlfabric.model.specs import TensorKind
from mlfabric.worker_daemon.tensors import ModelTensors, Trainable

__all__ = ["Registered", "check_gradients"]

_ADVICE = "change the model before it is registered, or register it again"


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor as it was registered."""

    name: str
    tensor: torch.Tensor
    dtype: torch.dtype
    shape: torch.Size
    is_parameter: bool

    def change(self, present: torch.Tensor | None) -> str:
        """Say what happened to it; "" if nothing did.

        Args:
            present: what the model has under its name; None for nothing.
        """
        if present is None:
            return "is not in the model any more"
        if present is not self.tensor and self.is_parameter:
            return "was replaced by another tensor"
        if self.is_parameter and not present.requires_grad:
            return "was frozen"
        if present.dtype is not self.dtype:
            return f"was {self.dtype} and is {present.dtype}"
        return "" if present.shape == self.shape else f"was of shape {[*self.shape]} and is of {[*present.shape]}"


class Registered:
    """The model of a worker as it was registered.

    Args:
        model: what is trained.
        tensors: its travelling tensors.
    """

    def __init__(self, model: Trainable, tensors: ModelTensors) -> None:
        self._model = model
        self._travelling = tensors
        self._tensors = [
            _Tensor(spec.name, tensor, tensor.dtype, tensor.shape, spec.kind is TensorKind.PARAMETER)
            for spec, tensor in tensors.named()
        ]

    def check(self) -> None:
        """Find out whether the model is still what was registered; go on with buffers that were assigned anew.

        Raises:
            LayoutError: it is not; names the tensor.
        """
        present = dict(_named(self._model))
        for each in self._tensors:
            if change := each.change(present.get(each.name)):
                raise LayoutError(f"{each.name} {change} after the model was registered; {_ADVICE}")
        known = {each.name for each in self._tensors}
        for name, tensor in present.items():
            if tensor.requires_grad and name not in known:
                raise LayoutError(f"{name} was not trainable when the model was registered, and is; {_ADVICE}")
        self._travelling.follow([present[each.name] for each in self._tensors])


def check_gradients(tensors: ModelTensors) -> None:
    """Find out whether there is anything to push.

    Raises:
        UsageError: no parameter has a gradient.
    """
    if all(tensors.gradient(i) is None for i in tensors.parameters):
        raise UsageError(
            "push without a gradient: no parameter has got one since the last push; call backward() on a loss of this "
            "model first, once or several times for each push"
        )


def _named(model: Trainable) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(model, torch.nn.Module):
        return chain(model.named_parameters(), model.named_buffers())
    return iter(model.items())
