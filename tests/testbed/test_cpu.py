from __future__ import annotations

import time
from itertools import pairwise

import pytest

from benchmarks.testbed.cpu import CpuMeter, CpuTimes, Window, saturated_share, used_share
from tests.processes import wait_until

STAT = """cpu  100 20 30 4000 500 6 7 8 9 10
cpu0 1 1 1 1 1 1 1 1 1 1
"""


def window(began_s: float, ended_s: float, used: float) -> Window:
    return Window(began_ns=round(began_s * 1e9), ended_ns=round(ended_s * 1e9), used_share=used)


def test_waiting_for_a_disk_is_idle_and_time_taken_by_another_machine_is_busy():
    times = CpuTimes.of(STAT)

    assert times.busy_s * 45 == pytest.approx(times.idle_s * (100 + 20 + 30 + 6 + 7 + 8) / 100)


def test_windows_count_by_their_length():
    windows = [window(0, 3, 0.99), window(3, 4, 0.19)]

    assert used_share(windows) == pytest.approx(0.79)
    assert saturated_share(windows) == pytest.approx(0.75)
    assert saturated_share([window(0, 1, 0.95)]) == 0, "it is just at the limit"
    assert used_share([]) == saturated_share([]) == 0


def test_windows_of_a_meter_cover_its_block_without_gaps():
    with CpuMeter() as meter:
        wait_until(lambda: len(meter.between(0, time.monotonic_ns())) > 1, "two windows")

    windows = meter.between(0, time.monotonic_ns())
    assert all(before.ended_ns == after.began_ns for before, after in pairwise(windows))
    assert 0 < meter.used_share <= 1
    assert meter.between(windows[1].began_ns, windows[1].ended_ns) == windows[1:2]
