"""Byte images of a model that a server owns, and their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch

from mlfabric.errors import LayoutError
from mlfabric.model.images import DTYPES
from mlfabric.model.specs import Layout, TensorKind, TensorSpec

__all__ = ["Image", "byte_view", "copy_tensors"]


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
        """Return the model's tensors in their shapes, sharing memory; rates are none of them."""
        named = zip(layout.tensors, self.flat, strict=True)
        return {t.name: flat.view(t.shape) for t, flat in named if t.kind is not TensorKind.RATES}


def _flat_tensor(data: memoryview, tensor: TensorSpec, offset: int) -> torch.Tensor:
    """View a part of an image; each tensor gets a storage of its own, so that torch.save writes no other's bytes."""
    dtype = DTYPES[tensor.dtype]
    if not tensor.numel:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=tensor.numel, offset=offset)


def byte_view(image: bytes | bytearray | memoryview) -> memoryview:
    """View an image as bytes, whatever it is a view of."""
    view = memoryview(image)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def copy_tensors(what: str, given: Mapping[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """Copy ``given`` into the memory of ``wanted``.

    Args:
        what: they are, for the error.
        given, wanted: tensors by name.

    Raises:
        LayoutError: names, shapes or dtypes differ.
    """
    if given.keys() != wanted.keys():
        raise LayoutError(f"{what}: tensors {sorted(given.keys() ^ wanted.keys())} are missing or too many")
    for name, target in wanted.items():
        source = given[name]
        if source.shape != target.shape or source.dtype != target.dtype:
            raise LayoutError(
                f"{what}: {name} is {source.dtype}{list(source.shape)}; allowed: {target.dtype}{list(target.shape)}"
            )
        target.copy_(source)
