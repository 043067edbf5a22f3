"""How to look at the byte image of a model: by runs of tensors that are treated alike. Holds tensors, knows no service.

Shells only: it imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mlfabric.model.specs import Layout, TensorKind

__all__ = ["DTYPES", "Run", "add_value", "runs_of"]

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "int32": torch.int32,
    "int64": torch.int64,
}


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring tensors that are treated as one: same dtype, kind and group; padding between them included.

    Args:
        tensors: which of the layout's.
        start, end: bytes of the image.
        group: which row of the updates' rates is theirs, if there are any.
    """

    kind: TensorKind
    dtype: torch.dtype
    tensors: range
    start: int
    end: int
    group: int = 0

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
        if out and (out[-1].kind, out[-1].dtype, out[-1].group) == (tensor.kind, dtype, tensor.group):
            joined = out.pop()
            out.append(Run(tensor.kind, dtype, range(joined.tensors.start, index + 1), joined.start, end, tensor.group))
        else:
            out.append(Run(tensor.kind, dtype, range(index, index + 1), start, end, tensor.group))
    return tuple(out)


def add_value(run: Run, target: torch.Tensor, source: torch.Tensor) -> None:
    """Add to a plain sum, in place, what another update has in a run; of counters, take the greater ones."""
    if run.kind is TensorKind.COUNTER:
        torch.maximum(target, source, out=target)
    else:
        target += source
