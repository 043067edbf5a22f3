"""Advice: what is chosen among predictions that are given, what delays cost, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.errors import ConfigError
from mlfabric.model.specs import Method
from mlfabric.twin.advise import (
    PLAYED,
    PLAYED_ITERATIONS,
    Advice,
    Option,
    Prediction,
    Verdict,
    advise,
    replica_bound,
    value_of_an_update,
)
from mlfabric.twin.cluster import MOST_PLAYED, Cluster
from tests.twin.clusters import cluster_of

WORKERS = 10


def cluster(workers: int = WORKERS, **options: Any) -> Cluster:
    return cluster_of(workers, **{"rate_bps": 1e8, "iterations": 200, **options})


def prediction(step_s: float, tau: int = 0) -> Prediction:
    return Prediction(step_s=step_s, delays=np.full(8, tau), dropped_share=0.0)


def advised(times_s: Callable[[Option], float], tau: Callable[[Option], int] = lambda _: 0, **options: Any) -> Advice:
    return advise(cluster(), lambda _, option: prediction(times_s(option), tau(option)), **options)


def by_method(**times_s: float) -> Callable[[Option], float]:
    return lambda option: times_s.get("ring" if option.method is None else option.method.name.lower(), 1.0)


@pytest.mark.parametrize(
    ("times_s", "verdict", "best"),
    [
        ({"all_reduce": 0.9, "synchronous": 0.7, "asynchronous": 0.5}, Verdict.FABRIC, Method.ASYNCHRONOUS),
        ({"all_reduce": 1.0, "synchronous": 0.9, "asynchronous": 0.95}, Verdict.PLAIN, Method.SYNCHRONOUS),
        ({"all_reduce": 1.0, "synchronous": 0.5, "asynchronous": 0.9}, Verdict.FABRIC, Method.SYNCHRONOUS),
        ({"all_reduce": 0.5, "synchronous": 0.9, "asynchronous": 0.9}, Verdict.FABRIC, Method.ALL_REDUCE),
        ({"elastic": 0.5, "synchronous": 0.6, "asynchronous": 0.6}, Verdict.FABRIC, Method.ELASTIC),
    ],
)
def test_the_method_that_gains_most_is_advised_if_it_gains_enough_and_of_equals_fewer_aggregators(
    times_s: dict[str, float], verdict: Verdict, best: Method
):
    found = advised(by_method(ring=1.0, **times_s))
    assert (found.verdict, found.best.option.method, found.best.option.aggregators) == (verdict, best, 0)
    assert found.best.gain == pytest.approx(1 / times_s[best.name.lower()])
    assert (found.replica_updates is None) == (not best.has_server), "only a server has a replica"


def test_bounds_are_tried_with_the_best_number_of_aggregators():
    found = advised(lambda o: 1.0 if o.method is None else 0.8 - 0.1 * (o.aggregators == WORKERS))
    bounds = {row.option.tau_max for row in found.rows if row.option.aggregators == WORKERS and row.option.tau_max}
    assert bounds == {10, 15, 20, 30, 40, 80}


def test_a_larger_bound_is_advised_only_as_long_as_it_gains_more_than_delay_costs():
    """Each larger bound is a hundredth faster, and its updates are as late as it allows."""

    def times_s(option: Option) -> float:
        return 1.0 if option.tau_max is None else 0.5 - option.tau_max / 10_000

    late = advised(times_s, lambda option: option.tau_max or 0)
    assert late.delay_bound == 10
    assert advised(times_s, lambda option: option.tau_max or 0, staleness=0.0).delay_bound == 80


def test_the_twin_is_asked_about_the_cluster_as_the_option_has_it():
    asked: list[tuple[Cluster, Option]] = []

    def predict(given: Cluster, option: Option) -> Prediction:
        asked.append((given, option))
        return prediction(1.0)

    advise(cluster(method=Method.STALE_SYNCHRONOUS), predict)
    for shaped, option in asked:
        assert shaped.method is (option.method or Method.ALL_REDUCE)
        assert (shaped.tau_max, len(shaped.aggregators)) == (option.tau_max, option.aggregators)


def test_a_slack_is_advised_where_stale_synchronous_training_gains_most():
    found = advised(lambda option: {1: 0.6, 3: 0.5, 8: 0.55}.get(option.slack or 0, 1.0))
    assert found.best.option == Option(method=Method.STALE_SYNCHRONOUS, slack=3)
    assert found.replica_updates is not None


def test_late_updates_are_worth_less_in_stale_synchronous_training_too():
    found = advised(lambda option: 1.0, lambda option: 10 * WORKERS if option.slack == 8 else 0)
    worth = {row.option.slack: row.value for row in found.rows if row.option.slack is not None}
    assert worth[1] == worth[3] == 1.0
    assert worth[8] < 0.6


def test_only_the_best_are_run_for_all_steps_and_the_longest_run_of_an_option_counts():
    lengths: list[tuple[Option, int]] = []

    def predict(given: Cluster, option: Option) -> Prediction:
        """The tightest bound looks best in a short run; a long one tells."""
        lengths.append((option, given.iterations))
        is_misleading = option.tau_max == WORKERS and given.iterations < 100
        return prediction(0.3 if is_misleading else 0.5 if option.method is Method.SYNCHRONOUS else 1.0)

    found, played = advise(cluster(iterations=1000), predict), [Option(method=method) for method in PLAYED]
    assert [option for option, steps in lengths if steps == 25] == [
        row.option for row in found.rows if row.option not in played
    ]
    assert [option for option, steps in lengths if steps == PLAYED_ITERATIONS] == [Option(method=None), *played]
    long = [option for option, steps in lengths if steps == 100]
    assert long[0] == Option(method=None)
    assert Option(method=Method.ASYNCHRONOUS, tau_max=WORKERS) in long
    assert len(long) == 4
    assert found.best.option == Option(method=Method.SYNCHRONOUS, aggregators=0)
    assert {row.option: row.iterations for row in found.rows} == {
        option: max(steps for other, steps in lengths if other == option) for option, _ in lengths
    }


def test_a_cluster_with_very_many_workers_is_not_played():
    methods = {row.option.method for row in advise(cluster(workers=MOST_PLAYED + 1), lambda *_: prediction(1.0)).rows}
    assert methods.isdisjoint(PLAYED)


def test_delays_in_rounds_count_as_many_updates_as_a_round_has_workers():
    def predict(given: Cluster, option: Option) -> Prediction:
        members = 10.0 if option.method is Method.ELASTIC else 0.0
        return Prediction(step_s=1.0, delays=np.full(8, 2), dropped_share=0.0, members=members)

    worth = {row.option.method: row.value for row in advise(cluster(), predict).rows}
    assert worth[Method.ASYNCHRONOUS] == 1.0
    assert worth[Method.ELASTIC] == value_of_an_update(np.full(8, 20), WORKERS, 0.1) < 1.0


def test_of_options_that_went_alike_one_is_run_for_all_steps():
    """Nobody comes near any bound of asynchronous training."""
    long: list[Option] = []

    def predict(given: Cluster, option: Option) -> Prediction:
        long.extend([option] if given.iterations == 100 else [])
        return prediction(0.5 if option.method is Method.ASYNCHRONOUS and not option.aggregators else 1.0, tau=4)

    advise(cluster(iterations=100), predict)
    assert sum(option.method is Method.ASYNCHRONOUS and not option.aggregators for option in long) == 1


def test_progress_ends_at_all_that_is_to_be_done():
    told: list[tuple[int, int]] = []
    found = advised(
        by_method(ring=1.0, all_reduce=1.0, synchronous=1.0, asynchronous=1.0),
        on_progress=lambda done, total: told.append((done, total)),
    )
    runs = len(found.rows) + 5  # a ring and three more for all steps, a ring for those that are played
    assert told == [(n + 1, runs) for n in range(len(told) - 1)] + [(runs, runs)]


@given(st.lists(st.integers(0, 500), min_size=1), st.integers(1, 100), st.floats(0, 1))
def test_an_update_is_never_worth_more_than_a_fresh_one_nor_less_for_less_delay(
    delays: list[int], workers: int, staleness: float
):
    value = value_of_an_update(np.array(delays), workers, staleness)
    assert 0 < value <= 1
    assert value_of_an_update(np.array(delays) * 2, workers, staleness) <= value


def test_delays_as_long_as_in_synchronous_training_cost_nothing():
    assert value_of_an_update(np.full(5, WORKERS), WORKERS, 1.0) == 1.0
    assert value_of_an_update(np.full(5, 2 * WORKERS), WORKERS, 0.1) == pytest.approx(1 / 1.1)


def test_a_replica_may_be_behind_by_what_is_on_its_way():
    """100 updates/s, of which each is on its way for a batch window of 0.1 s and 0.08 s on the wire; twice that."""
    assert replica_bound(cluster(), prediction(0.1)) == 36
    assert replica_bound(cluster(), prediction(10.0)) == WORKERS


@pytest.mark.parametrize("staleness", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(staleness: float):
    with pytest.raises(ConfigError, match="staleness"):
        advised(by_method(), staleness=staleness)


def test_a_single_worker_is_refused():
    with pytest.raises(ConfigError, match="2 or more"):
        advise(cluster(workers=1), lambda *_: prediction(1.0))
