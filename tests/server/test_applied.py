"""The memory that makes every update count at most once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.protocol import Committed, Dropped, DropReason, ModelVersion, UpdateId
from mlfabric.server.applied import AppliedSet


def name(counter, worker="a", incarnation=1):
    return UpdateId(worker, incarnation, counter)


def version(number):
    return ModelVersion(1, number)


counters = st.lists(st.integers(0, 30), unique=True)


@given(counters, st.integers(0, 30))
def test_what_was_applied_is_known_for_ever(applied, low):
    known = AppliedSet()
    for number, counter in enumerate(applied):
        known.add(name(counter), version(number), 0)
    known.raise_low(name(0), low)
    assert all(known.knows(name(c)) for c in applied)
    assert all(known.knows(name(c)) == (c < low or c in applied) for c in range(40))
    assert not known.knows(name(0, worker="b"))
    assert not known.knows(name(99, incarnation=2))


@given(counters, st.integers(0, 30))
def test_a_snapshot_holds_everything_that_was_applied(applied, low):
    known = AppliedSet()
    for number, counter in enumerate(applied):
        known.add(name(counter), version(number), number)
    known.raise_low(name(0), low)
    twin = AppliedSet(known.snapshot())
    assert twin.snapshot() == known.snapshot()
    assert all(twin.outcome(name(c)) == known.outcome(name(c)) for c in range(40))


@given(st.lists(st.integers(0, 30)))
def test_the_mark_never_falls(lows):
    known = AppliedSet()
    for low in lows:
        known.raise_low(name(0), low)
    assert all(known.knows(name(c)) == (c < max(lows, default=0)) for c in range(32))


def test_an_outcome_is_remembered_until_the_worker_knows_it():
    known = AppliedSet()
    known.add(name(3), version(1), 2)
    assert known.outcome(name(3)) == Committed(version=version(1), tau=2)
    known.raise_low(name(0), 4)
    assert known.outcome(name(3)) is None
    assert known.knows(name(3))


def test_a_second_time_is_a_broken_invariant():
    known = AppliedSet()
    known.add(name(0), version(1), 0)
    with pytest.raises(AssertionError, match="applied twice"):
        known.add(name(0), version(2), 0)


def test_a_drop_is_remembered_but_not_announced():
    known = AppliedSet()
    outcome = Dropped(cause=DropReason.DELAY_BOUND)
    known.drop(name(0), outcome)
    assert known.outcome(name(0)) == outcome
    assert known.knows(name(0))
    assert known.snapshot()[0].recent == ()
    known.raise_low(name(0), 1)
    assert known.outcome(name(0)) is None
