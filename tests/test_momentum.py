"""However updates are grouped, the model is that of single steps."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import UsageError
from mlfabric.momentum import UpdateSum

GAMMAS = st.sampled_from([0.0, 0.3, 0.5, 0.9, 0.99])
SEEDS = st.integers(0, 2**32 - 1)
WIDTH = 6


def a_case(seed, count):
    """Updates of very different sizes, weights and history."""
    rng = np.random.default_rng(seed)
    updates = rng.standard_normal((count, WIDTH)) * 10.0 ** rng.integers(-3, 4, (count, 1))
    return rng, list(updates), rng.standard_normal(WIDTH), rng.standard_normal(WIDTH)


def single_steps(updates, weights, history, gamma):
    for update in updates:
        history = gamma * history + update
        weights = weights + history
    return weights, history


def nested(updates, gamma, rng):
    """One sum, made of sums of neighbours in random order."""
    sums = [UpdateSum.of(update, gamma) for update in updates]
    while len(sums) > 1:
        i = int(rng.integers(len(sums) - 1))
        sums[i : i + 2] = [sums[i].then(sums[i + 1])]
    return sums[0]


def fold(updates, places, gamma):
    """One worker's updates of a window, at these places of it."""
    window = UpdateSum.of(updates[places[0]], gamma)
    for before, place in pairwise(places):
        window = window.waited(place - before - 1).then(UpdateSum.of(updates[place], gamma))
    return window.waited(len(updates) - 1 - places[-1])


def apart(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def check(window, updates, weights, history, relative=1e-12):
    wanted = single_steps(updates, weights, history, window.gamma)
    found = window.apply(weights, history)
    assert apart(found[0], wanted[0]) <= relative
    if window.gamma > 0:
        assert apart(found[1], wanted[1]) <= relative
    weights, history = weights.copy(), history.copy()
    window.apply_in_place(weights, history)
    assert apart(weights, wanted[0]) <= relative
    if window.gamma > 0:
        assert apart(history, wanted[1]) <= relative


@given(SEEDS, st.integers(1, 40), GAMMAS)
def test_any_grouping_nested_too_is_that_many_single_steps(seed, count, gamma):
    rng, updates, weights, history = a_case(seed, count)
    window = nested(updates, gamma, rng)
    assert window.count == count
    check(window, updates, weights, history)


@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.99, 0.999])
def test_six_hundred_updates_in_one_sum_are_six_hundred_steps(gamma):
    rng, updates, weights, history = a_case(600, 600)
    check(nested(updates, gamma, rng), updates, weights, history)


def test_of_the_movement_a_sum_loses_no_more_than_one_in_one_minus_gamma():
    for gamma in (0.9, 0.99, 0.999, 0.999999):
        rng, updates, weights, history = a_case(7, 50)
        weights = np.zeros(WIDTH)
        check(nested(updates, gamma, rng), updates, weights, history, relative=4 * 2**-52 / (1 - gamma))


@given(SEEDS, st.integers(1, 30), GAMMAS, st.integers(1, 4))
def test_what_workers_folded_of_their_own_updates_adds_up_to_the_window(seed, count, gamma, workers):
    rng, updates, weights, history = a_case(seed, count)
    owners = rng.integers(workers, size=count).tolist()
    folds = [fold(updates, [p for p in range(count) if owners[p] == owner], gamma) for owner in sorted(set(owners))]
    window = reduce(UpdateSum.beside, folds)
    assert window.count == count
    check(window, updates, weights, history)


@given(SEEDS, st.integers(1, 30), GAMMAS, st.integers(1, WIDTH))
def test_an_aggregator_adds_chunk_by_chunk_in_the_order_of_arrival(seed, count, gamma, chunk):
    rng, updates, weights, history = a_case(seed, count)
    cuts = [0, *sorted(rng.choice(np.arange(1, count), size=min(3, count - 1), replace=False).tolist()), count]
    inputs = [(nested(updates[a:b], gamma, rng), count - b) for a, b in pairwise(cuts)]
    window = empty(count, gamma)
    pieces = [(n, start) for n in range(len(inputs)) for start in range(0, WIDTH, chunk)]
    for k in rng.permutation(len(pieces)).tolist():
        n, start = pieces[k]
        arrived, behind = inputs[n]
        window.part(start, start + chunk).add_in_place(arrived.part(start, start + chunk), behind)
    check(window, updates, weights, history)


