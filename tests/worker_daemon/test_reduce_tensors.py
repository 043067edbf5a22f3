"""Tensors of several AllReduces at a time: parts of one memory are told apart by where they lie, not by who wrote."""

from __future__ import annotations

import pytest
import torch

from mlfabric.errors import UsageError
from mlfabric.protocol import ReduceOp
from mlfabric.worker_daemon.buffer_pool import LEAST_KEPT_BYTES
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


def test_a_thousand_sizes_leave_a_bounded_rest_and_a_step_like_the_last_one_allocates_nothing() -> None:
    staging = StagedTensors()
    for n in range(1, 1001):
        assert begun(staging, torch.ones(1000 * n), 2.0).result() == 2
        assert staging.idle_bytes <= LEAST_KEPT_BYTES
    places = []
    for _ in range(2):
        handles = [begun(staging, torch.ones(1000 * n), 2.0) for n in (5, 1000, 70)]
        places.append({staged.result.data_ptr() for staged in staging._open})
        assert [handle.result() for handle in handles] == [2, 2, 2]
    assert places[0] == places[1]


def test_handles_that_nobody_asks_for_their_results_do_not_raise_what_is_kept() -> None:
    staging = StagedTensors()
    for n in range(1, 1001):
        begun(staging, torch.ones(1000 * n), 2.0)
    assert begun(staging, torch.ones(1000), 2.0).result() == 2
    assert staging.idle_bytes <= LEAST_KEPT_BYTES


def test_a_result_is_as_long_as_its_tensor_whatever_its_buffer_was_used_for_before() -> None:
    staging = StagedTensors()
    assert begun(staging, torch.ones(1000), 2.0).result() == 2
    short = torch.ones(3)
    handle = begun(staging, short, 7.0)
    (staged,) = staging._open
    assert len(staged.buffers.result) == 16
    handle.result()
    assert short.tolist() == [7.0] * 3
