"""A step's gradients as one flat tensor, to be summed with those of other workers, and the way back.

Behind the gradients lie one number for each parameter, which says whether it had a gradient, and the values of the
model's floating-point buffers (batch-norm statistics). Of the sum, gradients become the mean over all gradients in it,
buffers the mean over the workers; a parameter that had a gradient nowhere has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from mlfabric.errors import LayoutError, UsageError
from mlfabric.model.specs import DTYPE_BYTES
from mlfabric.worker_daemon.attempts import padded_bytes

__all__ = ["FlatGradients"]


class FlatGradients:
    """Where everything lies.

    Args:
        parameters: those that the optimizer steps.
        model: of whose floating-point buffers the workers have the mean; not of those with NaN or Inf now, which are
            masks that no step changes. A module may assign a buffer anew.

    Raises:
        LayoutError: there is nothing to train, or a parameter is of a dtype that cannot travel.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], model: torch.nn.Module) -> None:
        self.parameters, self._model = list(parameters), model
        self._names = [n for n, b in model.named_buffers() if b.is_floating_point() and bool(b.isfinite().all())]
        buffers = self._buffers()
        dtypes = {t.dtype for t in (*self.parameters, *buffers)}
        names = {str(dtype).removeprefix("torch.") for dtype in dtypes}
        if not self.parameters or not names <= DTYPE_BYTES.keys():
            given = f"parameters of {', '.join(sorted(names)) or 'none'}"
            raise LayoutError(f"{given}; allowed: at least one, of {', '.join(DTYPE_BYTES)}")
        self._torch_dtype = dtypes.pop() if len(dtypes) == 1 else _widest(dtypes)
        self.dtype = str(self._torch_dtype).removeprefix("torch.")
        self._gradients = sum(p.numel() for p in self.parameters)
        self._numel = self._gradients + len(self.parameters) + sum(b.numel() for b in buffers)

    def _buffers(self) -> list[torch.Tensor]:
        present = dict(self._model.named_buffers())
        return [present[name] for name in self._names]

    @property
    def size_bytes(self) -> int:
        """Size of the flat tensor."""
        return self._numel * self._torch_dtype.itemsize

    @property
    def padded_bytes(self) -> int:
        """Size of the buffer that its sum goes into."""
        return padded_bytes(self.size_bytes)

    def empty(self) -> torch.Tensor:
        """Return a flat tensor of zeros."""
        return torch.zeros(self._numel, dtype=self._torch_dtype)

    def add_into(self, flat: torch.Tensor, *, fresh: bool) -> bool:
        """Put the present gradients and buffers into a flat tensor; return whether all of that is finite.

        Args:
            flat: written to.
            fresh: whatever it has is overwritten; else gradients are added to those that it has.

        Raises:
            UsageError: no parameter has a gradient, or one has a sparse gradient; nothing was changed.
        """
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if not gradients:
            raise UsageError("step without a gradient: call backward() on a loss of this model first")
        if any(gradient.layout is not torch.strided for gradient in gradients):
            raise UsageError("step with a sparse gradient; allowed: dense ones, as of Embedding(sparse=False)")
        had = flat[self._gradients : self._gradients + len(self.parameters)]
        for i, (parameter, place) in enumerate(zip(self.parameters, self._places(flat), strict=True)):
            if fresh:
                had[i] = float(parameter.grad is not None)
            if parameter.grad is None:
                if fresh:
                    place.zero_()
                continue
            had[i] = 1.0
            gradient = parameter.grad.detach().reshape(-1)
            if fresh:
                place.copy_(gradient)
            else:
                place.add_(gradient.to(place.device, place.dtype))
        for buffer, place in zip(self._buffers(), self._buffer_places(flat), strict=True):
            place.copy_(buffer.detach().reshape(-1))
        return bool(torch.isfinite(flat).all())

    def spread(self, total: memoryview, workers: int, updates: int) -> None:
        """Make the means of a sum the gradients of the parameters, and the values of the buffers.

        Args:
            total: bytes of the sum; written to.
            workers, updates: of how many workers it is, and of how many gradients.
        """
        flat = torch.frombuffer(total, dtype=self._torch_dtype, count=self._numel)
        flat[: self._gradients].div_(updates)
        had = flat[self._gradients : self._gradients + len(self.parameters)].tolist()
        for parameter, place, count in zip(self.parameters, self._places(flat), had, strict=True):
            mean = place.view(parameter.shape).to(parameter.device, parameter.dtype)
            parameter.grad = mean if count else None
        for buffer, place in zip(self._buffers(), self._buffer_places(flat), strict=True):
            buffer.copy_(place.div_(workers).view(buffer.shape))

    def square(self, flat: torch.Tensor | memoryview) -> float:
        """Return the squared l2 norm of the gradients in a flat tensor, or in its bytes."""
        tensor = flat if isinstance(flat, torch.Tensor) else torch.frombuffer(flat, dtype=self._torch_dtype)
        gradients = tensor[: self._gradients]
        gradients = gradients.float() if gradients.itemsize < torch.float32.itemsize else gradients
        return float(gradients.dot(gradients))

    def _places(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        at = 0
        for parameter in self.parameters:
            yield flat[at : at + parameter.numel()]
            at += parameter.numel()

    def _buffer_places(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        at = self._gradients + len(self.parameters)
        for buffer in self._buffers():
            yield flat[at : at + buffer.numel()]
            at += buffer.numel()


def _widest(dtypes: set[torch.dtype]) -> torch.dtype:
    return torch.float64 if torch.float64 in dtypes else torch.float32
