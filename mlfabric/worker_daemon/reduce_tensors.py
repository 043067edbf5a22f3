"""Tensors on their way through an AllReduce; the only place where that touches torch. For the training thread.

A CPU tensor is sent from where it lies. One on a GPU is copied to pinned host memory first. The result comes into host
memory of its own and is written into the tensor by :meth:`ReduceHandle.result`, all at once: until then, and if the
AllReduce fails, the tensor is as it was. Host memory is used again, and bounded (``buffer_pool``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from weakref import WeakSet

import torch

from mlfabric.errors import LayoutError, UsageError
from mlfabric.model.specs import DTYPE_BYTES
from mlfabric.protocol import ReduceOp
from mlfabric.worker_daemon.attempts import ReduceBuffers, padded_bytes
from mlfabric.worker_daemon.buffer_pool import BufferPool
from mlfabric.worker_daemon.thread import CountFuture

__all__ = ["ReduceHandle", "StagedTensors", "check_reducible"]


def check_reducible(tensor: torch.Tensor) -> None:
    """Refuse what cannot be reduced in place.

    Raises:
        LayoutError: it is not dense and contiguous, or of another dtype; says what is allowed.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise LayoutError(f"a tensor of {dtype} cannot be reduced; allowed: {', '.join(DTYPE_BYTES)}")
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        given = f"shape {tuple(tensor.shape)}" + (
            f", strides {tensor.stride()}" if tensor.layout is torch.strided else ", sparse"
        )
        raise LayoutError(f"a tensor of {given} cannot be reduced in place; give a contiguous one: tensor.contiguous()")


class _Staged:
    """One tensor: host memory for its bytes (of its own unless it is on the CPU) and for the result's."""

    def __init__(self, tensor: torch.Tensor, op: ReduceOp, result: torch.Tensor, given: torch.Tensor | None) -> None:
        self.tensor = tensor.detach()
        self.op = op
        self.result = result
        self.given = given
        self._version = tensor._version
        if given is not None:
            _flat(given, self.tensor).copy_(self.tensor.reshape(-1))

    @property
    def buffers(self) -> ReduceBuffers:
        """What the daemon reads and writes."""
        source = self.tensor if self.given is None else _flat(self.given, self.tensor)
        return ReduceBuffers(
            given=_bytes_of(source) if self.tensor.nbytes else memoryview(b""),
            result=_bytes_of(self.result[: padded_bytes(self.tensor.nbytes)]),
            dtype=str(self.tensor.dtype).removeprefix("torch."),
        )

    @property
    def host_buffers(self) -> list[torch.Tensor]:
        """Its host memory, to be given back."""
        return [self.result] if self.given is None else [self.result, self.given]

    @property
    def host_bytes(self) -> int:
        """How much of that it uses."""
        return padded_bytes(self.tensor.nbytes) * len(self.host_buffers)

    def install(self, workers: int, others: Iterable[_Staged]) -> None:
        """Write the result into the tensor; ``others`` are being reduced, and may be other parts of the same memory."""
        before = self.tensor._version
        if before != self._version:
            raise UsageError("a tensor was written to while it was being reduced; wait for the handle's result first")
        result = _flat(self.result, self.tensor)
        if self.op is ReduceOp.MEAN:
            result.div_(workers)
        self.tensor.copy_(result.view(self.tensor.shape))
        for other in others:
            other._let_pass(self, before)

    def _let_pass(self, written: _Staged, before: int) -> None:
        """Not count that another part of the memory was written to: views share one count of writes."""
        shares = self.tensor.untyped_storage().data_ptr() == written.tensor.untyped_storage().data_ptr()
        if shares and self._version == before and not _overlap(self.tensor, written.tensor):
            self._version = self.tensor._version


class ReduceHandle:
    """An AllReduce on its way; :meth:`result` writes the sum into the tensor."""

    def __init__(self, future: CountFuture, finish: Callable[[], None]) -> None:
        self._future = future
        self._finish = finish
        self._is_over = False

    def done(self) -> bool:
        """Tell whether :meth:`result` would return (or raise) at once."""
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> int:
        """Wait until every worker has the result, write it into the tensor, and return how many took part.

        Raises:
            RefusedError: workers gave different things, or it failed too often; the tensor is as it was.
            FabricClosedError: this worker has left the fabric; the tensor is as it was.
            UsageError: the tensor was written to meanwhile; its new values are kept.
            TimeoutError: there was no result in time; it may be asked for again.
        """
        workers = self._future.result(timeout_s)
        if not self._is_over:
            self._is_over = True
            self._finish()
        return workers


class StagedTensors:
    """Stages tensors and keeps the buffers."""

    def __init__(self) -> None:
        self._pools = {pinned: BufferPool(partial(_host_memory, pinned)) for pinned in (False, True)}
        self._open: WeakSet[_Staged] = WeakSet()

    @property
    def idle_bytes(self) -> int:
        """How much host memory is kept for the next tensors."""
        return sum(pool.idle_bytes for pool in self._pools.values())

    def stage(self, tensor: torch.Tensor, op: ReduceOp) -> _Staged:
        """Prepare a tensor; it must not be written to until its handle is over.

        Raises:
            LayoutError: it cannot be reduced in place.
        """
        check_reducible(tensor)
        count = 1 if tensor.device.type == "cpu" else 2
        sizes_bytes = [padded_bytes(tensor.nbytes)] * count
        result, *given = self._pools[tensor.is_cuda].take(sizes_bytes, self._bytes_in_use)
        staged = _Staged(tensor, op, result, given[0] if given else None)
        self._open.add(staged)
        return staged

    def _bytes_in_use(self) -> int:
        return sum(staged.host_bytes for staged in self._open)

    def handle(self, staged: _Staged, future: CountFuture) -> ReduceHandle:
        """Return the handle of a tensor that was staged; buffers of a failed AllReduce are not used again."""

        def finish() -> None:
            self._open.discard(staged)
            try:
                staged.install(future.result(), self._open)
            finally:
                for buffer in staged.host_buffers:
                    self._pools[staged.tensor.is_cuda].give(buffer)

        return ReduceHandle(future, finish)


def _host_memory(pinned: bool, size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=pinned)


def _flat(buffer: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """View the front of a buffer as the elements of a tensor."""
    return buffer[: like.numel() * like.element_size()].view(like.dtype)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two contiguous tensors have bytes in common."""
    starts = one.data_ptr(), other.data_ptr()
    ends = starts[0] + one.numel() * one.element_size(), starts[1] + other.numel() * other.element_size()
    return starts[0] < ends[1] and starts[1] < ends[0]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data
