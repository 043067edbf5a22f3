"""Unit slots with deadlines: who is left, and in which order the others commit."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from mlfabric.scheduler.planning import positions
from mlfabric.scheduler.planning.fluid.jit import plain

commit_order, worst_due = plain(positions.commit_order), plain(positions.worst_due)

DEADLINES = st.lists(st.integers(1, 8), max_size=7)


def is_feasible(deadlines: list[int]) -> bool:
    return all(deadline >= position for position, deadline in enumerate(sorted(deadlines), start=1))


@given(deadlines=DEADLINES)
def test_what_is_not_left_fits_and_nobody_is_left_who_fits(deadlines: list[int]) -> None:
    deadlines.sort()
    left = {i for i, _ in worst_due(deadlines, list(range(len(deadlines))))}
    kept = [d for i, d in enumerate(deadlines) if i not in left]
    assert is_feasible(kept)
    assert all(not is_feasible([*kept, deadlines[i]]) for i in left)


@given(deadlines=DEADLINES)
def test_each_position_goes_to_the_first_arrival_that_leaves_the_rest_feasible(deadlines: list[int]) -> None:
    deadlines.sort()
    left = {i for i, _ in worst_due(deadlines, list(range(len(deadlines))))}
    kept = [d for i, d in enumerate(deadlines) if i not in left]
    orders = (
        order
        for order in permutations(range(len(kept)))
        if all(kept[i] >= position for position, i in enumerate(order, start=1))
    )
    assert commit_order(kept) == list(next(orders))


def test_the_worst_goes_first_at_the_smallest_violated_position() -> None:
    assert worst_due([1, 1, 3, 3, 3, 3], [1, 2, 9, 3, 4, 8]) == [(2, 1), (9, 3), (8, 3)]
