"""The ideal: the figures that it has to give, and the laws that any such simulation keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.testbed.ideal import IdealCell, ideal, ideal_ratio, ideal_synchronous_ratio, simulate
from mlfabric.errors import ConfigError
from mlfabric.twin.settings import COMPUTE, NETWORK

BOUND_30 = {"C1": (1.61, 1.94, 2.00), "C2": (2.05, 2.21, 2.13), "C3": (1.53, 1.96, 2.03)}
NO_BOUND = {"C1": (1.80, 2.33, 2.73), "C2": (2.30, 2.72, 2.88), "C3": (1.69, 2.32, 2.87)}
CELLS = [(compute, network) for compute in BOUND_30 for network in ("N1", "N2", "N3")]


def cell(compute: str, network: str, **options: Any) -> IdealCell:
    return IdealCell(**{"compute": COMPUTE[compute], "network": NETWORK[network], "duration_s": 150.0, **options})


@pytest.mark.parametrize(("compute", "network"), CELLS)
def test_a_delay_bound_of_30_allows_what_was_worked_out_beforehand(compute: str, network: str):
    expected = BOUND_30[compute][int(network[1]) - 1]
    assert ideal(cell(compute, network)).asynchronous_ratio == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(("compute", "network"), [("C1", "N1"), ("C2", "N2"), ("C3", "N3")])
def test_no_bound_allows_what_was_worked_out_beforehand(compute: str, network: str):
    expected = NO_BOUND[compute][int(network[1]) - 1]
    assert ideal(cell(compute, network, delay_bound=None)).asynchronous_ratio == pytest.approx(expected, rel=0.06)


def test_synchronous_training_gains_between_a_quarter_and_three_quarters():
    found = [ideal_synchronous_ratio(COMPUTE[compute], NETWORK[network]) for compute, network in CELLS]
    assert min(found) == pytest.approx(1.26, abs=0.02)
    assert max(found) == pytest.approx(1.75, abs=0.02)


def test_an_even_cluster_is_worked_out_by_hand():
    """Without stragglers a worker reads for 80 ms, computes for 100, sends for 80: its share of a step."""
    found = ideal(cell("C0", "N0", duration_s=60.0))
    assert found.asynchronous_s == pytest.approx(0.26, rel=0.02)
    assert found.ring_s == pytest.approx(0.1 + 58 / 30 * 0.08)
    assert found.synchronous_s == pytest.approx(0.18)


def test_no_update_is_later_than_its_bound():
    for bound in (0, 5, 29, 30):
        assert max(simulate(cell("C2", "N2", delay_bound=bound, duration_s=30.0)).delays) <= bound


def test_updates_times_latency_obeys_the_bound():
    """The law of the design: commits between a read and its commit are the delay, so its mean is at most the bound."""
    found = simulate(cell("C1", "N3", duration_s=60.0))
    mean = sum(tau * count for tau, count in found.delays.items()) / found.delays.total()
    assert mean <= 30
    assert found.delays.total() == sum(found.applied)
    assert found.dropped_share > 0


def test_without_a_bound_nothing_is_dropped():
    assert simulate(cell("C2", "N3", delay_bound=None, duration_s=30.0)).dropped_share == 0


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    one = simulate(cell("C1", "N2", duration_s=20.0))
    assert simulate(cell("C1", "N2", duration_s=20.0)) == one
    assert simulate(cell("C1", "N2", duration_s=20.0, seed=1)) != one


def test_a_short_wait_for_others_drops_fewer_updates():
    given = cell("C1", "N1", duration_s=60.0)
    assert simulate(given).dropped_share < simulate(replace(given, patience_s=0.0)).dropped_share


def test_the_testbed_asks_with_its_own_words():
    assert (
        ideal_ratio(COMPUTE["C1"], NETWORK["N1"], 30, 3)
        == ideal(cell("C1", "N1", duration_s=400.0, seed=3)).asynchronous_ratio
    )


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"wire_s": 0.0}, {"patience_s": -1.0}, {"delay_bound": -1}])
def test_what_cannot_be_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ConfigError, match="allowed"):
        cell("C1", "N1", **wrong)
