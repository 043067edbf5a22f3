from __future__ import annotations

import numpy as np
import pytest

from benchmarks.testbed.news import TEXTS
from benchmarks.testbed.workload import WorkloadSpec
from mlfabric.errors import LayoutError, UsageError

WORKERS = 3


def _all(seed=0):
    spec = WorkloadSpec(model="lda-12", batch_size=1, seed=seed, workers=WORKERS)
    return [spec.build() for _ in range(WORKERS)]


def _words(model):
    """Return how often each word is counted."""
    return np.rint(model).reshape(TEXTS.shape[1], -1).sum(axis=1)


def _round(workloads, model, step):
    """Return the model after everybody's sweep from the same counts, added up as a ring does: in float32."""
    mean = np.zeros_like(model)
    for worker, workload in enumerate(workloads):
        mean += workload.gradient(model, worker, step)[0] / np.float32(len(workloads))
    return model - np.float32(len(workloads)) * mean


def test_it_starts_with_every_word_counted_once_whoever_builds_it():
    first, *others = (workload.initial() for workload in _all())

    assert all(np.array_equal(first, other) for other in others)
    assert np.array_equal(_words(first), TEXTS.sum(axis=0))
    assert not np.array_equal(first, _all(seed=1)[0].initial())
    assert first.shape == (_all()[0].n_parameters,) == (51_096,)


def test_rounds_move_words_from_topic_to_topic_and_the_model_becomes_better():
    workloads = _all()
    model = workloads[0].initial()
    at_first = workloads[0].accuracy(model)
    for step in range(12):
        model = _round(workloads, model, step)

    assert np.array_equal(_words(model), TEXTS.sum(axis=0))
    assert np.rint(model).min() >= 0
    assert workloads[0].accuracy(model) > at_first + 0.05


def test_equal_seeds_sample_alike_and_out_takes_the_change():
    one, other = _all()[1], _all()[1]
    model = one.initial()
    room = np.empty_like(model)

    change, _ = one.gradient(model, 1, 0)
    same, _ = other.gradient(model, 1, 0, room)

    assert same is room
    assert np.array_equal(change, same)
    assert change.any()
    assert not np.array_equal(change, other.gradient(model - same, 1, 1)[0])


def test_a_change_that_was_turned_away_comes_again_with_the_next():
    """The counts never lose or double a word, and a worker's own words are counted where they are."""
    taken, refused = _all()[0], _all()[0]
    model = taken.initial()
    first, _ = taken.gradient(model, 0, 0)
    second, _ = taken.gradient(model - first, 0, 1)

    refused.gradient(model, 0, 0)
    refused.turned_away()
    both, _ = refused.gradient(model, 0, 1)
    assert np.array_equal(both, first + second)

    refused.turned_away()
    third, _ = taken.gradient(model - first - second, 0, 2)
    assert np.array_equal(refused.gradient(model, 0, 2)[0], first + second + third)


def test_a_worker_samples_with_topics_of_its_own_only():
    workload = _all()[0]
    model = workload.initial()
    workload.gradient(model, 0, 0)

    with pytest.raises(UsageError, match="worker 1 samples with the topics of worker 0"):
        workload.gradient(model, 1, 0)
    with pytest.raises(LayoutError, match="7 counts; allowed: 51096"):
        workload.gradient(model[:7], 0, 1)
