"""Cutting buffers without copying."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.channels.views import chunked, contiguous, drop_front, total_bytes
from mlfabric.errors import UsageError

buffers = st.lists(st.binary(max_size=50), max_size=20)


@given(buffers, st.integers(min_value=1, max_value=60))
def test_chunks_joined_are_the_buffers_joined_and_all_but_the_last_are_full(parts: list[bytes], chunk: int) -> None:
    views = contiguous([memoryview(p) for p in parts])
    groups = list(chunked(views, chunk))
    assert b"".join(bytes(piece) for group in groups for piece in group) == b"".join(parts)
    assert all(total_bytes(group) == chunk for group in groups[:-1])


@given(buffers, st.integers(min_value=0, max_value=1100))
def test_dropping_the_front_leaves_the_rest(parts: list[bytes], n: int) -> None:
    views = contiguous([memoryview(p) for p in parts])
    assert b"".join(bytes(v) for v in drop_front(views, n)) == b"".join(parts)[n:]


def test_typed_and_shaped_buffers_become_flat_bytes_of_the_same_memory() -> None:
    array = np.zeros((3, 4), dtype=np.float64)
    (view,) = contiguous([array.data])
    view[0:8] = np.float64(7).tobytes()
    assert (len(view), array[0, 0]) == (96, 7)


def test_a_buffer_with_gaps_is_refused() -> None:
    with pytest.raises(UsageError, match=r"buffer 1 .* not contiguous"):
        contiguous([memoryview(b"a"), np.zeros((4, 4))[:, :2].data])
