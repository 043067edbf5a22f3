"""What a plan starts after what, in a table that transfers leave one by one."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from mlfabric.protocol import SumId, UpdateId
from mlfabric.transfer.precedence import conflict, take_out, waits_for

Transfer = UpdateId | SumId
NAMES: list[Transfer] = [*(UpdateId("w", 1, i) for i in range(4)), SumId(1, 4), SumId(1, 5)]


@dataclass
class Row:
    after: frozenset[Transfer]


@st.composite
def _tables(draw: st.DrawFn) -> dict[Transfer, Row]:
    """Draw a plan: each follows some of those before it in a random order."""
    order = draw(st.permutations(NAMES))
    rows = {}
    for place, name in enumerate(order):
        before = draw(st.lists(st.sampled_from(order[:place]), max_size=2)) if place else []
        rows[name] = Row(frozenset(before))
    return rows


def _follows(late: Transfer, early: Transfer, table: dict[Transfer, Row]) -> bool:
    """The dumb twin: one step at a time, again and again."""
    return late in table and any(b == early or _follows(b, early, table) for b in table[late].after)


@given(_tables(), st.sampled_from(NAMES), st.sampled_from(NAMES))
def test_two_are_in_conflict_if_one_follows_the_other_by_any_way(table, a, b):
    assert conflict(a, b, table) == (_follows(a, b, table) or _follows(b, a, table))


@given(_tables(), st.sampled_from(NAMES), st.sampled_from(NAMES))
def test_only_a_sum_that_comes_early_keeps_nobody_waiting(table, this, other):
    early_sum = isinstance(other, SumId) and not _follows(this, other, table)
    assert waits_for(this, other, table) == (conflict(this, other, table) and not early_sum)


@given(_tables(), st.sampled_from(NAMES))
def test_what_leaves_a_table_changes_nothing_between_the_others(table, gone):
    others = [name for name in NAMES if name != gone]
    before = {(a, b): _follows(a, b, table) for a in others for b in others}
    take_out(gone, table)

    assert gone not in table
    assert {(a, b): _follows(a, b, table) for a in others for b in others} == before
