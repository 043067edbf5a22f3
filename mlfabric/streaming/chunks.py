"""Cutting a model's image into chunks, and the arithmetic on one chunk: is it finite, scale it, add it. Knows no I/O.

A part is what one operation takes: a piece of a chunk of one dtype and kind, at most 512 KiB, which stays in a core's
cache between the look through it and the adding.

Arithmetic is in the tensor's dtype, also for float16 and bfloat16: a sum then takes no more memory than its inputs. A
product is rounded before it is added (no fused multiply-add), so the sum does not depend on where chunks are cut.
float32 and float64 are left to numpy, which works in the calling thread alone. torch, needed for the half types, splits
larger operations over threads whose barriers cost more than they bring on a shared host; so parts of these are smaller.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mlfabric.chunking import chunk_bytes
from mlfabric.images import runs_of
from mlfabric.specs import Layout, TensorKind

__all__ = ["Chunk", "Part", "Vector", "add_part", "chunks_of", "not_finite_in"]

MAX_PART_BYTES = 512 * 1024
TORCH_ELEMENTS = 32_752
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}

Vector = np.ndarray | torch.Tensor
"""A part's elements, sharing memory with a buffer."""


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring elements of an image that are treated alike.

    Args:
        start, end: bytes of the image.
    """

    kind: TensorKind
    dtype: torch.dtype
    start: int
    end: int

    def of(self, data: memoryview, base: int = 0) -> Vector:
        """View the part in a buffer whose first byte is byte ``base`` of the image."""
        count, offset = (self.end - self.start) // self.dtype.itemsize, self.start - base
        if (of_numpy := _NUMPY.get(self.dtype)) is not None:
            return np.frombuffer(data, dtype=of_numpy, count=count, offset=offset)
        return torch.frombuffer(data, dtype=self.dtype, count=count, offset=offset)

    @property
    def most_bytes(self) -> int:
        """How long a part of this dtype may be."""
        return MAX_PART_BYTES if self.dtype in _NUMPY else TORCH_ELEMENTS * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Chunk:
    """Neighbouring bytes of an image, whole elements, that arrive and are added together."""

    start: int
    end: int
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self.end - self.start


def chunks_of(layout: Layout) -> tuple[Chunk, ...]:
    """Cut an image of ``layout`` into chunks."""
    step = chunk_bytes(layout.size_bytes)
    starts = range(0, layout.size_bytes, step)
    ends = [min(start + step, layout.size_bytes) for start in starts]
    parts: list[list[Part]] = [[] for _ in starts]
    for run in runs_of(layout):
        at = run.start
        while at < run.end:
            index = at // step
            part = Part(run.kind, run.dtype, at, min(run.end, ends[index]))
            part = replace(part, end=min(part.end, at + part.most_bytes))
            parts[index].append(part)
            at = part.end
    return tuple(Chunk(s, e, tuple(p)) for s, e, p in zip(starts, ends, parts, strict=True))


def not_finite_in(layout: Layout, part: Part, elements: Vector, data: memoryview, base: int) -> str:
    """Name the first tensor with NaN or Inf in a part; "" if there is none.

    Bytes between tensors may hold anything; if that is no finite number, they are made zero.

    Args:
        layout: the model's.
        part: which bytes of the image to look through.
        elements: the part in ``data``.
        data: bytes of the image, from byte ``base`` on.
        base: bytes.
    """
    return "" if _is_finite(elements) else _look_closely(layout, part, data, base)


def _is_finite(elements: Vector) -> bool:
    if isinstance(elements, np.ndarray):
        return bool(np.isfinite(elements).all())
    # A sum in float32 is finite if all elements are, cannot overflow here, and is many times faster than isfinite.
    return bool(elements.sum(dtype=torch.float32).isfinite())


def _look_closely(layout: Layout, part: Part, data: memoryview, base: int) -> str:
    """Find the tensor to blame for a part that is not finite, and clear what belongs to none."""
    ends = (*layout.offsets[1:], layout.size_bytes)
    index = bisect_right(layout.offsets, part.start) - 1
    for tensor, offset, end in zip(layout.tensors[index:], layout.offsets[index:], ends[index:], strict=True):
        if offset >= part.end:
            break
        used = offset + tensor.size_bytes
        inside = replace(part, start=max(offset, part.start), end=min(used, part.end))
        if inside.start < inside.end and not _is_finite(inside.of(data, base)):
            return tensor.name
        padding = range(max(used, part.start), min(end, part.end))
        data[padding.start - base : padding.start - base + len(padding)] = bytes(len(padding))
    return ""


def add_part(target: Vector, source: Vector, coefficient: float, product: memoryview, *, fresh: bool) -> None:
    """Add ``coefficient * source`` to ``target``, or write it there.

    Args:
        target: part of the sum.
        source: the same part of an input; left as it is.
        coefficient: 0 adds nothing, 1 the source as it is.
        product: scratch space for the part.
        fresh: nothing has been added to ``target`` yet; what lies in it is overwritten.
    """
    if fresh:
        _multiply(source, coefficient, target)
    elif coefficient == 1:
        target += source
    elif coefficient != 0:
        scaled = _like(source, product)
        _multiply(source, coefficient, scaled)
        target += scaled


def _like(source: Vector, memory: memoryview) -> Vector:
    if isinstance(source, np.ndarray):
        return np.frombuffer(memory, dtype=source.dtype, count=source.size)
    return torch.frombuffer(memory, dtype=source.dtype, count=source.numel())


def _multiply(source: Vector, coefficient: float, out: Vector) -> None:
    multiply: Any = np.multiply if isinstance(source, np.ndarray) else torch.mul
    multiply(source, coefficient, out=out)
