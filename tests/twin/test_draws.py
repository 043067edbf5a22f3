"""Compute times and rates: by seed, as the settings say, whatever was asked before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mlfabric.twin.cluster import Compute, Histogram, RateLine, Spread
from mlfabric.twin.draws import ComputeTimes, Weather
from mlfabric.twin.settings import COMPUTE, NETWORK, Direction
from tests.twin.clusters import cluster_of


def test_stragglers_are_those_of_the_testbed():
    cluster = cluster_of(3, stragglers="C2", seed=5)
    times = ComputeTimes(cluster)
    for worker in range(3):
        for step in (0, 1, 63, 64, 200):
            slow = COMPUTE["C2"].slowdown(5, worker, step)
            assert times.of(worker, step) == pytest.approx(20e6 * slow)


def test_the_order_of_questions_changes_no_answer():
    compute = Compute(mean_s=0.1, spread=Spread.NORMAL, deviation_s=0.03)
    cluster = replace(cluster_of(2), compute=compute)
    one, other = ComputeTimes(cluster), ComputeTimes(cluster)
    steps = [0, 200, 64, 3, 199]
    assert [one.of(1, step) for step in steps] == [other.of(1, step) for step in reversed(steps)][::-1]


@pytest.mark.parametrize(
    "compute",
    [
        Compute(mean_s=0.2, spread=Spread.NORMAL, deviation_s=0.02),
        Compute(mean_s=0.2, spread=Spread.LOGNORMAL, deviation_s=0.1),
        Compute(
            mean_s=0.2,
            spread=Spread.HISTOGRAM,
            histogram=Histogram(first_s=3.0, bin_s=1.0, counts=(1.0, 4.0, 0.0, 2.0)),
        ),
    ],
    ids=lambda compute: compute.spread.name,
)
def test_drawn_times_have_the_mean_that_was_asked_for(compute):
    times = ComputeTimes(replace(cluster_of(20), compute=compute))
    drawn = [times.of(worker, step) for worker in range(20) for step in range(128)]
    assert np.mean(drawn) == pytest.approx(0.2e9, rel=0.05)
    assert np.std(drawn) > 0.01e9
    assert min(drawn) > 0


def test_recorded_times_come_again_and_who_was_not_seen_draws_from_all():
    compute = Compute(spread=Spread.RECORDED, recorded={"w0": (0.1, 0.2, 0.3)})
    times = ComputeTimes(replace(cluster_of(2), compute=compute))
    assert [times.of(0, step) for step in range(65)][-5:] == pytest.approx([1e8, 2e8, 3e8, 1e8, 2e8])
    assert sorted({times.of(1, step) for step in range(40)}) == pytest.approx([1e8, 2e8, 3e8])


def test_a_slow_host_computes_longer():
    cluster = cluster_of(2)
    slow = replace(cluster.workers[1], slowdown=3.0)
    times = ComputeTimes(replace(cluster, workers=(cluster.workers[0], slow)))
    assert times.of(1, 0) == pytest.approx(3 * times.of(0, 0))


def test_the_weather_is_that_of_the_testbed_and_spares_the_server():
    cluster = cluster_of(20, network="N2", seed=3)
    weather = Weather(cluster)
    for at_s in (0.0, 4.9, 5.0, 12.0):
        rates = weather.rates(at_s * 1e9)
        for number, host in enumerate(cluster.workers):
            for way, first in ((Direction.UP, 0), (Direction.DOWN, 21)):
                share = NETWORK["N2"].share(3, host.name, way, int(at_s // 5))
                assert rates[first + number] == pytest.approx(share)
        assert rates[20] == rates[41] == 1.0
    assert weather.next_change_ns(4.9e9) == 5e9
    assert weather.next_change_ns(5e9) == 10e9


def test_the_server_has_weather_if_it_is_said():
    cluster = cluster_of(2, network="N3", is_server_in_weather=True)
    drawn = {float(Weather(cluster).rates(period * 5e9)[2]) for period in range(12)}
    assert drawn == {0.1, 1.0}


def test_a_known_link_has_no_weather():
    lines = {("w1", Direction.UP): RateLine(times_s=(0.0, 7.0), bps=(5e8, 2e8))}
    weather = Weather(cluster_of(3, network="N3", lines=lines))
    assert [float(weather.rates(at * 1e9)[1]) for at in (0, 6.9, 7.0, 30)] == pytest.approx([0.5, 0.5, 0.2, 0.2])
    assert weather.next_change_ns(5e9) == 7e9
