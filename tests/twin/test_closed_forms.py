"""The closed forms: against cases that can be worked out by hand, against draws, and the laws that they keep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.testbed.ideal import mean_largest
from mlfabric.errors import UsageError
from mlfabric.twin.closed_forms import (
    mean_over_weather,
    ring_all_reduce_s,
    slowest_shares,
    synchronous_server_s,
)
from mlfabric.twin.cluster import Host
from mlfabric.twin.settings import COMPUTE, NETWORK

MB = 1_000_000
FULL = Host(name="w", up_bps=8e6, down_bps=8e6)
HALF = Host(name="w", up_bps=4e6, down_bps=8e6)
rates = st.builds(Host, name=st.just("w"), up_bps=st.floats(1e6, 1e9), down_bps=st.floats(1e6, 1e9))


def test_a_ring_of_two_sends_the_tensor_once_over_each_link():
    assert ring_all_reduce_s(MB, [FULL, FULL]) == pytest.approx(1.0)


def test_a_ring_goes_at_the_pace_of_its_slowest_direction():
    assert ring_all_reduce_s(MB, [FULL] * 29 + [HALF]) == pytest.approx(2 * 29 / 30 * 2)


def test_a_ring_pays_its_latency_at_each_step():
    assert ring_all_reduce_s(0, [FULL] * 4, latency_s=0.01) == pytest.approx(0.06)


def test_a_server_collects_all_updates_over_its_own_link():
    assert synchronous_server_s(MB, [FULL] * 5, FULL) == pytest.approx(10.0)


def test_a_wide_server_waits_for_the_slowest_worker():
    wide = Host(name="s", up_bps=1e9, down_bps=1e9)
    assert synchronous_server_s(MB, [FULL, FULL, HALF], wide) == pytest.approx(2.0 + 1.0)


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("N1", (0.51, 0.70, 0.47)),
        ("N2", (0.79, 0.98, 0.77)),
        ("N3", (1.75, 1.91, 1.72)),
    ],
)
def test_the_ring_of_the_testbed_is_foretold_within_a_twentieth(network: str, expected: tuple[float, ...]):
    """The figures were measured with gloo's ring, 30 hosts, 1 MB at 100 Mbit/s."""
    wire_s = ring_all_reduce_s(MB, [Host(name="w", up_bps=1e8, down_bps=1e8)] * 30)
    for compute, measured_s in zip(("C1", "C2", "C3"), expected, strict=True):
        compute_s = mean_largest(COMPUTE[compute], 0.1, 30)
        found_s = mean_over_weather(compute_s, wire_s, slowest_shares(NETWORK[network], 60))
        assert found_s == pytest.approx(measured_s, rel=0.05)


@given(st.floats(0.01, 10), st.integers(1, 100), st.sampled_from(sorted(COMPUTE)))
def test_the_largest_is_between_a_usual_and_a_slow_computation(base_s: float, workers: int, name: str):
    setting = COMPUTE[name]
    assert base_s <= mean_largest(setting, base_s, workers) <= base_s * setting.factor * (1 + 1e-12)


@given(st.sampled_from(sorted(NETWORK)), st.integers(1, 200))
def test_the_chances_of_what_the_slowest_link_has_are_together_one(name: str, links: int):
    assert sum(chance for _, chance in slowest_shares(NETWORK[name], links)) == pytest.approx(1.0)


@given(st.lists(rates, min_size=2, max_size=20), st.integers(1, 10**9))
def test_no_all_reduce_is_faster_than_a_tensor_over_the_slowest_link(links: list[Host], size: int):
    least_s = 8 * size / min(link.slowest_bps for link in links)
    assert ring_all_reduce_s(size, links) >= least_s * (1 - 1e-9)


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="1 or more"):
        ring_all_reduce_s(MB, [])
