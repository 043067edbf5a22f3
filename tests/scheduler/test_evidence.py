"""Which links have changed, told from probes over two links each: exact cases, and whatever the links may carry."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from mlfabric.network import LinkId, down_link, up_link
from mlfabric.scheduler.rounds.probe_evidence import changed_rates

SAME = 1.2
FAST, SLOW = 1000, 300
Seen = dict[tuple[LinkId, LinkId], int]


def over(ways: dict[str, int]) -> Seen:
    """Return what was seen, from ways like "a>b"."""
    pairs = {tuple(way.split(">")): bps for way, bps in ways.items()}
    return {(up_link(source), down_link(destination)): bps for (source, destination), bps in pairs.items()}


def known(seen: Seen, **others: int) -> dict[LinkId, int]:
    """Return that every link carries FAST but for some, like up_a=300."""
    rates = {link: FAST for pair in seen for link in pair}
    for name, bps in others.items():
        direction, _, host = name.partition("_")
        rates[up_link(host) if direction == "up" else down_link(host)] = bps
    return rates


def test_a_slow_link_is_told_by_the_other_probes_over_its_partners() -> None:
    way_up = over({"a>b": SLOW, "a>c": SLOW, "d>b": FAST, "d>c": FAST})
    assert changed_rates(way_up, known(way_up)) == {up_link("a"): SLOW}
    way_down = over({"a>b": SLOW, "d>b": SLOW, "a>c": FAST, "d>c": FAST})
    assert changed_rates(way_down, known(way_down)) == {down_link("b"): SLOW}


def test_a_link_that_no_other_probe_clears_is_blamed_if_it_explains_the_most() -> None:
    seen = over({"a>b": SLOW, "a>c": SLOW})
    assert changed_rates(seen, known(seen)) == {up_link("a"): SLOW}


def test_two_that_explain_it_equally_well_are_both_blamed() -> None:
    seen = over({"a>b": SLOW})
    assert changed_rates(seen, known(seen)) == {up_link("a"): SLOW, down_link("b"): SLOW}


def test_a_link_is_as_fast_as_the_fastest_of_its_slow_probes() -> None:
    seen = over({"a>b": SLOW, "a>c": SLOW + 30, "d>b": FAST, "d>c": FAST})
    assert changed_rates(seen, known(seen)) == {up_link("a"): SLOW + 30}


def test_two_links_that_are_slow_to_different_degrees_are_both_found() -> None:
    seen = over({"a>b": SLOW, "a>c": SLOW, "d>b": FAST, "d>c": 500, "e>b": FAST, "e>c": 500})
    assert changed_rates(seen, known(seen)) == {up_link("a"): SLOW, down_link("c"): 500}


def test_a_probe_that_is_faster_than_was_known_raises_both_its_links() -> None:
    seen = over({"a>b": 2 * FAST})
    assert changed_rates(seen, known(seen)) == {up_link("a"): 2 * FAST, down_link("b"): 2 * FAST}
    assert changed_rates(seen, known(seen, down_b=2 * FAST)) == {up_link("a"): 2 * FAST}


def test_what_differs_by_less_than_the_factor_changes_nothing() -> None:
    for bps in (840, 1190):
        seen = over({"a>b": bps})
        assert changed_rates(seen, known(seen)) == {}
    for bps in (830, 1210):
        seen = over({"a>b": bps})
        assert changed_rates(seen, known(seen)) == {up_link("a"): bps, down_link("b"): bps}


def test_a_link_that_is_known_to_be_slow_explains_its_slow_probes() -> None:
    seen = over({"a>b": SLOW, "a>c": SLOW, "d>b": FAST})
    assert changed_rates(seen, known(seen, up_a=SLOW)) == {}


def test_a_probe_that_was_slower_than_what_both_links_showed_elsewhere_changes_nothing() -> None:
    seen = over({"a>b": SLOW, "a>c": FAST, "d>b": FAST})
    assert changed_rates(seen, known(seen)) == {}


def test_without_probes_nothing_changes() -> None:
    assert changed_rates({}, {up_link("a"): FAST}) == {}


RATES = (10_000, 25_000, 33_000, 50_000, 100_000)
some_rate = st.sampled_from(RATES)


@st.composite
def circles(draw: st.DrawFn) -> list[tuple[LinkId, LinkId]]:
    """Workers in a circle, each of which sends to the next two."""
    workers = draw(st.permutations([f"w{n}" for n in range(draw(st.integers(4, 9)))]))
    twice = workers + workers
    pairs = [(worker, target) for n, worker in enumerate(workers) for target in twice[n + 1 : n + 3]]
    return [(up_link(source), down_link(target)) for source, target in pairs]


def of_all(pairs: list[tuple[LinkId, LinkId]], values: st.SearchStrategy[int]) -> st.SearchStrategy[dict[LinkId, int]]:
    return st.fixed_dictionaries({link: values for pair in pairs for link in pair})


def probed(draw: st.DrawFn, true: dict[LinkId, int], pairs: list[tuple[LinkId, LinkId]]) -> Seen:
    """Draw how fast probes come: as the slower link carries them, within 5 %."""
    percents = st.integers(95, 105)
    return {pair: min(true[link] for link in pair) * draw(percents) // 100 for pair in pairs}


@given(circles(), st.data())
def test_every_probe_is_explained_and_no_changed_link_is_faster_than_was_seen(pairs, data) -> None:
    true, before = data.draw(of_all(pairs, some_rate)), data.draw(of_all(pairs, some_rate))
    assert_explained(probed(data.draw, true, pairs), before)


@given(circles(), st.data())
def test_whatever_comes_is_explained_unless_both_links_carried_more_elsewhere(pairs, data) -> None:
    before = data.draw(of_all(pairs, some_rate))
    assert_explained({pair: data.draw(some_rate) for pair in pairs}, before, may_contradict=True)


def assert_explained(seen: Seen, before: dict[LinkId, int], *, may_contradict: bool = False) -> None:
    changed = changed_rates(seen, before)
    most = {link: max(bps for pair, bps in seen.items() if link in pair) for link in before}
    assert all(bps <= most[link] for link, bps in changed.items())
    after, factor = {**before, **changed}, Fraction(SAME) ** 2
    for pair, bps in seen.items():
        planned = min(after[link] for link in pair)
        assert bps <= planned * factor, f"{pair} came at {bps} and is planned at {planned}"
        contradicted = may_contradict and all(most[link] > bps * SAME for link in pair)
        assert contradicted or planned <= bps * factor, f"{pair} came at {bps} and is planned at {planned}"


@given(circles(), st.data())
def test_what_was_known_and_is_true_stays(pairs, data) -> None:
    true = data.draw(of_all(pairs, some_rate))
    assert changed_rates(probed(data.draw, true, pairs), true) == {}
