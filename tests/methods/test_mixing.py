"""Mixing rules: doubly stochastic, and as fast as theory has it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import ConfigError
from mlfabric.methods.mixing import Mixing, consensus, contraction, groups, matrix, second_eigenvalue


@given(
    mixing=st.sampled_from(Mixing), workers=st.integers(1, 40), iteration=st.integers(0, 50), seed=st.integers(0, 50)
)
def test_rows_and_columns_add_up_to_one(mixing: Mixing, workers: int, iteration: int, seed: int) -> None:
    made = matrix(mixing, workers, iteration, seed)
    np.testing.assert_allclose(made.sum(axis=0), 1.0)
    np.testing.assert_allclose(made.sum(axis=1), 1.0)
    assert (made.diagonal() > 0).all()


@pytest.mark.parametrize("workers", [8, 16, 32, 64, 128, 256])
def test_the_second_eigenvalue_of_the_ring(workers: int) -> None:
    wanted = (1 + 2 * math.cos(2 * math.pi / workers)) / 3
    assert second_eigenvalue(matrix(Mixing.RING, workers, 0)) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("workers", [8, 16, 32, 64, 128, 256])
def test_a_random_ring_contracts_by_a_third_whatever_the_number_of_workers(workers: int) -> None:
    """A model's mean with two others that are drawn without itself: (1 - 2 / (n - 1)) / 3."""
    wanted = (1 - 2 / (workers - 1)) / 3
    measured = np.mean([consensus(Mixing.RANDOM_RING, workers, 1, seed)[1] ** 2 for seed in range(60)])
    assert measured == pytest.approx(wanted, rel=0.02)
    assert contraction(Mixing.RANDOM_RING, workers) == pytest.approx(wanted, rel=1e-9)


def test_the_contraction_of_other_rules() -> None:
    assert contraction(Mixing.RING, 64) == pytest.approx(second_eigenvalue(matrix(Mixing.RING, 64, 0)) ** 2)
    assert contraction(Mixing.FULL, 64) == pytest.approx(0.0, abs=1e-12)
    assert contraction(Mixing.PAIRS, 64) == pytest.approx((32 - 1) / 63)
    assert contraction(Mixing.RING, 1) == 0.0


def test_the_exponential_graph_is_exact_after_a_turn_of_a_power_of_two() -> None:
    assert consensus(Mixing.EXPONENTIAL, 64, 6)[-1] == pytest.approx(0.0, abs=1e-12)


def test_after_twenty_iterations_a_random_ring_is_much_nearer_to_consensus_than_a_ring() -> None:
    ring, drawn = (consensus(mixing, 64, 20)[-1] for mixing in (Mixing.RING, Mixing.RANDOM_RING))
    assert ring > 100 * drawn


def test_the_same_seed_draws_the_same_for_all() -> None:
    assert groups(Mixing.RANDOM_RING, 9, 4, 7) == groups(Mixing.RANDOM_RING, 9, 4, 7)
    assert groups(Mixing.RANDOM_RING, 9, 4, 7) != groups(Mixing.RANDOM_RING, 9, 5, 7)
    assert all(len(group) == 2 for group in groups(Mixing.PAIRS, 8, 3))
    assert sorted(len(group) for group in groups(Mixing.PAIRS, 7, 3)) == [1, 2, 2, 2, 2, 2, 2]
    assert groups(Mixing.RING, 2, 0) == [[0, 1], [0, 1]]


def test_nobody_mixes_nothing() -> None:
    with pytest.raises(ConfigError, match="workers=0"):
        groups(Mixing.RING, 0, 0)
