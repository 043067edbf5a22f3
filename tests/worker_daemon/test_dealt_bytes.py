"""How the bytes of a growing gradient are dealt out to what travels."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from mlfabric.worker_daemon.dealt_bytes import SEGMENTS, pieces_of, put_in_order

UNIT = 16


@given(st.integers(1, 200), st.sets(st.integers(1, 199)), st.integers(1, 9))
def test_every_byte_travels_once_in_the_order_in_which_it_becomes_ready(units, cuts, segments) -> None:
    size, bounds = UNIT * units, sorted({0, units, *(cut for cut in cuts if cut < units)})
    ranges = [(UNIT * start, UNIT * end) for start, end in itertools.pairwise(bounds)]
    gradient, travelled, back = random.Random(units).randbytes(size), bytearray(size), bytearray(size)
    for start, end in ranges:
        pieces = pieces_of(start, end, size, segments)
        assert pieces == sorted(pieces)
        travelled[start:end] = b"".join(gradient[first:after] for first, after in pieces)
    assert sorted(travelled) == sorted(gradient)
    put_in_order(memoryview(travelled), memoryview(back), ranges, segments)
    assert back == gradient


@given(st.integers(1, 100), st.integers(0, 7))
def test_a_range_has_its_share_of_every_part_of_the_gradient(units, at) -> None:
    each = UNIT * units * SEGMENTS
    pieces = pieces_of(at * each, (at + 1) * each, 8 * each, SEGMENTS)
    assert [after - first for first, after in pieces] == [UNIT * units] * SEGMENTS
    assert [first // each for first, _ in pieces] == list(range(SEGMENTS))
