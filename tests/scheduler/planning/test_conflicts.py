"""Who waits for whom, and who is paced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.network import LinkId, Network, Path, Piece, Profile, up_link
from mlfabric.scheduler.planning import after, paced_rate, predecessors

MS = 10**6
X, Y, Z = (LinkId(name, "s") for name in "xyz")
PATHS = st.sampled_from([(X,), (Y,), (X, Y), (Y, Z), ()])


def busy(start_ns: int, end_ns: int, bps: int = 1) -> Profile:
    return Profile(start_ns, end_ns, (Piece(start_ns, end_ns, bps),) if start_ns < end_ns else ())


PLANS = st.lists(
    st.tuples(PATHS, st.integers(0, 12), st.integers(0, 6)).map(lambda d: (d[0], busy(d[1], d[1] + d[2]))), max_size=8
)


def test_a_transfer_waits_for_those_that_end_last_before_it_on_each_of_its_links() -> None:
    running: list[tuple[str, Path, Profile]] = [
        ("early", (X,), busy(0, 3)),
        ("last on x", (X,), busy(3, 10)),
        ("last on y", (Y,), busy(0, 8)),
        ("elsewhere", (Z,), busy(0, 10)),
        ("beside it", (X,), busy(0, 11)),
    ]
    assert predecessors(busy(10, 20), (X, Y), running) == ("last on x", "last on y")
    assert after([("new", (X, Y), busy(10, 20))], running) == (("last on x", "last on y"),)


@given(new=PLANS, running=PLANS)
def test_all_at_once_are_as_one_by_one_and_nobody_waits_in_a_circle(
    new: list[tuple[Path, Profile]], running: list[tuple[Path, Profile]]
) -> None:
    old = [(n, path, profile) for n, (path, profile) in enumerate(running)]
    fresh = [(n + len(old), path, profile) for n, (path, profile) in enumerate(new)]
    every = [*old, *fresh]
    waits = after(fresh, old)
    for (key, path, profile), found in zip(fresh, waits, strict=True):
        assert found == predecessors(profile, path, [p for p in every if p[0] != key])
        assert all(every[other][2].end_ns <= profile.start_ns for other in found)
        assert all(every[other][2].start_ns < profile.start_ns for other in found)


@pytest.fixture
def star() -> Network:
    network = Network.star(10**9)
    network.add_host("a")
    network.add_host("s")
    return network


@pytest.mark.parametrize(("bps", "expected"), [(10**9, 0), (950_000_000, 0), (940_000_000, 940_000_000), (1, 1)])
def test_a_transfer_is_paced_only_where_the_plan_splits_a_link(star: Network, bps: int, expected: int) -> None:
    assert paced_rate(busy(0, MS, bps), star.path("a", "s"), star) == expected


def test_a_transfer_that_waits_for_others_midway_is_paced_at_its_average(star: Network) -> None:
    profile = Profile(0, 4 * MS, (Piece(0, MS, 10**9), Piece(3 * MS, 4 * MS, 10**9)))
    assert paced_rate(profile, star.path("a", "s"), star) == 500_000_000


def test_a_transfer_is_not_paced_for_a_link_that_is_slow_or_away(star: Network) -> None:
    star.plan_rate_change(up_link("a"), MS, 0)
    star.plan_rate_change(up_link("a"), 3 * MS, 5 * 10**8)
    profile = star.transfer(star.path("a", "s"), 250_000, 0)
    assert profile is not None
    assert len(profile.pieces) == 2
    assert paced_rate(profile, star.path("a", "s"), star) == 0


def test_what_crosses_no_link_is_not_paced(star: Network) -> None:
    assert paced_rate(busy(3, 3), (), star) == 0
