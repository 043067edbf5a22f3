"""Tensors of several AllReduces at a time: parts of one memory are told apart by where they lie, not by who wrote."""

from __future__ import annotations

import pytest
import torch

from mlfabric.errors import UsageError
from mlfabric.protocol import ReduceOp
from mlfabric.worker_daemon.reduce_tensors import ReduceHandle, StagedTensors
from mlfabric.worker_daemon.thread import CountFuture


def begun(staging: StagedTensors, tensor: torch.Tensor, answer: float) -> ReduceHandle:
    """Stage a tensor, and let its AllReduce be over, with a result that is the same in every place."""
    staged = staging.stage(tensor, ReduceOp.SUM)
    result = torch.full((tensor.numel(),), answer, dtype=tensor.dtype)
    staged.buffers.result[: tensor.numel() * tensor.element_size()] = result.view(torch.uint8).numpy().data
    future = CountFuture()
    future.set_result(2)
    return staging.handle(staged, future)


def test_slices_of_one_flat_tensor_may_be_reduced_at_the_same_time() -> None:
    flat, staging = torch.ones(12), StagedTensors()
    handles = [begun(staging, flat[4 * n : 4 * n + 4], 10.0 * (n + 1)) for n in range(3)]
    assert [handle.result() for handle in reversed(handles)] == [2, 2, 2]
    assert flat.tolist() == [10.0] * 4 + [20.0] * 4 + [30.0] * 4


def test_a_write_to_one_slice_by_somebody_else_is_reported_whatever_else_is_written() -> None:
    flat, staging = torch.ones(8), StagedTensors()
    first, second = begun(staging, flat[:4], 10.0), begun(staging, flat[4:], 20.0)
    flat[4:] += 1
    for handle in (first, second):
        with pytest.raises(UsageError, match="written to"):
            handle.result()
    assert flat.tolist() == [1.0] * 4 + [2.0] * 4


def test_a_write_after_a_slice_was_installed_is_reported_for_the_others() -> None:
    flat, staging = torch.ones(8), StagedTensors()
    first, second = begun(staging, flat[:4], 10.0), begun(staging, flat[4:], 20.0)
    first.result()
    flat[4:] += 1
    with pytest.raises(UsageError, match="written to"):
        second.result()


def test_slices_that_overlap_are_written_to_by_one_another() -> None:
    flat, staging = torch.ones(8), StagedTensors()
    first, second = begun(staging, flat[:5], 10.0), begun(staging, flat[4:], 20.0)
    first.result()
    with pytest.raises(UsageError, match="written to"):
        second.result()


def test_a_tensor_of_other_memory_is_no_business_of_a_slice() -> None:
    one, other, staging = torch.ones(4), torch.ones(4), StagedTensors()
    first, second = begun(staging, one, 10.0), begun(staging, other, 20.0)
    other += 1
    assert first.result() == 2
    with pytest.raises(UsageError, match="written to"):
        second.result()
