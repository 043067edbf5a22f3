"""Which links have changed, told from probes over two links each: exact cases, and whatever the links may carry."""

from __future__ import annotations

from fractions import Fraction

import pytest
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


@pytest.mark.parametrize(
    ("ways", "others", "changed"),
    [
        # Each way is told by the other probes over its partners.
        ({"a>b": SLOW, "a>c": SLOW, "d>b": FAST, "d>c": FAST}, {}, {up_link("a"): SLOW}),
        ({"a>b": SLOW, "d>b": SLOW, "a>c": FAST, "d>c": FAST}, {}, {down_link("b"): SLOW}),
        # All that no other probe clears are blamed.
        ({"a>b": SLOW, "a>c": SLOW, "d>c": FAST}, {}, {up_link("a"): SLOW, down_link("b"): SLOW}),
        ({"a>b": SLOW}, {}, {up_link("a"): SLOW, down_link("b"): SLOW}),
        # A link is as fast as the fastest of its slow probes.
        ({"a>b": SLOW, "a>c": SLOW + 30, "d>b": FAST, "d>c": FAST}, {}, {up_link("a"): SLOW + 30}),
        # Two that are slow to different degrees are both found.
        (
            {"a>b": SLOW, "a>c": SLOW, "d>b": FAST, "d>c": 500, "e>b": FAST, "e>c": 500},
            {},
            {up_link("a"): SLOW, down_link("c"): 500},
        ),
        # A probe that is faster than was known raises both its links, but not one that was known to be so fast.
        ({"a>b": 2 * FAST}, {}, {up_link("a"): 2 * FAST, down_link("b"): 2 * FAST}),
        ({"a>b": 2 * FAST}, {"down_b": 2 * FAST}, {up_link("a"): 2 * FAST}),
        # A link that is known to be slow explains its slow probes.
        ({"a>b": SLOW, "a>c": SLOW, "d>b": FAST}, {"up_a": SLOW}, {}),
        # It does not, once some link has changed: what it explained may have become slow as well.
        (
            {"a>b": SLOW, "d>b": SLOW, "e>f": SLOW, "e>g": SLOW},
            {"up_a": SLOW, "up_d": SLOW},
            dict.fromkeys((down_link("b"), up_link("e"), down_link("f"), down_link("g")), SLOW),
        ),
        # If a probe was somewhat slower than its slow link, a fast one that was shown no better is not to blame.
        ({"a>b": 240, "a>c": SLOW, "d>b": SLOW, "d>c": SLOW}, {"up_a": SLOW, "up_d": SLOW}, {}),
        # Unless some link has become much slower, links that were explained stay as they were.
        (
            {"a>b": 700, "d>e": SLOW, "f>e": SLOW},
            {"up_d": SLOW, "up_f": SLOW},
            {up_link("a"): 700, down_link("b"): 700},
        ),
        # A probe that was slower than what both links showed elsewhere changes nothing; nor do no probes.
        ({"a>b": SLOW, "a>c": FAST, "d>b": FAST}, {}, {}),
        ({}, {"up_a": FAST}, {}),
        # What differs by less than the factor is the same.
        *(({"a>b": bps}, {}, {}) for bps in (840, 1190)),
        *(({"a>b": bps}, {}, {up_link("a"): bps, down_link("b"): bps}) for bps in (830, 1210)),
    ],
)
def test_the_links_that_explain_what_was_seen_have_changed(ways, others, changed) -> None:
    seen = over(ways)
    assert changed_rates(seen, known(seen, **others)) == changed


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