@given(SEEDS, st.lists(st.integers(0, 4), min_size=1, max_size=10), GAMMAS)
def test_a_worker_folds_in_place_what_it_would_fold_anew(seed, gaps, gamma):
    _, updates, _, _ = a_case(seed, len(gaps) + 1)
    inputs = [update.copy() for update in updates]
    folded = empty(1, gamma)
    folded.add_in_place(UpdateSum.of(updates[0], gamma), 0)
    anew = UpdateSum.of(updates[0], gamma)
    for update, gap in zip(updates[1:], gaps, strict=True):
        folded = folded.append_in_place(UpdateSum.of(update, gamma), gap)
        anew = anew.waited(gap).then(UpdateSum.of(update, gamma))
    assert folded.count == anew.count
    np.testing.assert_allclose(folded.total, anew.total, rtol=1e-12, atol=0)
    if folded.history is not None and anew.history is not None:
        np.testing.assert_allclose(folded.history, anew.history, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(updates, inputs)


@given(SEEDS, GAMMAS)
def test_one_update_is_one_step_bit_for_bit(seed, gamma):
    _, (update,), weights, history = a_case(seed, 1)
    wanted = single_steps([update], weights, history, gamma) if gamma > 0 else (weights + update, history)
    found = UpdateSum.of(update, gamma).apply(weights, history)
    UpdateSum.of(update, gamma).apply_in_place(weights, history)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal((weights, history), wanted)


@given(SEEDS, st.integers(1, 12), GAMMAS)
def test_tensors_of_torch_are_summed_alike(seed, count, gamma):
    rng, updates, weights, history = a_case(seed, count)
    window = nested([torch.from_numpy(update) for update in updates], gamma, rng)
    w, h = torch.from_numpy(weights.copy()), torch.from_numpy(history.copy())
    window.apply_in_place(w, h)
    wanted = single_steps(updates, weights, history, gamma)
    assert apart(w.numpy(), wanted[0]) <= 1e-12
    assert apart(window.apply(torch.from_numpy(weights), torch.from_numpy(history))[0].numpy(), wanted[0]) <= 1e-12


@pytest.mark.parametrize("make", [np.ones, torch.ones])
def test_single_precision_stays_single_precision(make):
    update: Any = make(4) if make is torch.ones else make(4, np.float32)
    one = UpdateSum.of(update, 0.9)
    found: Any = one.then(one).waited(1).apply(update, update)
    assert [tensor.dtype for tensor in found] == [update.dtype] * 2


def test_an_empty_window_only_lets_the_history_coast():
    weights, history = empty(3, 0.5).apply(np.zeros(WIDTH), np.ones(WIDTH))
    assert (weights[0], history[0]) == (0.875, 0.125)
    weights, history = empty(0, 0.5).apply(np.zeros(WIDTH), np.ones(WIDTH))
    assert (weights[0], history[0]) == (0, 1)


def test_without_momentum_one_tensor_is_enough():
    window = UpdateSum.of(np.ones(2), 0.0).then(UpdateSum.of(np.ones(2), 0.0)).waited(2)
    assert window.history is None
    weights, history = window.apply(np.zeros(2), None)
    assert (weights.tolist(), history) == ([2, 2], None)


def test_misuse_says_what_is_allowed():
    one, other = UpdateSum.of(np.ones(2), 0.5), UpdateSum.of(np.ones(2), 0.25)
    for join in (one.then, one.beside, one.append_in_place, lambda late: empty(3, 0.5).add_in_place(late, 0)):
        with pytest.raises(UsageError, match="sums of one job"):
            join(other)
    with pytest.raises(UsageError, match="0 to 2 before its end"):
        empty(3, 0.5).add_in_place(one, 3)
    with pytest.raises(UsageError, match="one tensor"):
        one.append_in_place(UpdateSum.of(np.ones(2), 0.5))
    with pytest.raises(UsageError, match="gamma=1"):
        UpdateSum.of(np.ones(2), 1.0)
    with pytest.raises(UsageError, match="no history"):
        UpdateSum(gamma=0.5, count=1, total=np.ones(2), history=None)
    with pytest.raises(UsageError, match="zeros at first"):
        one.apply(np.ones(2), None)


def empty(count, gamma):
    return UpdateSum(gamma=gamma, count=count, total=np.zeros(WIDTH), history=np.zeros(WIDTH) if gamma > 0 else None)
