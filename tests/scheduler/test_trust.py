"""Stripes are used while they take less time than another shape did, and both are tried now and then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlfabric.network import Network
from mlfabric.planning import Shape
from mlfabric.scheduler.rounds.trust import Made, Trust


def run(trust: Trust, rounds: int, stripes: Callable[[int], float], others: float, ring: float) -> tuple[int, float]:
    """Make rounds; return how many were no stripes, and what all took."""
    lost, total = 0, 0.0
    for n in range(rounds):
        in_stripes = not trust.is_lost
        took = stripes(n) if in_stripes else others
        lost, total = lost + (not in_stripes), total + took
        trust.took(took, ring, in_stripes=in_stripes)
    return lost, total


def test_stripes_that_take_less_than_a_ring_must_are_used_for_ever() -> None:
    assert run(Trust(), 1000, lambda _: 1.9, others=2.5, ring=2.0)[0] == 0


def test_one_bad_round_among_good_ones_changes_nothing() -> None:
    assert run(Trust(), 1000, lambda n: 6.0 if n % 20 == 10 else 1.0, others=2.5, ring=2.0)[0] == 0


def test_one_round_of_another_shape_that_took_longer_ends_its_try() -> None:
    trust = Trust()
    run(trust, 2, lambda _: 2.0, others=3.0, ring=1.5)
    assert trust.is_lost
    trust.took(3.0, 1.5, in_stripes=False)
    assert not trust.is_lost


def test_stripes_that_take_longer_than_another_shape_did_are_left() -> None:
    lost, total = run(Trust(), 100, lambda _: 4.0, others=2.0, ring=1.5)
    assert lost >= 90
    assert total < 1.1 * 2.0 * 100


@pytest.mark.parametrize("stripes", [0.5, 1.2, 3.0, 9.0])
@pytest.mark.parametrize("others", [1.0, 2.0])
def test_in_the_long_run_tries_cost_a_twentieth_up_to_ten_times_worse(stripes: float, others: float) -> None:
    trust = Trust()
    run(trust, 20, lambda _: stripes, others, ring=0.1)
    _, total = run(trust, 4000, lambda _: stripes, others, ring=0.1)
    assert total <= 1.1 * 4000 * min(stripes, others)


def test_a_network_that_calms_down_has_its_stripes_back() -> None:
    trust = Trust()
    run(trust, 50, lambda _: 4.0, others=2.0, ring=2.0)
    assert trust.is_lost
    run(trust, 200, lambda _: 1.0, others=2.0, ring=2.0)
    assert run(trust, 200, lambda _: 1.0, others=2.0, ring=2.0)[0] == 0


def test_a_bad_first_round_of_a_try_does_not_decide_it() -> None:
    trust = Trust()
    run(trust, 100, lambda _: 4.0, others=2.0, ring=2.0)
    tried = []

    def good_after_the_first(n: int) -> float:
        tried.append(n)
        return 3.0 if tried[-2:] != [n - 1, n] else 1.0

    run(trust, 300, good_after_the_first, others=2.0, ring=2.0)
    assert not trust.is_lost


def judged(*rounds: Made) -> Trust:
    network, trust = Network.star(10**9), Trust()
    hosts = [f"h{n}" for n in range(4)]
    for host in hosts:
        network.add_host(host, 10**9, 10**9)
    for made in rounds:
        trust.judge(made, network, hosts, 0)
    return trust


def test_a_round_of_another_shape_counts_only_if_it_might_have_gone_in_stripes() -> None:
    assert judged(Made(Shape.RING, False, 1000, 13_000)).others_ns_per_byte is None
    assert judged(Made(Shape.RING, True, 1000, 13_000)).others_ns_per_byte == 13
