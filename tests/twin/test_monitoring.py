"""What the twin's planner hears of rates: estimates of the live monitor, or the rates themselves, late."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlfabric.twin.cluster import Monitoring
from mlfabric.twin.flows import Passed
from mlfabric.twin.monitoring import LARGE, Estimated, Told, monitor_of
from tests.twin.clusters import cluster_of

pytestmark = pytest.mark.usefixtures("compiled_planner")

MS = 1e6
S = 1e9
PACE = 1.0


def passed(up, down, *, gbps=1.0, pace=math.inf, is_passed_on=False, began_ns=0.0, starved_ns=0.0, bits=8e6):
    """Return a transfer, of 1 MB as a rule."""
    drained_ns = began_ns + bits / gbps
    return Passed(up, down, bits, began_ns, drained_ns, drained_ns + starved_ns, pace, int(is_passed_on))


def found_by(monitor, *transfers):
    """Return the rates that are known a while after transfers have passed."""
    for transfer in transfers:
        monitor.passed([transfer], transfer.ended_ns)
    at_ns, rates = max(transfer.ended_ns for transfer in transfers) + 1 * MS, None
    for _ in range(6):
        at_ns = max(at_ns, monitor.next_ns)
        news = monitor.tell(at_ns)
        rates = rates if news is None else news
    return rates


def test_who_is_told_learns_every_change_late():
    monitor, one, two = Told(200 * MS), np.array([1.0]), np.array([2.0])
    monitor.changed(0.0, one)
    monitor.changed(100 * MS, two)
    assert monitor.next_ns == 200 * MS
    assert monitor.tell(199 * MS) is None
    assert monitor.tell(200 * MS) is one
    assert monitor.next_ns == 300 * MS
    assert monitor.tell(400 * MS) is two
    assert monitor.next_ns == math.inf


def test_an_estimate_follows_what_transfers_got():
    cluster = cluster_of(3)
    monitor = Estimated(cluster)
    slow = [passed(0, 4 + to, gbps=0.1, began_ns=n * 10 * S, bits=8e8) for n, to in enumerate((3, 1, 2))]
    rates = found_by(monitor, *slow)
    assert rates is not None
    assert 0.1 <= rates[0] < 0.2  # and on its way back to the full rate
    assert rates[1:4] == pytest.approx([1.0] * 3)


def test_a_stream_tells_what_links_carry_if_they_held_it_up():
    slow = [
        passed(0, 4 + to, gbps=0.1, is_passed_on=True, began_ns=n * 10 * S, bits=8e8) for n, to in enumerate((3, 1, 2))
    ]
    rates = found_by(Estimated(cluster_of(3)), *slow)
    assert rates is not None
    assert rates[0] < 0.2


def test_of_what_is_paced_or_starved_nothing_is_learnt_but_that_a_link_carries_it():
    for how in ({"pace": 0.1}, {"is_passed_on": True, "starved_ns": 20 * MS}):
        rates = found_by(Estimated(cluster_of(3)), passed(0, 7, gbps=0.1, **how))
        assert rates is None or rates[[0, 7]] == pytest.approx([1.0, 1.0])


def test_what_stays_on_its_host_says_nothing():
    assert found_by(Estimated(cluster_of(3)), passed(-1, -1, gbps=0.1)) is None


def test_full_rates_that_nobody_has_told_are_learnt_from_what_was_carried():
    monitor = Estimated(cluster_of(3, are_rates_told=False))
    rates = found_by(monitor, passed(0, 7, gbps=0.5))
    assert rates is not None
    assert rates[0] == pytest.approx(0.5, rel=0.02)


def test_many_workers_are_told_and_few_only_if_they_are_to_be():
    assert isinstance(monitor_of(cluster_of(LARGE)), Estimated)
    assert isinstance(monitor_of(cluster_of(LARGE + 1)), Told)
    assert isinstance(monitor_of(cluster_of(3, monitoring=Monitoring.TELLS)), Told)
