"""The ring that elastic rounds are compared with: exact means, whatever the length, and no hang when a rank leaves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from mlfabric.channels import TcpOptions
from mlfabric.demo.ring import Ring
from mlfabric.errors import TransferError

T = TypeVar("T")


def at_all_ranks(folder: Path, size: int, work: Callable[[Ring, int], T]) -> list[T]:
    def rank_of(rank: int) -> T:
        with Ring(rank, size, TcpOptions(up_bps=10**9, down_bps=10**9), folder) as ring:
            return work(ring, rank)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(rank_of, range(size)))


@pytest.mark.parametrize(("size", "length"), [(2, 7), (3, 3), (4, 100_003), (4, 2)])
def test_every_rank_gets_the_mean_of_all_vectors(tmp_path, size, length):
    def average_twice(ring: Ring, rank: int) -> torch.Tensor:
        vector = torch.arange(length, dtype=torch.float32) * (rank + 1)
        ring.average(vector)
        vector += rank
        ring.average(vector)
        return vector

    mean_of_ranks = (size - 1) / 2
    expected = torch.arange(length, dtype=torch.float32) * (mean_of_ranks + 1) + mean_of_ranks
    found = at_all_ranks(tmp_path, size, average_twice)
    assert all(torch.equal(vector, found[0]) for vector in found)
    torch.testing.assert_close(found[0], expected)


def test_a_rank_that_leaves_fails_the_others(tmp_path):
    def average(ring: Ring, rank: int) -> None:
        if rank < 2:
            with pytest.raises(TransferError):
                ring.average(torch.ones(1000))

    at_all_ranks(tmp_path, 3, average)
