from __future__ import annotations

import pytest

from mlfabric.monitor.estimate import Estimate, Link, Source
from mlfabric.monitor.news import CHANGE, REPEAT_S, News

LINK = Link("a", True)


def _of(bps: int, source: Source = Source.TRANSFERS) -> dict[Link, Estimate]:
    return {LINK: Estimate(bps, 0.0, source)}


def _told(bps: int, at_s: float = 0.0) -> News:
    news = News()
    news.reported(_of(bps).items(), at_s)
    return news


def test_what_was_learnt_is_news_and_what_was_only_said_is_not():
    assert News().of(_of(1000), 0.0) == _of(1000)
    assert News().of(_of(1000, Source.NOMINAL), 0.0) == {}


@pytest.mark.parametrize(("bps", "is_news"), [(1010, False), (1011, True), (990, False), (989, True)])
def test_a_change_of_more_than_one_percent_is_news(bps, is_news):
    assert pytest.approx(0.01) == CHANGE
    assert bool(_told(1000).of(_of(bps), 0.1)) is is_news


def test_what_does_not_change_is_repeated_now_and_again():
    assert not _told(1000).of(_of(1000), REPEAT_S - 0.01)
    assert _told(1000).of(_of(1000), REPEAT_S)


def test_an_estimate_that_was_taken_back_is_news():
    assert _told(1000).of(_of(9000, Source.NOMINAL), 0.1) == _of(9000, Source.NOMINAL)


def test_another_scheduler_is_told_everything():
    news = _told(1000)
    news.clear()
    assert news.of(_of(1000), 0.1) == _of(1000)
