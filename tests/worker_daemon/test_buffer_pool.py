"""Buffers are used again, and idle ones are bounded whatever is asked for."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.worker_daemon.buffer_pool import LEAST_KEPT_BYTES, BufferPool

MB = 1 << 20


class Stand:
    """A pool of buffers without memory, and what it allocated."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.used: list[torch.Tensor] = []
        self.pool = BufferPool(self._make)

    def _make(self, size_bytes: int) -> torch.Tensor:
        self.made.append(size_bytes)
        return torch.empty(size_bytes, dtype=torch.uint8, device="meta")

    def take(self, *sizes_bytes: int) -> list[torch.Tensor]:
        others = sum(buffer.nbytes for buffer in self.used)
        taken = self.pool.take(sizes_bytes, lambda: others)
        self.used += taken
        return taken

    def give(self, buffers: Iterable[torch.Tensor]) -> None:
        for buffer in list(buffers):
            self.used = [used for used in self.used if used is not buffer]
            self.pool.give(buffer)


def test_tensors_one_after_another_need_one_buffer_as_long_as_the_longest() -> None:
    stand = Stand()
    for size in (900 * MB, 1, 300 * MB, 900 * MB):
        stand.give(stand.take(size))
    assert stand.made == [900 * MB]


def test_the_smallest_that_is_long_enough_is_taken() -> None:
    stand = Stand()
    stand.give(stand.take(1, 5, 3))
    assert [buffer.nbytes for buffer in stand.take(2)] == [3]
    assert [buffer.nbytes for buffer in stand.take(2)] == [5]
    assert [buffer.nbytes for buffer in stand.take(2)] == [2]


def test_a_failed_allocation_takes_nothing() -> None:
    stand = Stand()
    stand.give(stand.take(10))

    def fail(size_bytes: int) -> torch.Tensor:
        raise MemoryError

    stand.pool._make = fail
    with pytest.raises(MemoryError):
        stand.pool.take((10, 20), lambda: 0)
    assert stand.pool.idle_bytes == 10


@given(st.lists(st.lists(st.integers(0, 200 * MB), min_size=1, max_size=5), max_size=40), st.randoms())
def test_idle_bytes_never_exceed_what_was_in_use_at_once(steps: list[list[int]], draw: object) -> None:
    stand, most = Stand(), LEAST_KEPT_BYTES
    for sizes in steps:
        stand.take(*sizes)
        most = max(most, sum(buffer.nbytes for buffer in stand.used))
        draw.shuffle(stand.used)  # type: ignore[attr-defined]
        stand.give(stand.used[: len(stand.used) // 2])
        assert stand.pool.idle_bytes <= most
