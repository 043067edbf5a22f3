"""Cutting a model's image into chunks, and the arithmetic on one chunk: is it finite, scale it, add it. Knows no I/O.

A part is what one operation takes: a piece of a chunk of one dtype and kind.

Arithmetic is in the tensor's dtype, also for float16 and bfloat16: a sum then takes no more memory than its inputs. A
product is rounded before it is added (no fused multiply-add), so the sum does not depend on where chunks are cut.
float32 and float64 are left to our own kernels, which look and add in one pass. Integers are counters, of which a sum
has the greatest: nothing is multiplied, and no number passes through floating point. torch, needed for the half types,
splits larger operations over threads whose barriers cost more than they bring on a shared host; so parts of these are
smaller.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np
import torch

from mlfabric.model.chunking import chunk_bytes
from mlfabric.model.images import runs_of
from mlfabric.model.specs import Layout, TensorKind
from mlfabric.transfer import add_kernels

__all__ = ["Chunk", "Part", "Vector", "add_part", "chunks_of", "is_finite", "not_finite_in"]

TORCH_ELEMENTS = 32_752
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64, torch.int32: np.int32, torch.int64: np.int64}

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

    def cut(self, end: int) -> Part:
        """Return what one operation takes of it, up to byte ``end`` of the image at most."""
        most_bytes = end - self.start if self.dtype in _NUMPY else TORCH_ELEMENTS * self.dtype.itemsize
        return replace(self, end=min(self.end, end, self.start + most_bytes))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Neighbouring bytes of an image, whole elements, that arrive and are added together.

    Args:
        start, end: bytes of the image.
        parts: together they are the chunk.
        gaps: bytes of the image that lie between tensors, in the chunk.
    """

    start: int
    end: int
    parts: tuple[Part, ...]
    gaps: tuple[range, ...]

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return self.end - self.start

    def clear_gaps(self, data: memoryview) -> None:
        """Make zero what lies between tensors, in a buffer that begins with the chunk: it may hold anything."""
        for gap in self.gaps:
            data[gap.start - self.start : gap.stop - self.start] = bytes(len(gap))


def chunks_of(layout: Layout) -> tuple[Chunk, ...]:
    """Cut an image of ``layout`` into chunks."""
    step = chunk_bytes(layout.size_bytes)
    starts = range(0, layout.size_bytes, step)
    ends = [min(start + step, layout.size_bytes) for start in starts]
    parts: list[list[Part]] = [[] for _ in starts]
    for run in runs_of(layout):
        at = run.start
        while at < run.end:
            part = Part(run.kind, run.dtype, at, run.end).cut(ends[at // step])
            parts[at // step].append(part)
            at = part.end
    gaps = _gaps_of(layout, step)
    return tuple(Chunk(s, e, tuple(p), tuple(g)) for s, e, p, g in zip(starts, ends, parts, gaps, strict=True))


def _gaps_of(layout: Layout, step: int) -> list[list[range]]:
    """Return what lies between tensors in each chunk of ``step`` bytes; both begin at multiples of the alignment."""
    gaps: list[list[range]] = [[] for _ in range(0, layout.size_bytes, step)]
    ends = (*layout.offsets[1:], layout.size_bytes)
    for tensor, offset, end in zip(layout.tensors, layout.offsets, ends, strict=True):
        if (at := offset + tensor.size_bytes) < end:
            gaps[at // step].append(range(at, end))
    return gaps


def not_finite_in(layout: Layout, part: Part, data: memoryview, base: int) -> str:
    """Name the first tensor with NaN or Inf in a part that has some.

    Args:
        layout: the model's.
        part: which bytes of the image to look through.
        data: bytes of the image, from byte ``base`` on.
        base: bytes.
    """
    index = bisect_right(layout.offsets, part.start) - 1
    for tensor, offset in zip(layout.tensors[index:], layout.offsets[index:], strict=True):
        inside = replace(part, start=max(offset, part.start), end=min(offset + tensor.size_bytes, part.end))
        if inside.start < inside.end and not is_finite(inside.of(data, base)):
            return tensor.name
    raise AssertionError(f"bytes {part.start} to {part.end} are finite in every tensor")


def is_finite(elements: Vector) -> bool:
    """Tell whether there is no NaN or Inf in a part."""
    if _are_counters(elements):
        return True
    if isinstance(elements, np.ndarray):
        return add_kernels.is_finite(elements)
    # A sum is finite only if all elements are, and takes a fraction of isfinite's time; that of bfloat16 may overflow.
    return bool(elements.sum(dtype=torch.float32).isfinite()) or bool(elements.isfinite().all())


def _are_counters(elements: Vector) -> bool:
    return isinstance(elements, np.ndarray) and elements.dtype.kind == "i"


def add_part(
    target: Vector, source: Vector, coefficient: float, product: memoryview, *, fresh: bool, look: bool
) -> bool:
    """Add ``coefficient * source`` to ``target``, or write it there; of counters take the greater ones.

    Args:
        target: part of the sum.
        source: the same part of an input; left as it is.
        coefficient: 0 adds nothing, 1 the source as it is.
        product: scratch space for the part; used for half precision.
        fresh: nothing has been added to ``target`` yet; what lies in it is overwritten.
        look: tell whether the source has NaN or Inf.

    Returns:
        False if the source has NaN or Inf and that was to be looked for; ``target`` may then hold anything.
    """
    adds = fresh or coefficient != 0
    if isinstance(source, np.ndarray):
        assert isinstance(target, np.ndarray), "both are the same part"
        if _are_counters(source):
            target[:] = source if fresh else np.maximum(target, source)
            return True
        finite = add_kernels.add(target, source, coefficient, fresh=fresh) if adds else not look or is_finite(source)
        return finite or not look
    assert isinstance(target, torch.Tensor), "both are the same part"
    if look and not is_finite(source):
        return False
    if fresh:
        torch.mul(source, coefficient, out=target)
    elif coefficient == 1:
        target += source
    elif adds:
        scaled = torch.frombuffer(product, dtype=source.dtype, count=source.numel())
        target += torch.mul(source, coefficient, out=scaled)
    return True
