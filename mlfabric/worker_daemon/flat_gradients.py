"""A step's gradients as one flat tensor, to be summed with those of other workers, and the way back.

The last layers' gradients, which backward makes first, are at its beginning, so that it can leave while it grows.
Behind the gradients lie one number for each parameter, which says whether it had a gradient, and the values of the
model's floating-point buffers (batch-norm statistics). Of the sum, gradients become the mean over all parts in it,
buffers the mean over the workers; a parameter that had a gradient nowhere has none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch.utils.hooks import RemovableHandle

from mlfabric.errors import LayoutError, UsageError
from mlfabric.model.specs import DTYPE_BYTES
from mlfabric.worker_daemon.attempts import padded_bytes
from mlfabric.worker_daemon.averaged_buffers import AveragedBuffers

__all__ = ["FlatGradients", "dtype_of_all"]


class FlatGradients:
    """Where everything lies.

    Args:
        parameters: those that the optimizer steps.
        model: whose they are.
        buffers: are in it, too; None if none are.
        dtype: in which all travels; None takes one that holds everything in it.

    Attributes:
        parameters: in their order in the flat tensor.
        numel: elements of the flat tensor.
        ends_bytes: where the gradient of each ends.
        size_bytes: of the flat tensor, in whole ``ALIGNMENT_BYTES``.

    Raises:
        LayoutError: there is nothing to train, or a parameter is of a dtype that cannot travel.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        model: torch.nn.Module,
        *,
        buffers: AveragedBuffers | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.parameters, self._model = _backwards(parameters, model), model
        self._buffers = buffers
        self._torch_dtype = dtype or dtype_of_all(self.parameters, self._taken())
        self.dtype = str(self._torch_dtype).removeprefix("torch.")
        ends = list(accumulate(p.numel() for p in self.parameters))
        self._gradients = ends[-1]
        self.ends_bytes = [end * self._torch_dtype.itemsize for end in ends]
        numel = self._gradients + len(self.parameters) + sum(b.numel() for b in self._taken())
        self.size_bytes = padded_bytes(numel * self._torch_dtype.itemsize)
        self.numel = self.size_bytes // self._torch_dtype.itemsize

    @classmethod
    def in_parts(
        cls, parts: Sequence[Sequence[torch.nn.Parameter]], model: torch.nn.Module, buffers: AveragedBuffers
    ) -> list[FlatGradients]:
        """Return one for the parameters of each part, all of one dtype; the buffers are in the first one."""
        dtype = dtype_of_all([parameter for part in parts for parameter in part], buffers.taken())
        return [cls(part, model, buffers=None if turn else buffers, dtype=dtype) for turn, part in enumerate(parts)]

    def _taken(self) -> list[torch.Tensor]:
        """Return the buffers that have the means."""
        return [] if self._buffers is None else self._buffers.taken()

    @property
    def has_gradients(self) -> bool:
        """Whether any of the parameters has a gradient now."""
        return any(parameter.grad is not None for parameter in self.parameters)

    def empty(self) -> torch.Tensor:
        """Return a flat tensor of zeros."""
        return torch.zeros(self.numel, dtype=self._torch_dtype)

    def add_into(self, flat: torch.Tensor, *, fresh: bool, but: Collection[int] = ()) -> bool:
        """Put the present gradients and buffers into a flat tensor; return whether all of that is finite.

        Buffers that are not are then what they were before.

        Args:
            flat: written to.
            fresh: whatever it has is overwritten; else gradients are added to those that it has.
            but: places of parameters whose gradients are in it already.

        Raises:
            UsageError: no parameter has a gradient, or one has a sparse gradient; nothing was changed.
        """
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if not gradients:
            raise UsageError("step without a gradient: call backward() on a loss of this model first")
        for gradient in gradients:
            _check_dense(gradient)
        for i in range(len(self.parameters)):
            if i not in but:
                self.add_one(flat, i, fresh=fresh)
        if self._buffers is not None:
            for buffer, place in zip(self._buffers.given(), self._buffer_places(flat), strict=True):
                place.copy_(buffer.detach().reshape(-1))
            self._buffers.are_sound()
        return bool(torch.isfinite(flat).all())

    def add_one(self, flat: torch.Tensor, i: int, *, fresh: bool) -> None:
        """Put one parameter's gradient into a flat tensor.

        Args:
            i: its place.
            fresh: as for :meth:`add_into`.

        Raises:
            UsageError: it is sparse; nothing was changed.
        """
        gradient, place, had = self.parameters[i].grad, self._place(flat, i), self._gradients + i
        if fresh:
            flat[had] = float(gradient is not None)
        if gradient is None:
            if fresh:
                place.zero_()
            return
        _check_dense(gradient)
        flat[had] = 1.0
        flattened = gradient.detach().reshape(-1)
        if fresh:
            place.copy_(flattened)
        else:
            place.add_(flattened.to(place.device, place.dtype))

    def add_earlier(self, flat: torch.Tensor, earlier: torch.Tensor) -> None:
        """Add the gradients of another flat tensor to those of this one; buffers stay as they are in this one."""
        end = self._gradients + len(self.parameters)
        flat[:end].add_(earlier[:end])

    def is_finite(self, flat: torch.Tensor, i: int) -> bool:
        """Tell whether what a flat tensor has of a parameter is finite."""
        return bool(torch.isfinite(self._place(flat, i)).all())

    def name_of(self, i: int) -> str:
        """Return the name of the parameter at a place, for people."""
        return next((name for name, p in self._model.named_parameters() if p is self.parameters[i]), f"parameter {i}")

    def place_of(self, tensor: torch.Tensor) -> int:
        """Return a parameter's place.

        Raises:
            UsageError: the optimizer does not step it.
        """
        found = next((i for i, p in enumerate(self.parameters) if p is tensor), None)
        if found is None:
            raise UsageError(f"a tensor of shape {tuple(tensor.shape)}; allowed: a parameter of the wrapped optimizer")
        return found

    def when_made(self, made: Callable[[int], None]) -> list[RemovableHandle]:
        """Have it said when backward has made the gradient of the parameter at a place."""
        register: Callable[..., RemovableHandle] = torch.Tensor.register_post_accumulate_grad_hook
        return [register(p, partial(_say, made, i)) for i, p in enumerate(self.parameters) if p.requires_grad]

    def spread(self, total: memoryview, workers: int, weight: int) -> None:
        """Make the means of a sum the gradients of the parameters, and the values of the buffers.

        Args:
            total: bytes of the sum; written to.
            workers: of how many it is.
            weight: of how many equal parts, of all of them.
        """
        flat = torch.frombuffer(total, dtype=self._torch_dtype, count=self.numel)
        flat[: self._gradients].div_(weight)
        had = flat[self._gradients : self._gradients + len(self.parameters)].tolist()
        for i, (parameter, count) in enumerate(zip(self.parameters, had, strict=True)):
            mean = self._place(flat, i).view(parameter.shape).to(parameter.device, parameter.dtype)
            parameter.grad = mean if count else None
        for buffer, place in zip(self._taken(), self._buffer_places(flat), strict=True):
            buffer.copy_(place.div_(workers).view(buffer.shape))

    def _place(self, flat: torch.Tensor, i: int) -> torch.Tensor:
        end = self.ends_bytes[i] // self._torch_dtype.itemsize
        return flat[end - self.parameters[i].numel() : end]

    def _buffer_places(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        at = self._gradients + len(self.parameters)
        for buffer in self._taken():
            yield flat[at : at + buffer.numel()]
            at += buffer.numel()


def dtype_of_all(parameters: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor]) -> torch.dtype:
    """Return the dtype in which all of this travels.

    Raises:
        LayoutError: there is no parameter, or something is of a dtype that cannot travel.
    """
    dtypes = {t.dtype for t in (*parameters, *buffers)}
    names = {str(dtype).removeprefix("torch.") for dtype in dtypes}
    if not parameters or not names <= DTYPE_BYTES.keys():
        given = f"parameters of {', '.join(sorted(names)) or 'none'}"
        raise LayoutError(f"{given}; allowed: at least one, of {', '.join(DTYPE_BYTES)}")
    return dtypes.pop() if len(dtypes) == 1 else _widest(dtypes)


def _backwards(parameters: Sequence[torch.nn.Parameter], model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return parameters in the order in which backward makes their gradients, as far as the model tells: all workers'.

    Those that get none are last.
    """
    places = {parameter: place for place, parameter in enumerate(model.parameters())}
    return sorted(parameters, key=lambda p: (not p.requires_grad, -places.get(p, -1)))


def _say(made: Callable[[int], None], i: int, tensor: torch.Tensor) -> None:
    made(i)


def _check_dense(gradient: torch.Tensor) -> None:
    if gradient.layout is not torch.strided:
        raise UsageError("step with a sparse gradient; allowed: dense ones, as of Embedding(sparse=False)")


def _widest(dtypes: set[torch.dtype]) -> torch.dtype:
    return torch.float64 if torch.float64 in dtypes else torch.float32
