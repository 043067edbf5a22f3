"""What is kept of the result of an attempt that was stopped, and the attempt at the rest of the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.model.ranges import Ranges, count, difference
from mlfabric.worker_daemon.attempts import ReduceBuffers
from mlfabric.worker_daemon.dealt_bytes import beginning, pieces_of
from mlfabric.worker_daemon.kept_results import KeptResult, rest_of

BLOCK = 16
PIECES = [(5, 9), (20, 22)]


class Came:
    """An attempt in which so much has come of each of some equal stripes: of each byte the number of its block."""

    def __init__(self, whole: np.ndarray, stripes: int, came: list[float], segments: int) -> None:
        self._whole, self._segments = whole, segments
        self._stripes, self._came = stripes, came

    def come(self) -> Iterator[tuple[list[tuple[int, int]], memoryview]]:
        size = len(self._whole)
        blocks = size // BLOCK
        for n, share in zip(range(self._stripes), self._came, strict=False):
            start, end = (BLOCK * (blocks * at // self._stripes) for at in (n, n + 1))
            pieces = pieces_of(start, end, size, self._segments)
            length = BLOCK * round(share * (end - start) / BLOCK)
            travelled = np.concatenate([self._whole[a:b] for a, b in pieces] or [self._whole[:0]])
            yield beginning(pieces, length), memoryview(travelled[:length].copy().data)


shares = st.lists(st.floats(0, 1), min_size=5, max_size=5)


@given(st.integers(1, 60), st.integers(1, 5), st.sampled_from((1, 8)), st.lists(shares, min_size=1, max_size=4))
def test_attempts_at_what_is_left_make_the_whole(blocks, stripes, segments, attempts) -> None:
    size = BLOCK * blocks
    wanted = np.repeat(np.arange(blocks, dtype=np.uint8), BLOCK)
    everything: Ranges = ((0, size),)
    kept, rest = KeptResult(size), everything
    for came in [*attempts, 5 * [1.0]]:
        told: Any = () if rest == everything else rest
        given_to = ReduceBuffers(given=wanted.data, result=memoryview(b""), dtype="uint8")
        left = wanted if not told else np.frombuffer(rest_of(given_to, told).given or b"", np.uint8)
        assert len(left) == count(rest)
        attempt: Any = Came(left, stripes, came, segments)
        kept.take(attempt, told)
        for start, end in kept.kept:
            assert np.array_equal(np.frombuffer(kept.total[start:end], np.uint8), wanted[start:end])
        rest = difference(everything, kept.kept)
        assert kept.has_all_but(rest)
        if not rest:
            break
        assert not kept.has_all_but(rest[1:])
    assert np.array_equal(np.frombuffer(kept.total, np.uint8), wanted)


def test_who_only_receives_has_nothing_to_give_of_the_rest() -> None:
    found = rest_of(ReduceBuffers(given=None, result=memoryview(b""), dtype="float32"), ((0, 16), (32, 40)))
    assert found.given is None
    assert len(found.result) == 32


@pytest.mark.parametrize(("length", "wanted"), [(0, []), (3, [(5, 8)]), (5, [(5, 9), (20, 21)]), (9, PIECES)])
def test_the_beginning_of_pieces(length, wanted) -> None:
    assert beginning(PIECES, length) == wanted
