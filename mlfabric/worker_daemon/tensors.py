"""PyTorch modules as layouts, updates and models; the only place where the worker's side touches tensors.

Stated treatments (design, section 6):

* A trainable parameter is a PARAMETER: its gradient travels. Without a gradient (not used in this step) zeros travel,
  so momentum and weight decay act on it as on the others.
* A floating-point buffer (batch-norm statistics) is a BUFFER: the change since the last model or update travels, and
  the server adds it. A module's integer buffers stay as each worker has them. Named tensors may be buffers only (counts
  that workers add to): then whoever writes to them makes the update.
* A frozen parameter does not travel; a digest of all their values does, so that workers whose frozen parameters differ
  are refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch.utils.hooks import RemovableHandle

from mlfabric.errors import LayoutError
from mlfabric.specs import ALIGNMENT_BYTES, DTYPE_BYTES, Layout, RuleSpec, TensorKind, TensorSpec
from mlfabric.worker_daemon.sending import Parcel
from mlfabric.worker_daemon.shaping import Shaping, norm_of

__all__ = ["ModelTensors", "Trainable"]

Trainable = torch.nn.Module | Mapping[str, torch.Tensor]
"""A module, or named tensors: each ``torch.nn.Buffer`` among them is a buffer, the others are parameters."""

_PADDING = memoryview(bytes(ALIGNMENT_BYTES))


class ModelTensors:
    """A model's travelling tensors in the layout's order.

    Args:
        model: the module or named tensors to train.
        shaping: what is made of gradients before they travel; nothing unless given.
        backwards: begin the layout with the last parameters, whose gradients come first; buffers are at its end.

    Raises:
        LayoutError: nothing is trainable, or a tensor's dtype cannot travel.
    """

    def __init__(self, model: Trainable, shaping: Shaping | None = None, *, backwards: bool = False) -> None:
        named = _backwards(_named(model)) if backwards else _named(model)
        self.backwards = backwards
        trained = {TensorKind.PARAMETER} if isinstance(model, torch.nn.Module) else set(TensorKind)
        if not any(tensor.numel() for _, tensor, kind in named if kind in trained):
            raise LayoutError(
                "the model has no trainable parameter; set requires_grad on those to be trained, or give a mapping of "
                "names to tensors in which each torch.nn.Buffer is a buffer"
            )
        self.layout = Layout(
            tuple(
                TensorSpec(name=name, shape=tuple(t.shape), dtype=str(t.dtype).removeprefix("torch."), kind=kind)
                for name, t, kind in named
            )
        )
        self.frozen_digest = _frozen_digest(model)
        self.shaping = shaping or Shaping(RuleSpec())
        self._tensors = [t for _, t, _ in named]
        kinds = [kind for _, _, kind in named]
        self.parameters = [i for i, kind in enumerate(kinds) if kind is TensorKind.PARAMETER]
        self._buffers = [i for i, kind in enumerate(kinds) if kind is TensorKind.BUFFER]
        self._installed = {i: self._tensors[i].detach().clone() for i in self._buffers}

    def named(self) -> Iterator[tuple[TensorSpec, torch.Tensor]]:
        """Yield what is registered of each tensor, and the tensor."""
        return zip(self.layout.tensors, self._tensors, strict=True)

    def values(self) -> Parcel:
        """Return the tensors' present values, as initial weights; nothing is copied from a CPU tensor."""
        return self._parcel([t.detach() for t in self._tensors], [])

    def take_update(self) -> tuple[Parcel, float]:
        """Take the gradients away from the parameters, and the buffers' changes; return them with their l2 norm.

        The norm is that of what travels, after clipping and momentum. ``grad`` of each parameter is None afterwards;
        the tensors must not be written to until the push is settled.
        """
        gradients = [self.gradient(i) for i in self.parameters]
        self.forget_gradients()
        weights = [self._tensors[i].detach() for i in self.parameters]
        pushed = self.shaping.shape([None if g is None else g.detach() for g in gradients], weights)
        pieces: list[torch.Tensor | None] = [None] * len(self._tensors)
        for i, piece in (*zip(self.parameters, pushed, strict=True), *self.take_changes().items()):
            pieces[i] = piece
        norm = norm_of(pieces)
        if math.isfinite(norm):
            self.shaping.keep(pushed)
        return self._parcel(pieces, [piece for piece in pushed if piece is not None]), norm

    def gradient(self, i: int) -> torch.Tensor | None:
        """Return the gradient of the parameter at a place of the layout.

        Raises:
            LayoutError: it is sparse.
        """
        gradient = self._tensors[i].grad
        if gradient is not None and gradient.is_sparse:
            raise LayoutError(f"{self.layout.tensors[i].name}: a sparse gradient cannot travel; use sparse=False")
        return gradient

    def forget_gradients(self) -> None:
        """Take the gradients away from the parameters."""
        for i in self.parameters:
            self._tensors[i].grad = None

    def take_changes(self) -> dict[int, torch.Tensor]:
        """Return what the buffers changed by since the last model or update, by their places in the layout."""
        changes = {}
        for i, installed in self._installed.items():
            changes[i] = self._tensors[i].detach() - installed
            installed.copy_(self._tensors[i].detach())
        return changes

    def shaped(self, i: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the gradient of the parameter at a place of the layout, and what is to travel of it; not clipped.

        Raises:
            LayoutError: it is sparse.
        """
        gradient = self.gradient(i)
        place = self.parameters.index(i)
        given = None if gradient is None else gradient.detach()
        return gradient, self.shaping.shape_one(place, given, self._tensors[i].detach())

    def keep_pushed(self, pushed: Sequence[torch.Tensor | None]) -> None:
        """Go on from what was pushed of all parameters, which was finite."""
        self.shaping.keep(pushed)

    def when_made(self, made: Callable[[int], None]) -> Callable[[], None]:
        """Have it said when backward has made the gradient at a place of the layout; return what ends that."""
        register: Callable[..., RemovableHandle] = torch.Tensor.register_post_accumulate_grad_hook
        handles = [register(self._tensors[i], partial(_say, made, i)) for i in self.parameters]

        def stop() -> None:
            for handle in handles:
                handle.remove()

        return stop

    def place_of(self, tensor: torch.Tensor) -> int:
        """Return a parameter's place in the layout.

        Raises:
            LayoutError: it is none of the model's.
        """
        for i in self.parameters:
            if self._tensors[i] is tensor:
                return i
        raise LayoutError(f"a tensor of shape {tuple(tensor.shape)} is no parameter of the registered model")

    def install(self, image: memoryview) -> None:
        """Copy a model's image into the tensors."""
        flat = torch.frombuffer(image, dtype=torch.uint8)
        with torch.no_grad():
            for i, (tensor, spec, at) in enumerate(
                zip(self._tensors, self.layout.tensors, self.layout.offsets, strict=True)
            ):
                part = flat[at : at + spec.size_bytes].view(getattr(torch, spec.dtype)).view(spec.shape)
                tensor.copy_(part)
                if i in self._installed:
                    self._installed[i].copy_(part)

    def _parcel(self, tensors: Sequence[torch.Tensor | None], watched: Sequence[torch.Tensor]) -> Parcel:
        pieces: list[memoryview] = []
        for tensor, spec in zip(tensors, self.layout.tensors, strict=True):
            pieces.append(memoryview(bytes(spec.size_bytes)) if tensor is None else _bytes_of(tensor))
            padding = -spec.size_bytes % ALIGNMENT_BYTES
            if padding:
                pieces.append(_PADDING[:padding])
        versions = [t._version for t in watched]
        return Parcel(
            pieces=pieces,
            digest=self.layout.digest,
            is_unchanged=lambda: [t._version for t in watched] == versions,
        )


def _named(model: Trainable) -> list[tuple[str, torch.Tensor, TensorKind]]:
    if isinstance(model, torch.nn.Module):
        parameters = [(n, cast(torch.Tensor, p)) for n, p in model.named_parameters() if p.requires_grad]
        buffers = [(n, b) for n, b in model.named_buffers() if b.dtype.is_floating_point]
    else:
        parameters = [(n, t) for n, t in model.items() if t.requires_grad and not isinstance(t, torch.nn.Buffer)]
        buffers = [(n, t) for n, t in model.items() if isinstance(t, torch.nn.Buffer)]
    for name, tensor in (*parameters, *buffers):
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPE_BYTES:
            raise LayoutError(f"{name}: dtype {dtype} cannot travel; allowed: {', '.join(DTYPE_BYTES)}")
    return [(n, t, TensorKind.PARAMETER) for n, t in parameters] + [(n, t, TensorKind.BUFFER) for n, t in buffers]


def _say(made: Callable[[int], None], i: int, tensor: torch.Tensor) -> None:
    made(i)


def _backwards(named: list[tuple[str, torch.Tensor, TensorKind]]) -> list[tuple[str, torch.Tensor, TensorKind]]:
    parameters = [one for one in named if one[2] is TensorKind.PARAMETER]
    return [*reversed(parameters), *(one for one in named if one[2] is TensorKind.BUFFER)]


def _frozen_digest(model: Trainable) -> str:
    named = model.named_parameters() if isinstance(model, torch.nn.Module) else model.items()
    frozen = [(n, t) for n, t in named if not (t.requires_grad or isinstance(t, torch.nn.Buffer))]
    if not frozen:
        return ""
    digest = hashlib.sha256()
    for name, tensor in frozen:
        digest.update(name.encode())
        digest.update(_bytes_of(tensor.detach()))
    return digest.hexdigest()[:16]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """View a tensor's bytes; only a tensor that is not contiguous or not on the CPU is copied."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
