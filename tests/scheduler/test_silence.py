"""Whom the detector finds silent, by arrivals as they are on good and bad days."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.scheduler.members.silence import (
    DOUBTFUL_TIMES,
    HALF_LIFE_NS,
    LEAST_HEARD,
    LEAST_NS,
    MOST_LEARNT_NS,
    MOST_STEP_NS,
    SETTLES_NS,
    STOPPED_NS,
    TIMES,
    Found,
    LostBy,
    Silences,
)

MS = 1_000_000
PERIOD_NS = 100 * MS
LOOK_NS = 50 * MS


class Watched:
    """Members whose pulses come regularly unless a test says otherwise, looked at all the time."""

    def __init__(self, **hosts: str) -> None:
        self.silences = Silences()
        self.now_ns = 0
        self.quiet: set[str] = set()
        self.stopped_since_ns: dict[str, int] = {}
        self.found: list[tuple[int, Found]] = []
        self.names = list(hosts)
        for name, host in hosts.items():
            self.silences.watch(name, host, 0)

    def run(self, for_ns: int) -> list[Found]:
        """Let time pass; return whom it found meanwhile."""
        before, end_ns = len(self.found), self.now_ns + for_ns
        while self.now_ns < end_ns:
            self.now_ns += LOOK_NS
            if self.now_ns % PERIOD_NS == 0:
                for name in self.names:
                    if name not in self.quiet:
                        since_ns = self.stopped_since_ns.get(name)
                        stopped_ns = 0 if since_ns is None else max(self.now_ns - since_ns, MS)
                        self.silences.heard(name, self.now_ns, stopped_ns)
            self.found += [(self.now_ns, found) for found in self.silences.judge(self.now_ns)]
        return [found for _, found in self.found[before:]]

    def wait_for_one(self) -> tuple[int, Found]:
        """Return the next one found, and how long that took."""
        since_ns = self.now_ns
        for _ in range(1000):
            if found := self.run(LOOK_NS):
                return self.now_ns - since_ns, found[0]
        raise AssertionError("nobody was found in 50 s")


@pytest.fixture
def three() -> Watched:
    watched = Watched(a="h1", b="h2", c="h3")
    assert watched.run(5000 * MS) == []
    return watched


def test_a_host_that_is_gone_is_found_as_soon_as_that_is_sure(three: Watched) -> None:
    three.quiet.add("a")
    took_ns, found = three.wait_for_one()
    assert (took_ns, found) == (LEAST_NS, Found("a", LostBy.SILENT))
    assert three.run(60_000 * MS) == [], "each is found once"


def test_a_stopped_process_is_found_though_its_host_is_heard(three: Watched) -> None:
    three.stopped_since_ns["a"] = three.now_ns
    took_ns, found = three.wait_for_one()
    assert (took_ns, found) == (STOPPED_NS, Found("a", LostBy.STOPPED))
    assert three.silences.is_found("a")
    assert three.silences.is_stopped("a", three.now_ns)


def test_a_process_that_is_stopped_for_a_moment_is_not_found(three: Watched) -> None:
    for _ in range(20):
        three.stopped_since_ns["a"] = three.now_ns
        assert three.run(STOPPED_NS - PERIOD_NS) == []
        del three.stopped_since_ns["a"]
        assert three.run(PERIOD_NS) == []


def test_a_process_that_has_ended_is_found_at_once(three: Watched) -> None:
    three.silences.heard("a", three.now_ns, ended=True)
    assert three.silences.judge(three.now_ns) == [Found("a", LostBy.ENDED)]


def test_one_that_comes_back_is_watched_anew_and_can_be_found_again(three: Watched) -> None:
    three.stopped_since_ns["a"] = three.now_ns
    three.wait_for_one()
    del three.stopped_since_ns["a"]
    assert three.run(1000 * MS) == []
    assert not three.silences.is_stopped("a", three.now_ns)
    three.silences.watch("a", "h1", three.now_ns)
    assert not three.silences.is_found("a")
    assert three.run(5000 * MS) == []
    three.quiet.add("a")
    assert three.wait_for_one() == (LEAST_NS, Found("a", LostBy.SILENT))


def test_what_a_member_that_is_not_heard_any_more_was_at_says_nothing(three: Watched) -> None:
    three.stopped_since_ns["a"] = three.now_ns
    three.wait_for_one()
    three.quiet.add("a")
    three.run(LEAST_NS)
    assert not three.silences.is_stopped("a", three.now_ns)


@pytest.mark.parametrize("heard", range(LEAST_HEARD))
def test_one_that_was_hardly_ever_heard_is_not_judged_by_its_silence(heard: int) -> None:
    watched = Watched(a="h1", b="h2")
    watched.run(heard * PERIOD_NS)
    watched.quiet.add("a")
    assert watched.run(60_000 * MS) == []


def test_one_that_left_is_not_found(three: Watched) -> None:
    three.silences.forget("a")
    three.names.remove("a")
    assert three.run(60_000 * MS) == []
    assert len(three.silences) == 2


def test_a_scheduler_that_was_held_up_finds_nobody_silent_for_that(three: Watched) -> None:
    for held_up_ns in (300 * MS, 2000 * MS, 3_600_000 * MS):
        three.now_ns += held_up_ns
        assert three.silences.judge(three.now_ns) == []
        assert three.run(2000 * MS) == []


def test_when_scheduler_and_members_were_stopped_together_nobody_is_found_for_that(three: Watched) -> None:
    since_ns = three.now_ns
    three.now_ns += 60_000 * MS
    for at_ns in range(since_ns, three.now_ns, 1000 * MS):
        for name in three.names:
            three.silences.heard(name, three.now_ns, at_ns - since_ns + MS)
    assert three.silences.judge(three.now_ns) == []
    assert three.run(60_000 * MS) == []


def test_one_that_was_stopped_while_the_scheduler_was_held_up_is_found_a_little_later(three: Watched) -> None:
    three.now_ns += 60_000 * MS
    three.stopped_since_ns["a"] = three.now_ns - 2000 * MS
    took_ns, found = three.wait_for_one()
    assert (took_ns, found) == (SETTLES_NS + LOOK_NS, Found("a", LostBy.STOPPED))


def test_a_scheduler_that_is_slow_all_the_time_finds_only_the_dead(three: Watched) -> None:
    three.quiet.add("a")
    found: list[Found] = []
    for _ in range(20):
        three.now_ns += 400 * MS
        for name in ("b", "c"):
            three.silences.heard(name, three.now_ns)
        found += three.silences.judge(three.now_ns)
    assert found == [Found("a", LostBy.SILENT)]


def test_longer_gaps_are_allowed_to_one_that_is_known_to_have_them(three: Watched) -> None:
    gap_ns = 400 * MS
    for _ in range(3):
        three.quiet.add("a")
        assert three.run(gap_ns - PERIOD_NS) == []
        three.quiet.clear()
        assert three.run(1000 * MS) == []
    three.quiet.add("a")
    took_ns, _ = three.wait_for_one()
    assert gap_ns * TIMES - LOOK_NS <= took_ns <= gap_ns * TIMES + LOOK_NS
    three.quiet.add("b")
    took_ns, _ = three.wait_for_one()
    assert took_ns == LEAST_NS, "what one is like says nothing of the others"


def test_gaps_are_forgotten(three: Watched) -> None:
    three.quiet.add("a")
    three.run(400 * MS)
    three.quiet.clear()
    three.run(5 * HALF_LIFE_NS)
    three.quiet.add("a")
    assert three.wait_for_one()[0] == LEAST_NS


def test_an_outage_is_no_reason_to_wait_longer_the_next_time(three: Watched) -> None:
    three.quiet.add("a")
    assert three.run(MOST_LEARNT_NS + PERIOD_NS) == [Found("a", LostBy.SILENT)]
    three.quiet.clear()
    three.run(PERIOD_NS)
    three.silences.watch("a", "h1", three.now_ns)
    three.run(5000 * MS)
    three.quiet.add("a")
    assert three.wait_for_one()[0] == LEAST_NS


def test_gaps_that_most_have_are_allowed_to_those_that_are_new() -> None:
    watched = Watched(a="h1", b="h2", c="h3")
    watched.run(1000 * MS)
    for _ in range(3):
        watched.quiet |= {"a", "b", "c"}
        watched.run(400 * MS)
        watched.quiet.clear()
        watched.run(1000 * MS)
    watched.silences.watch("d", "h4", watched.now_ns)
    watched.names.append("d")
    watched.run(LEAST_HEARD * PERIOD_NS)
    watched.quiet.add("d")
    took_ns, _ = watched.wait_for_one()
    assert took_ns > LEAST_NS


@pytest.mark.parametrize(
    ("hosts", "quiet", "times"),
    [("1234", "abc", DOUBTFUL_TIMES), ("1123", "a", DOUBTFUL_TIMES), ("1123", "ab", 1)],
    ids=["most hosts at once", "one of several on a host", "all members of a host"],
)
def test_who_is_quiet_together_with_others_is_found_with_them_and_later_if_that_is_odd(
    hosts: str, quiet: str, times: int
) -> None:
    watched = Watched(**dict(zip("abcd", hosts, strict=True)))
    watched.run(5000 * MS)
    watched.quiet |= set(quiet)
    assert watched.wait_for_one()[0] == times * LEAST_NS
    assert {found.member for _, found in watched.found} == set(quiet)


Delays = Callable[[random.Random], float]


def none(rng: random.Random) -> float:
    return rng.uniform(0, 2)


def starved(rng: random.Random) -> float:
    """Draw how late a process is that shares each core with twenty others that never sleep."""
    return rng.expovariate(1 / 20) if rng.random() < 0.5 else 0.0


def pareto(rng: random.Random) -> float:
    """Draw a delay with a heavy tail, as collectors of garbage and noisy neighbours cause, up to 350 ms."""
    return min(350.0, rng.paretovariate(1.5))


def losses(rng: random.Random) -> float:
    """Draw, as a delay, whether a datagram is lost on a link that loses every twentieth."""
    return float("inf") if rng.random() < 0.05 else none(rng)


def arrivals(rng: random.Random, members: Iterable[str], delay_ms: Delays, seconds: int) -> list[tuple[int, str]]:
    """Return when pulses of each member arrive, one that overtakes another counts as that."""
    found = []
    for member in members:
        phase_ms = rng.uniform(0, 100)
        for i in range(10 * seconds):
            late_ms = delay_ms(rng)
            if late_ms != float("inf"):
                found.append((round((phase_ms + 100 * i + late_ms) * MS), member))
    return sorted(found)


@pytest.mark.parametrize("delay_ms", [none, starved, pareto, losses])
@pytest.mark.parametrize("busy", [False, True], ids=["", "busy scheduler"])
def test_nobody_is_evicted_in_ten_bad_minutes_and_a_dead_host_is_found_after_them(delay_ms: Delays, busy: bool) -> None:
    rng = random.Random(7)
    members = [f"w{i}" for i in range(4)]
    silences = Silences()
    for member in members:
        silences.watch(member, f"host-{member}", 0)
    seconds = 600
    came = arrivals(rng, members, delay_ms, seconds)
    now_ns = at = 0
    while now_ns < seconds * 1000 * MS:
        now_ns += LOOK_NS + (round(rng.expovariate(1 / 300) * MS) if busy and rng.random() < 0.1 else 0)
        while at < len(came) and came[at][0] <= now_ns:
            silences.heard(came[at][1], now_ns)
            at += 1
        assert silences.judge(now_ns) == []
    died_ns = now_ns
    found: list[Found] = []
    while not found:
        now_ns += LOOK_NS
        for member in members[1:]:
            silences.heard(member, now_ns)
        found = silences.judge(now_ns)
        assert now_ns - died_ns < 2000 * MS
    assert found == [Found("w0", LostBy.SILENT)]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3000), st.integers(0, 400), st.booleans(), st.booleans()),
        max_size=200,
    )
)
def test_whatever_comes_who_is_found_was_stopped_or_ended_or_unheard_for_long_enough(
    steps: list[tuple[int, int, int, bool, bool]],
) -> None:
    silences, now_ns = Silences(), 0
    last_ns: dict[str, int] = {}
    bad: set[str] = set()
    for who, wait_ms, stopped_ms, ended, comes in steps:
        now_ns += wait_ms * MS
        name = f"w{who}"
        if name not in last_ns or silences.is_found(name):
            silences.watch(name, f"h{who // 2}", now_ns)
            bad.discard(name)
            last_ns[name] = now_ns
        elif comes:
            silences.heard(name, now_ns, stopped_ms * MS, ended=ended)
            (bad.add if ended or stopped_ms * MS >= STOPPED_NS else bad.discard)(name)
            last_ns[name] = now_ns
        for found in silences.judge(now_ns):
            if found.cause is LostBy.SILENT:
                assert now_ns - last_ns[found.member] >= LEAST_NS
            else:
                assert found.member in bad
            assert silences.is_found(found.member)


def test_time_that_goes_back_is_no_time() -> None:
    silences = Silences()
    silences.watch("a", "h", 1000 * MS)
    silences.heard("a", 900 * MS)
    assert silences.judge(0) == []
    assert MOST_STEP_NS < LEAST_NS
