"""PyTorch modules as layouts, updates and models; the only place where the worker's side touches tensors.

Stated treatments (design, section 6):

* A trainable parameter is a PARAMETER: its gradient travels. Without a gradient (not used in this step) zeros travel,
  so momentum and weight decay act on it as on the others.
* A floating-point buffer (batch-norm statistics) is a BUFFER: the change since the last model or update travels, and
  the server adds it. Integer buffers stay as each worker has them.
* A frozen parameter does not travel; a digest of all their values does, so that workers whose frozen parameters differ
  are refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import torch

from mlfabric.errors import LayoutError
from mlfabric.specs import ALIGNMENT_BYTES, DTYPE_BYTES, Layout, TensorKind, TensorSpec
from mlfabric.worker_daemon.sending import Parcel

__all__ = ["ModelTensors", "Trainable"]

Trainable = torch.nn.Module | Mapping[str, torch.Tensor]
"""A module, or named tensors (all of them parameters)."""

_PADDING = memoryview(bytes(ALIGNMENT_BYTES))


class ModelTensors:
    """A model's travelling tensors in the layout's order.

    Args:
        model: the module or named tensors to train.

    Raises:
        LayoutError: nothing is trainable, or a tensor's dtype cannot travel.
    """

    def __init__(self, model: Trainable) -> None:
        named = _named(model)
        if not any(kind is TensorKind.PARAMETER and tensor.numel() for _, tensor, kind in named):
            raise LayoutError("the model has no trainable parameter; set requires_grad on those to be trained")
        self.layout = Layout(
            tuple(
                TensorSpec(name=name, shape=tuple(t.shape), dtype=str(t.dtype).removeprefix("torch."), kind=kind)
                for name, t, kind in named
            )
        )
        self.frozen_digest = _frozen_digest(model)
        self._tensors = [t for _, t, _ in named]
        self._buffers = [i for i, (_, _, kind) in enumerate(named) if kind is TensorKind.BUFFER]
        self._installed = {i: self._tensors[i].detach().clone() for i in self._buffers}

    def values(self) -> Parcel:
        """Return the tensors' present values, as initial weights; nothing is copied from a CPU tensor."""
        return self._parcel([t.detach() for t in self._tensors], [])

    def take_update(self) -> tuple[Parcel, float]:
        """Take the gradients away from the parameters, and the buffers' changes; return them with their l2 norm.

        ``grad`` of each parameter is None afterwards; the tensors must not be written to until the push is settled.
        """
        pieces: list[torch.Tensor | None] = []
        watched: list[torch.Tensor] = []
        for i, tensor in enumerate(self._tensors):
            if i in self._installed:
                pieces.append(tensor.detach() - self._installed[i])
                self._installed[i].copy_(tensor.detach())
                continue
            gradient, tensor.grad = tensor.grad, None
            if gradient is not None and gradient.is_sparse:
                raise LayoutError(f"{self.layout.tensors[i].name}: a sparse gradient cannot travel; use sparse=False")
            pieces.append(None if gradient is None else gradient.detach())
            if gradient is not None:
                watched.append(gradient)
        return self._parcel(pieces, watched), _norm(pieces)

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
        parameters, buffers = [(n, t) for n, t in model.items() if t.requires_grad], []
    for name, tensor in (*parameters, *buffers):
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPE_BYTES:
            raise LayoutError(f"{name}: dtype {dtype} cannot travel; allowed: {', '.join(DTYPE_BYTES)}")
    return [(n, t, TensorKind.PARAMETER) for n, t in parameters] + [(n, t, TensorKind.BUFFER) for n, t in buffers]


def _frozen_digest(model: Trainable) -> str:
    named = model.named_parameters() if isinstance(model, torch.nn.Module) else model.items()
    frozen = [(n, t) for n, t in named if not t.requires_grad]
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


def _norm(pieces: Iterable[torch.Tensor | None]) -> float:
    given = [p for p in pieces if p is not None]
    norms = [torch.linalg.vector_norm(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in given]
    return math.sqrt(sum(float(n) ** 2 for n in norms))
