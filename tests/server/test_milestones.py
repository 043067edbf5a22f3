"""Checkpoints of parts of a model are of the same versions at all servers."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mlfabric.server.milestones import Milestones

EVERY_S = 10.0


def milestones_of(versions_per_s: float, start: int, end: int) -> list[int]:
    """Return which versions are checkpointed by a server that begins at one of them, at a steady pace."""
    milestones = Milestones(EVERY_S, start, start / versions_per_s)
    return [v for v in range(start + 1, end) if milestones.is_due(v, v / versions_per_s)]


@given(st.floats(0.05, 100.0), st.integers(0, 300), st.integers(0, 300), st.floats(0.8, 1.25))
def test_servers_that_began_at_different_times_have_milestones_in_common(pace, first, second, error):
    end = 2000 + int(8 * EVERY_S * pace)
    ours, theirs = milestones_of(pace, first, end), milestones_of(pace * error, second, end)
    common = sorted(set(ours) & set(theirs))
    assert common
    assert end - common[-1] <= 2 * EVERY_S * pace * max(error, 1.0) + 2


@given(st.floats(0.05, 100.0), st.integers(0, 300))
def test_milestones_are_about_as_far_apart_as_was_asked_for(pace, start):
    found = milestones_of(pace, start, start + 2000)
    gaps = [(b - a) / pace for a, b in itertools.pairwise(found)]
    assert all(EVERY_S / 4 <= gap <= max(EVERY_S, 1 / pace) * 1.01 for gap in gaps)
