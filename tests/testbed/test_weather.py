from __future__ import annotations

import subprocess
import threading

import pytest

from benchmarks.testbed.hosts import testbed
from benchmarks.testbed.weather import Weather
from mlfabric.errors import UsageError
from mlfabric.twin.settings import NETWORK, Direction
from tests.processes import wait_until

pytestmark = pytest.mark.root

FULL_BPS = 100_000_000
FAST = 0.004
"""Dilation at which a period lasts 20 ms."""


def weather_of(bed, **options):
    return Weather(bed, NETWORK["N3"], seed=2, link_bps=FULL_BPS, **({"dilation": 1.0} | options))


def test_the_first_period_begins_with_the_block_and_the_full_rate_comes_back_at_its_end(four_hosts):
    with weather_of(four_hosts) as weather:
        assert [p.number for p in weather.periods] == [0]
        assert four_hosts.rates_bps == weather.rates_bps(0)
        assert set(weather.rates_bps(0).values()) == {FULL_BPS, FULL_BPS // 10}

    assert set(four_hosts.rates_bps.values()) == {FULL_BPS}


def test_rates_are_those_that_the_setting_draws_for_the_seed(four_hosts):
    setting = NETWORK["N2"]
    weather = Weather(four_hosts, setting, seed=7, link_bps=FULL_BPS, dilation=1.0)
    for period in range(20):
        for (name, direction), bps in weather.rates_bps(period).items():
            assert bps == round(FULL_BPS * setting.share(7, name, direction, period))


def test_each_period_begins_at_its_time_or_later_and_none_is_left_out(four_hosts):
    with weather_of(four_hosts, dilation=FAST) as weather:
        wait_until(lambda: len(weather.periods) > 4, "five periods")

    periods = weather.periods
    assert [p.number for p in periods] == list(range(len(periods)))
    assert all(p.late_ns >= 0 for p in periods)
    first = periods[0].began_ns - periods[0].late_ns
    assert all(p.began_ns - p.late_ns - first == p.number * 20_000_000 for p in periods)


def test_spared_hosts_keep_their_full_rate(four_hosts):
    with weather_of(four_hosts, spared=["h0", "h2"]) as weather:
        assert {name for name, _ in weather.rates_bps(0)} == {"h1", "h3"}
        for name in ("h0", "h2"):
            assert {four_hosts.rates_bps[name, direction] for direction in Direction} == {FULL_BPS}


def test_afterwards_it_says_which_share_a_link_had_when(four_hosts):
    setting = NETWORK["N3"]
    with weather_of(four_hosts, dilation=FAST, spared=["h0"]) as weather:
        wait_until(lambda: len(weather.periods) > 3, "four periods")

    down = Direction.DOWN
    assert weather.share_at("h0", down, weather.periods[0].began_ns) == 1.0
    assert weather.share_at("h1", down, 0) == setting.share(2, "h1", down, 0)
    for period in weather.periods[:4]:
        here = [setting.share(2, name, down, period.number) for name in ("h1", "h2", "h3")]
        assert [weather.share_at(name, down, period.began_ns) for name in ("h1", "h2", "h3")] == here
        if period.number:
            before = setting.share(2, "h1", down, period.number - 1)
            assert weather.share_at("h1", down, period.began_ns - 1) == before


@pytest.mark.parametrize("bad", [{"dilation": 0.0}, {"dilation": float("nan")}, {"spared": ["h9"]}])
def test_what_cannot_be_is_refused(four_hosts, bad):
    with pytest.raises(UsageError, match="allowed"):
        Weather(four_hosts, NETWORK["N1"], **({"seed": 1, "link_bps": FULL_BPS, "dilation": 1.0} | bad))


def test_weather_that_could_not_change_is_an_error():
    with testbed(["a", "b"], link_bps=FULL_BPS) as bed:

        def break_links():
            for host in bed.hosts:
                subprocess.run(["ip", "-n", host.namespace, "link", "del", host.interface], check=True)
            wait_until(lambda: all(t.name != "weather" for t in threading.enumerate()), "the weather has noticed")

        with pytest.raises(OSError, match="token bucket in"), weather_of(bed, dilation=FAST):
            break_links()
