"""How to look at the byte image of a model: by runs of tensors that are treated alike. Holds tensors, knows no service.

Shells only: it imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mlfabric.specs import Layout, TensorKind

__all__ = ["DTYPES", "Run", "runs_of"]

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring tensors that are treated as one: same dtype, same kind; padding between them included.

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
        dtype = DTYPES[tensor.dtype]
        if out and (out[-1].kind, out[-1].dtype) == (tensor.kind, dtype):
            joined = out.pop()
            out.append(Run(tensor.kind, dtype, range(joined.tensors.start, index + 1), joined.start, end))
        else:
            out.append(Run(tensor.kind, dtype, range(index, index + 1), start, end))
    return tuple(out)
