"""When what is on its way over one link is over: counted from what has come, and from how late that was."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from mlfabric.scheduler.updates.ingress_queue import Coming, Succession

MS = 1_000_000

times = st.integers(0, 2000 * MS)
needs = st.integers(1, 500 * MS)
transfers = st.builds(Coming, times, needs, st.booleans())
alone = st.builds(Coming, times, needs, st.just(False))


@dataclass
class Link:
    """A succession, and the time."""

    succession: Succession
    now_ns: int = 0

    def pass_on(self, lates: list[int], idle_ns: int = 10 * MS) -> None:
        """Let transfers of 8 ms pass, each so late, and so long after the one before."""
        for late_ns in lates:
            planned_ns = self.now_ns + idle_ns + 8 * MS
            self.now_ns = planned_ns + late_ns
            self.succession.over(Coming(planned_ns, 8 * MS), self.now_ns)


def used(lates: list[int] | None = None) -> Link:
    link = Link(Succession())
    link.pass_on(lates or [])
    return link


links = st.builds(used, st.lists(st.integers(0, 100 * MS), max_size=20))


@given(links, st.lists(transfers, max_size=12), times)
def test_each_is_over_after_its_plan_and_after_the_last_and_what_it_needs(
    link: Link, coming: list[Coming], later_ns: int
) -> None:
    now_ns = link.now_ns + later_ns
    ends = link.succession.ends_ns(coming, now_ns)
    assert len(ends) == len(coming)
    free_ns = link.succession.last_ns
    for one, end_ns in zip(coming, ends, strict=True):
        assert end_ns >= one.end_ns
        if not (one.shares or link.succession.is_stuck(one, now_ns)):
            assert end_ns >= free_ns + one.needs_ns
            free_ns = end_ns


@given(links, st.lists(alone, min_size=2, max_size=12), times)
def test_only_the_first_can_be_late_already_all_others_take_their_time_from_now_on(
    link: Link, coming: list[Coming], later_ns: int
) -> None:
    now_ns = link.now_ns + later_ns
    both = zip(coming, link.succession.ends_ns(coming, now_ns), strict=True)
    behind = [(one, end_ns) for one, end_ns in both if not link.succession.is_stuck(one, now_ns)][1:]
    assert all(end_ns >= now_ns + one.needs_ns for one, end_ns in behind)
    assert behind == sorted(behind, key=lambda pair: pair[1])


@given(links, st.lists(transfers, max_size=12), times)
def test_what_shares_the_link_ends_by_plan_and_delays_nobody(link: Link, coming: list[Coming], later_ns: int) -> None:
    now_ns = link.now_ns + later_ns
    ends = link.succession.ends_ns(coming, now_ns)
    filling = [one for one in coming if not one.shares]
    both = list(zip(coming, ends, strict=True))
    assert [end_ns for one, end_ns in both if one.shares] == [one.end_ns for one in coming if one.shares]
    assert [end_ns for one, end_ns in both if not one.shares] == link.succession.ends_ns(filling, now_ns)
    assert link.succession.dry_ns(coming, now_ns) == link.succession.dry_ns(filling, now_ns)


@given(links, st.lists(alone, max_size=12), times)
def test_the_link_is_dry_now_or_when_one_is_over(link: Link, coming: list[Coming], later_ns: int) -> None:
    now_ns = link.now_ns + later_ns
    dry_ns = link.succession.dry_ns(coming, now_ns)
    ends = link.succession.ends_ns(coming, now_ns)
    assert dry_ns >= now_ns
    assert dry_ns in (now_ns, *ends)


def test_a_link_is_dry_in_a_gap_that_is_as_long_as_a_transfer_and_in_no_shorter_one() -> None:
    first, gap_ms = Coming(8 * MS, 8 * MS), 8
    assert Succession().dry_ns([first, Coming((8 + gap_ms + 8) * MS, 8 * MS)], 0) == 8 * MS
    assert Succession().dry_ns([first, Coming((8 + gap_ms + 7) * MS, 8 * MS)], 0) == (8 + gap_ms + 7) * MS
    assert Succession().dry_ns([Coming(16 * MS, 8 * MS)], 0) == 0
    assert Succession().dry_ns([], 5 * MS) == 5 * MS


@given(links, st.builds(Coming, times, needs, st.just(True)), times)
def test_the_end_of_what_shared_the_link_tells_nothing_of_it(link: Link, one: Coming, later_ns: int) -> None:
    lone = Coming(0, 8 * MS)
    before = (link.succession.last_ns, link.succession.ends_ns([lone], link.now_ns))
    link.succession.over(one, link.now_ns + later_ns)
    assert (link.succession.last_ns, link.succession.ends_ns([lone], link.now_ns)) == before


def test_a_lone_one_on_a_link_that_was_never_late_is_over_by_plan_also_when_that_is_past() -> None:
    assert Succession().ends_ns([Coming(80 * MS, 8 * MS)], 10 * MS) == [80 * MS]
    assert Succession().ends_ns([Coming(80 * MS, 8 * MS)], 500 * MS) == [80 * MS]


@given(links, st.lists(transfers, max_size=12), st.builds(Coming, times, needs, st.just(False)), st.integers(0, 12))
def test_one_that_is_stuck_delays_nobody(link: Link, others: list[Coming], one: Coming, place: int) -> None:
    now_ns = link.now_ns + one.end_ns + 10_000 * MS
    with_it = [*others[:place], one, *others[place:]]
    assert link.succession.is_stuck(one, now_ns)
    assert link.succession.ends_ns(with_it, now_ns)[min(place, len(others))] == one.end_ns
    rest = link.succession.ends_ns(others, now_ns)
    assert sorted(link.succession.ends_ns(with_it, now_ns)) == sorted([*rest, one.end_ns])


def test_one_is_stuck_when_it_is_late_by_twice_what_it_needs_and_at_least_by_50_ms() -> None:
    succession = Succession()
    for needs_ms, late_ms in ((8, 50), (80, 160)):
        one = Coming(100 * MS, needs_ms * MS)
        assert not succession.is_stuck(one, (100 + late_ms) * MS)
        assert succession.is_stuck(one, (100 + late_ms) * MS + 1)


def test_what_waits_behind_one_that_was_late_is_not_stuck_before_the_link_had_time_for_it() -> None:
    late, behind = Coming(80 * MS, 80 * MS), Coming(160 * MS, 80 * MS)
    succession = Succession()
    succession.over(late, 800 * MS)
    assert not succession.is_stuck(behind, (800 + 80 + 160) * MS)
    assert succession.is_stuck(behind, (800 + 80 + 160) * MS + 1)


def test_what_is_overtaken_is_stuck_when_it_is_late_itself() -> None:
    succession = Succession()
    succession.over(Coming(160 * MS, 80 * MS), 800 * MS)
    assert succession.is_stuck(Coming(80 * MS, 80 * MS), 800 * MS)


def test_what_begins_late_on_an_idle_link_again_and_again_is_expected_to_and_once_it_does_not_no_longer() -> None:
    link = used([5 * MS] * 50)
    planned_ns = link.now_ns + 100 * MS
    assert link.succession.lead_ns == 5 * MS
    assert link.succession.ends_ns([Coming(planned_ns, 8 * MS)], link.now_ns) == [planned_ns + 5 * MS]
    link.pass_on([0] * 50)
    assert link.succession.lead_ns == 0


def test_what_had_to_wait_for_the_one_before_it_is_not_counted_as_late() -> None:
    link = used([0])
    link.pass_on([5 * MS] * 50, idle_ns=0)
    assert link.succession.lead_ns == 0


def test_one_that_was_stuck_is_hardly_counted() -> None:
    assert used([3_600_000 * MS]).succession.lead_ns == MS
