"""Tensors that a script gives by name, to be pushed or to get the model: nobody's gradients, no module's parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from mlfabric.errors import LayoutError, UsageError
from mlfabric.model.images import DTYPES
from mlfabric.model.specs import Layout, TensorKind, TensorSpec
from mlfabric.worker_daemon.gradient_rules import norm_of

__all__ = ["GivenTensors", "allowed_norm", "install"]

_NORM_SLACK = 1e-4
"""A norm that a script computed in another order, or in half precision, may be less than ours by this share."""


class GivenTensors:
    """One tensor for each parameter of a layout; for get also for its buffers, if the script wants these.

    Args:
        layout: the registered model's.
        given: tensors by name.
        kinds: of which kinds there may be tensors; those of parameters must all be there.

    Raises:
        LayoutError: a name is missing or unknown, or a tensor's shape, dtype or device cannot be used.
    """

    def __init__(self, layout: Layout, given: Mapping[str, torch.Tensor], kinds: frozenset[TensorKind]) -> None:
        allowed = {spec.name: spec for spec in layout.tensors if spec.kind in kinds}
        missing = [n for n, spec in allowed.items() if spec.kind is TensorKind.PARAMETER and n not in given]
        if missing or (unknown := [name for name in given if name not in allowed]):
            wrong = f"no {', '.join(missing)}" if missing else f"{', '.join(map(str, unknown))}, which cannot be given"
            raise LayoutError(f"tensors by name: {wrong}; allowed: {', '.join(allowed)}")
        for name, tensor in given.items():
            _check(allowed[name], tensor)
        self.tensors = {i: given[spec.name] for i, spec in enumerate(layout.tensors) if spec.name in given}
        self._layout = layout

    def check_finite(self) -> None:
        """Refuse NaN and Inf.

        Raises:
            UsageError: names the first tensor that has one.
        """
        for i, tensor in self.tensors.items():
            if not bool(torch.isfinite(tensor).all()):
                raise UsageError(f"{self._layout.tensors[i].name} has NaN or Inf; allowed: finite values")

    def check_writable(self) -> None:
        """Refuse tensors of which several elements share one place.

        Raises:
            LayoutError: names the first.
        """
        for i, tensor in self.tensors.items():
            if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
                raise LayoutError(f"{self._layout.tensors[i].name} is an expanded view; allowed: one place per element")

    def install(self, image: memoryview) -> None:
        """Copy a model's image into the tensors."""
        install(image, self._layout, self.tensors)


def install(image: memoryview, layout: Layout, tensors: Mapping[int, torch.Tensor]) -> None:
    """Copy a model's image into tensors, given by their places in the layout."""
    flat = torch.frombuffer(image, dtype=torch.uint8)
    with torch.no_grad():
        for i, tensor in tensors.items():
            spec, at = layout.tensors[i], layout.offsets[i]
            tensor.copy_(flat[at : at + spec.size_bytes].view(DTYPES[spec.dtype]).view(spec.shape))


def allowed_norm(norm: float | None, pushed: list[torch.Tensor | None]) -> float:
    """Return the l2 norm to be announced.

    Args:
        norm: as the script gives it; None if it does not.
        pushed: what travels.

    Raises:
        UsageError: it is not finite, or less than that of what travels: bounds that rest on it would not hold.
    """
    found = norm_of(pushed)
    if not math.isfinite(found):
        raise UsageError(f"the update's norm is {found}; allowed: finite")
    if norm is None:
        return found
    if not (math.isfinite(norm) and norm >= found * (1 - _NORM_SLACK)):
        raise UsageError(f"norm={norm}; allowed: at least {found:g}, the norm of what travels, or leave it out")
    return max(norm, found)


def _check(spec: TensorSpec, tensor: torch.Tensor) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise LayoutError(f"{spec.name} is a {type(tensor).__name__}; allowed: a torch.Tensor")
    given = f"{tensor.dtype}{list(tensor.shape)}".removeprefix("torch.")
    wanted = f"{spec.dtype}{list(spec.shape)}"
    if given != wanted:
        raise LayoutError(f"{spec.name} is {given}; allowed: {wanted}")
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        what = "sparse" if tensor.layout is not torch.strided else "on device meta, which holds no values"
        raise LayoutError(f"{spec.name} is {what}; allowed: dense tensors on a CPU or GPU")
