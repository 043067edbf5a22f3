"""Who waits for whom, and who is paced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.network import LinkId, Network, Path, Piece, Profile, up_link
from mlfabric.planning import Timetable, paced_rate

MS = 10**6
X, Y, Z = (LinkId(name, "s") for name in "xyz")
PATHS = st.sampled_from([(X,), (Y,), (X, Y), (Y, Z), ()])


def busy(start_ns: int, end_ns: int, bps: int = 1) -> Profile:
    return Profile(start_ns, end_ns, (Piece(start_ns, end_ns, bps),) if start_ns < end_ns else ())


PLANS = st.lists(
    st.tuples(PATHS, st.integers(0, 12), st.integers(0, 6)).map(lambda d: (d[0], busy(d[1], d[1] + d[2]))), max_size=8
)


@given(plans=PLANS, gone=st.sets(st.integers(0, 7)), path=PATHS, start_ns=st.integers(0, 20))
def test_a_timetable_finds_what_a_look_at_every_transfer_finds(
    plans: list[tuple[Path, Profile]], gone: set[int], path: Path, start_ns: int
) -> None:
    table = Timetable[int]()
    for n, (links, profile) in enumerate(plans):
        table.add(n, links, profile)
    for n in gone:
        table.remove(n)
    here = {n: plan for n, plan in enumerate(plans) if n not in gone and plan[1].start_ns < plan[1].end_ns}
    expected = set()
    for link in path:
        ends = {n: profile.end_ns for n, (links, profile) in here.items() if link in links}
        past = {n: end_ns for n, end_ns in ends.items() if end_ns <= start_ns}
        expected |= {n for n, end_ns in past.items() if end_ns == max(past.values())}
    assert table.before(path, start_ns) == tuple(sorted(expected))


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
