"""Accounts of samples against a deliberately dumb one that counts each sample by itself."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import UsageError
from mlfabric.model import samples as module
from mlfabric.model.ranges import count, difference, intersection
from mlfabric.model.samples import LAST_POSITION, NO_SAMPLES, SampleAccount, Samples, samples_of, union

ranges = st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda r: (r[0], r[0] + r[1]))
several = st.lists(ranges, max_size=6)
sets = several.map(samples_of)


def members(samples: Samples) -> set[int]:
    return {i for start, stop in samples for i in range(start, stop)}


def is_normal(samples: Samples) -> bool:
    ends = [end for one in samples for end in one]
    return ends == sorted(set(ends))


@given(several)
def test_ranges_become_a_set_in_order_without_ranges_that_touch(given_ranges: list[tuple[int, int]]) -> None:
    found = samples_of(given_ranges)
    assert members(found) == members(tuple(given_ranges))
    assert is_normal(found)
    assert count(found) == len(members(found))


@given(sets, sets)
def test_sets_combine_as_sets_of_numbers_do(a: Samples, b: Samples) -> None:
    for ours, plain in (
        (union(a, b), members(a) | members(b)),
        (difference(a, b), members(a) - members(b)),
        (intersection(a, b), members(a) & members(b)),
    ):
        assert members(ours) == plain
        assert is_normal(ours)


@given(st.lists(st.tuples(st.sampled_from(("train", "drop", "lose")), sets), max_size=12), st.integers(0, 12))
def test_an_account_says_what_a_count_of_each_sample_says(steps: list[tuple[str, Samples]], cut: int) -> None:
    account, times, dropped, lost = SampleAccount(), Counter[int](), set[int](), set[int]()
    for i, (what, those) in enumerate(steps):
        if what == "train":
            account.train(those)
            times.update(members(those))
        elif what == "drop":
            account.drop(those)
            dropped |= members(those)
        else:
            account.lose(those, epoch=1, kept=i, last=i + 1)
            lost |= members(those)
        account.validate()
        if i == cut:  # as over a checkpoint
            account = SampleAccount(account.counts())
            account.validate()
    counts = account.counts()
    assert {n: times for start, stop, times in counts.runs for n in range(start, stop)} == dict(times)
    assert {n for start, stop, _ in counts.repeated for n in range(start, stop)} == {
        n for n, k in times.items() if k > 1
    }
    assert members(counts.trained) == set(times)
    assert members(counts.not_trained) == dropped - set(times)
    assert members(counts.not_trained_again) == lost - set(times)
    known = set(times) | dropped | lost
    assert members(counts.missing()) == set(range(max(known, default=-1) + 1)) - known
    assert counts.unplaced == 0


@given(st.permutations(range(12)))
def test_the_order_of_commits_does_not_matter_and_what_is_whole_is_one_range(order: list[int]) -> None:
    account = SampleAccount()
    for block in order:
        account.train(((block * 8, block * 8 + 8),))
    assert account.counts().runs == ((0, 96, 1),)


def test_an_account_that_did_not_change_is_the_same_value() -> None:
    account = SampleAccount()
    assert account.counts() is NO_SAMPLES
    account.train(((0, 4),))
    assert account.counts() is account.counts()


@pytest.mark.parametrize("bad", [(-1, 4), (4, 4), (5, 4), (0, LAST_POSITION + 1)])
def test_ranges_that_are_empty_or_out_of_range_are_refused(bad: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="allowed"):
        samples_of([bad])


def test_too_many_ranges_are_refused_with_advice() -> None:
    with pytest.raises(UsageError, match="in the order in which they are used"):
        samples_of([(i * 2, i * 2 + 1) for i in range(257)])


def test_an_account_of_too_many_ranges_says_how_many_samples_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_RUNS", 8)
    account = SampleAccount()
    for i in range(100):
        account.train(((i * 10, i * 10 + 3),))
        account.drop(((i * 10 + 5, i * 10 + 6),))
    counts = account.counts()
    assert count(counts.trained) + counts.unplaced == 300
    assert len(counts.runs) <= 8
    assert len(counts.dropped) <= 8


def test_an_account_that_must_be_small_knows_at_least_how_many() -> None:
    account = SampleAccount()
    for i in range(5):
        account.train(((i * 10, i * 10 + 3),))
    assert account.counts().within(5) == account.counts()
    assert account.counts().within(4).unplaced == 15
