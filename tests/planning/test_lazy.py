"""A lazy sequence is a tuple whose items are made when they are looked at."""

from __future__ import annotations

import pytest

from mlfabric.planning.lazy import Lazy, joined


def test_it_equals_prints_hashes_and_indexes_as_a_tuple() -> None:
    squares = Lazy(4, lambda i: i * i)
    assert squares == (0, 1, 4, 9)
    expected = (0, 1, 4, 9)
    assert expected == squares
    assert squares == Lazy(4, lambda i: i**2)
    assert squares != (0, 1, 4)
    assert squares != [0, 1, 4, 9]
    assert (repr(squares), hash(squares)) == ("(0, 1, 4, 9)", hash((0, 1, 4, 9)))
    assert (squares[-1], squares[1:3], len(squares)) == (9, (1, 4), 4)
    with pytest.raises(IndexError):
        squares[4]


def test_nothing_is_made_before_it_is_asked_for() -> None:
    made: list[int] = []
    lazy = Lazy(3, made.append)
    assert len(lazy) == 3
    assert not made
    lazy[1]
    assert made == [1]


def test_an_error_in_making_an_item_is_not_taken_for_the_end() -> None:
    with pytest.raises(IndexError):
        list(Lazy(3, [0, 1].__getitem__))


@pytest.mark.parametrize("second", [(), (7,), (7, 8, 9)])
def test_two_sequences_joined_are_one_after_the_other(second):
    first = Lazy(3, lambda i: i * i)
    assert tuple(joined(first, second)) == (0, 1, 4, *second)
    assert joined(first, second)[-1] == (*first, *second)[-1]
