"""Byte images of a model, and how to look at them: by tensor, or by runs of tensors that are stepped alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from mlfabric.specs import Layout, TensorKind, TensorSpec

__all__ = ["Image", "Run", "runs_of"]

_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring tensors that are stepped as one: same dtype, same kind; padding between them included.

    Args:
        tensors: which of the layout's.
        start, end: bytes of the image.
    """

    kind: TensorKind
    dtype: torch.dtype
    tensors: range
    start: int
    end: int

    def of(self, data: memoryview) -> torch.Tensor:
        """View this part of an image as one flat tensor."""
        count = (self.end - self.start) // self.dtype.itemsize
        if not count:
            return torch.empty(0, dtype=self.dtype)
        return torch.frombuffer(data, dtype=self.dtype, count=count, offset=self.start)


def runs_of(layout: Layout) -> tuple[Run, ...]:
    """Return a layout's runs; together they cover the whole image."""
    ends = (*layout.offsets[1:], layout.size_bytes)
    out: list[Run] = []
    for index, (tensor, start, end) in enumerate(zip(layout.tensors, layout.offsets, ends, strict=True)):
        dtype = _DTYPES[tensor.dtype]
        if out and (out[-1].kind, out[-1].dtype) == (tensor.kind, dtype):
            joined = out.pop()
            out.append(Run(tensor.kind, dtype, range(joined.tensors.start, index + 1), joined.start, end))
        else:
            out.append(Run(tensor.kind, dtype, range(index, index + 1), start, end))
    return tuple(out)


class Image:
    """A byte image and its tensors, flat, in the layout's order."""

    def __init__(self, layout: Layout, data: memoryview) -> None:
        self.data = data
        self.pins = 0
        self._layout = layout

    @cached_property
    def flat(self) -> tuple[torch.Tensor, ...]:
        """The layout's tensors."""
        named = zip(self._layout.tensors, self._layout.offsets, strict=True)
        return tuple(_flat_tensor(self.data, tensor, at) for tensor, at in named)

    def clear_padding(self) -> None:
        """Make every byte that belongs to no tensor zero, whatever a sender put there."""
        layout = self._layout
        for tensor, start, end in zip(
            layout.tensors, layout.offsets, (*layout.offsets[1:], layout.size_bytes), strict=True
        ):
            used = start + tensor.size_bytes
            if used < end:
                self.data[used:end] = bytes(end - used)

    @classmethod
    def zeros(cls, layout: Layout) -> Image:
        """Allocate an image; the pages of what is never written stay with the system."""
        return cls(layout, np.zeros(layout.size_bytes, dtype=np.uint8).data)

    def tensors(self, layout: Layout) -> dict[str, torch.Tensor]:
        """Return the tensors in their shapes, sharing memory."""
        return {t.name: flat.view(t.shape) for t, flat in zip(layout.tensors, self.flat, strict=True)}


def _flat_tensor(data: memoryview, tensor: TensorSpec, offset: int) -> torch.Tensor:
    """View a part of an image; each tensor gets a storage of its own, so that torch.save writes no other's bytes."""
    dtype = _DTYPES[tensor.dtype]
    if not tensor.numel:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=tensor.numel, offset=offset)
