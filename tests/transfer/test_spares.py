"""Buffers that are used again: never by two at once, and no more are kept than allowed."""

from __future__ import annotations

from mlfabric.transfer.spares import Spares


def test_a_buffer_is_used_again_once_it_was_given_back_and_not_before():
    spares = Spares(1000)
    first, second = spares.take(100), spares.take(100)
    first[:], second[:] = b"1" * 100, b"2" * 100
    assert (first[0], second[0]) == (ord("1"), ord("2"))
    spares.give(first)
    assert spares.take(100) is first
    assert spares.take(100) is not first


def test_a_buffer_of_another_size_is_not_given_out():
    spares = Spares(1 << 20)
    spares.give(spares.take(100_000))
    assert len(spares.take(70_000)) == 70_000


def test_no_more_is_kept_than_allowed():
    spares = Spares(250)
    buffers = [spares.take(100) for _ in range(3)]
    for buffer in buffers:
        spares.give(buffer)
    again = [spares.take(100) for _ in range(3)]
    assert [any(one is buffer for buffer in buffers) for one in again] == [True, True, False]
