"""What workers' links show in a round, looked at as the live meter does."""

from __future__ import annotations

import numpy as np
import pytest

from mlfabric.twin.round_meter import RoundMeter

HOSTS = 3  # two workers' and the server's
MS = 1e6
BIT_PER_NS = 1e9


def metered(told_ns: list[float], until_ns: float, rates: list[float], since_ns: float = 0.0) -> list[tuple[int, int]]:
    """Let links carry at even rates from an instant on; return each worker's peaks."""
    meter, looks = RoundMeter(np.array(told_ns), 1_000_000), 0
    while meter.next_ns < until_ns:
        meter.look(meter.next_ns, np.array(rates) * max(0.0, meter.next_ns - since_ns))
        looks += 1
    meter.look(until_ns, np.array(rates) * max(0.0, until_ns - since_ns))
    assert looks > 5
    return list(meter.peaks_bps(HOSTS))


def test_each_worker_has_the_peaks_of_its_own_links() -> None:
    found = metered([0.0, 0.0], 100 * MS, [0.1, 0.2, 9, 0.3, 0.4, 9])
    assert found == [pytest.approx((0.1 * BIT_PER_NS, 0.3 * BIT_PER_NS)), pytest.approx((0.2e9, 0.4e9))]


def test_a_link_that_carried_less_than_a_quarter_of_the_tensor_shows_nothing() -> None:
    found = metered([0.0, 0.0], 100 * MS, [0.1, 0.019, 9, 0.3, 0.03, 9])
    assert found[1][0] == 0
    assert found[1][1] == pytest.approx(0.03 * BIT_PER_NS, rel=0.01)


def test_who_is_told_late_looks_from_then_on_only() -> None:
    meter = RoundMeter(np.array([0.0, 50 * MS]), 1_000_000)
    while meter.next_ns < 100 * MS:
        at_ns = meter.next_ns
        meter.look(at_ns, np.full(2 * HOSTS, min(at_ns, 50 * MS)))  # everything goes before the late one is told
    meter.look(100 * MS, np.full(2 * HOSTS, 50 * MS))
    early, late = meter.peaks_bps(HOSTS)
    assert early == pytest.approx((BIT_PER_NS, BIT_PER_NS))
    assert late == (0, 0)
