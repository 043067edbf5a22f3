"""What a link carried at best: over which looks it counts, and when it is looked at."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mlfabric.worker_daemon.link_peaks import least_bytes, pauses_s, peaks_bps

MS = 1_000_000
AT_NS = [0, 5 * MS, 10 * MS, 20 * MS]


def test_the_best_span_with_enough_bytes_counts_for_each_link_alone() -> None:
    carried = [(0, 0), (1000, 10), (5000, 20), (6000, 6020)]
    assert peaks_bps(AT_NS, carried, 900).tolist() == [4000 * 8 / 0.005, 6000 * 8 / 0.010]
    assert peaks_bps(AT_NS, carried, 4500).tolist() == [5000 * 8 / 0.010, 6000 * 8 / 0.010]
    assert peaks_bps(AT_NS, carried, 6001).tolist() == [0, 6010 * 8 / 0.015]


def test_two_looks_at_one_instant_show_no_rate() -> None:
    assert peaks_bps([7, 7], [(0,), (10**6,)], 1).tolist() == [0]
    assert peaks_bps([7], [(10**6,)], 1).tolist() == [0]


def test_links_are_looked_at_often_first_and_rarely_later() -> None:
    pauses = list(pauses_s())
    assert pauses[0] == 0.005
    assert all(late == pytest.approx(1.25 * early) for early, late in pairwise(pauses))
    assert 20 < sum(pauses) < 300


def test_a_quarter_of_a_tensor_counts_and_never_less_than_buffers_hold() -> None:
    assert least_bytes(10**6) == 250_000
    assert least_bytes(1000) == 32 * 1024
