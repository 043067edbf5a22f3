"""Which workers make elastic rounds, and how many gradients are worth averaging."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mlfabric.methods.chosen import LEAST_CHOSEN, Links, Turn, choose
from mlfabric.methods.gradient_noise import GradientNoise

MBIT = 1_000_000
TURN = Turn(size_bytes=1_000_000, compute_ns=100_000_000, tau_max=2, n_crit=8.0)
NOBODY: frozenset[str] = frozenset()


def links(*shares: tuple[float, float]) -> dict[str, Links]:
    return {f"w{i:02}": Links(round(100 * MBIT * up), round(100 * MBIT * down)) for i, (up, down) in enumerate(shares)}


def test_where_all_links_are_alike_everybody_is_chosen() -> None:
    assert len(choose(links(*[(1, 1)] * 30), TURN, NOBODY)) == 30


def test_links_at_half_their_rate_cost_nothing_as_a_round_takes_two_tensors_anyway() -> None:
    assert len(choose(links(*[(1, 1)] * 27, *[(0.5, 0.5)] * 3), TURN, NOBODY)) == 30


@pytest.mark.parametrize("slow", [(0.1, 0.1), (0.1, 1), (1, 0.1)])
def test_four_hosts_at_a_tenth_are_left_out_whichever_way_is_slow(slow) -> None:
    assert choose(links(*[slow] * 4, *[(1, 1)] * 26), TURN, NOBODY) == {f"w{i:02}" for i in range(4, 30)}


def test_the_noisier_the_gradients_the_more_workers_are_worth_waiting_for() -> None:
    drawn = random.Random(1)
    mixed = links(*((drawn.choice((0.25, 0.33, 0.5, 1)), 1) for _ in range(30)))
    sizes = [len(choose(mixed, TURN._replace(n_crit=n_crit, compute_ns=0), NOBODY)) for n_crit in (8.0, 300.0)]
    assert LEAST_CHOSEN <= sizes[0] < sizes[1]


def test_there_are_never_fewer_than_six_or_half_of_fewer() -> None:
    shares, turn = [(0.8**i, 0.8**i) for i in range(12)], TURN._replace(n_crit=0.01, compute_ns=0)
    assert len(choose(links(*shares), turn, NOBODY)) == LEAST_CHOSEN
    assert len(choose(links(*shares[:5]), turn, NOBODY)) == 3


def test_who_was_chosen_stays_while_others_would_hardly_do_better() -> None:
    alike = links(*[(1, 1)] * 20, *[(0.1, 0.1)] * 5)
    before = choose(alike, TURN, NOBODY)
    assert len(before) == 20
    slower = {**alike, "w00": Links(49 * MBIT, 49 * MBIT), "w20": Links(100 * MBIT, 100 * MBIT)}
    assert choose(slower, TURN, before) == before
    assert choose({**slower, "w00": Links(MBIT, MBIT)}, TURN, before) == (before - {"w00"}) | {"w20"}


def test_choosing_among_a_thousand_is_one_pass() -> None:
    drawn = random.Random(1)
    many = links(*((drawn.choice((0.1, 1)), drawn.choice((0.1, 1))) for _ in range(1000)))
    assert LEAST_CHOSEN <= len(choose(many, TURN, NOBODY)) < 1000


@pytest.mark.parametrize("critical", [2.0, 20.0, 100.0])
def test_the_critical_number_is_found_from_gradients_of_known_noise(critical: float) -> None:
    drawn, noise, size, n = np.random.default_rng(7), GradientNoise(), 400, 20
    true = drawn.normal(size=size)
    spread = np.sqrt(critical * float(true @ true) / size)
    for _ in range(50):
        gradients = true + spread * drawn.normal(size=(n, size))
        mean = gradients.mean(axis=0)
        noise.add([float(each @ each) for each in gradients], float(mean @ mean))
    found = noise.critical(30)
    assert found is not None
    assert found == pytest.approx(max(8.0, critical), rel=0.15)


def test_nothing_is_known_at_first_and_where_there_is_no_signal_everybody_counts() -> None:
    noise = GradientNoise()
    assert noise.critical(30) is None
    noise.add([1.0], 1.0)
    assert noise.critical(30) is None
    for _ in range(5):
        noise.add([1.0] * 10, 0.1)
    assert noise.critical(30) == 300.0
    assert noise.critical(0) == 8.0
