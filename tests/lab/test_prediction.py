"""Rounds without a server on a cluster that somebody describes: what must hold of every play, and what it must show."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlfabric.errors import UsageError
from mlfabric.lab.prediction import play_rounds
from mlfabric.model.round_options import RoundOptions
from mlfabric.model.specs import Method
from mlfabric.twin.advise import PLAYED
from mlfabric.twin.closed_forms import ring_share
from mlfabric.twin.cluster import MOST_PLAYED, Cluster, Compute
from mlfabric.twin.outcome import Outcome
from mlfabric.twin.settings import COMPUTE
from tests.twin.clusters import cluster_of

pytestmark = [pytest.mark.usefixtures("compiled_planner"), pytest.mark.timeout(300)]


def rounds_of(workers: int, method: Method = Method.ELASTIC, stragglers: str = "C0", **changed: Any) -> Cluster:
    """Return hosts with 20 Mbit/s, over which a tensor takes 80 ms."""
    compute = Compute(mean_s=0.1, stragglers=COMPUTE[stragglers])
    usual: dict[str, Any] = {
        "rate_bps": 2e7,
        "iterations": 10,
        "compute": compute,
        "method": method,
        "model_bytes": 200_000,
    }
    return cluster_of(workers, **{**usual, **changed})


@pytest.mark.parametrize("method", PLAYED)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_step_is_made_and_every_gradient_ends_once(method: Method, seed: int) -> None:
    cluster = rounds_of(5, method, "C2", network="N3", seed=seed)
    found = play_rounds(cluster, spans_s=1.0)
    assert found.ended_s.shape == (5, 10)
    assert (np.diff(found.ended_s, axis=1) > 0).all()
    assert found.pushed.sum() == found.dropped.sum() + len(found.delays)
    assert (np.diff(found.committed_s) >= 0).all()
    assert (found.link_use <= 1.0 + 1e-6).all()
    assert found.link_use[:5].min() > 0.01
    assert set(found.members.tolist()) <= set(range(1, 6))
    assert method is Method.PARTIAL or found.delays.max() <= (cluster.rounds.tau_max if method is Method.ELASTIC else 0)
    assert method is not Method.ALL_REDUCE or set(found.members.tolist()) == {5}
    assert {span.what for span in found.spans} == {"compute", "send"}


def test_the_same_cluster_has_the_same_outcome_and_another_seed_has_another() -> None:
    cluster = rounds_of(4, Method.PARTIAL, "C2", network="N2", iterations=5)
    before = gc.get_threshold()
    one, again, other = (play_rounds(replace(cluster, seed=seed)) for seed in (1, 1, 2))
    assert (one.ended_s == again.ended_s).all()
    assert (one.ended_s != other.ended_s).any()
    assert gc.get_threshold() == before


def test_rounds_on_even_links_take_about_what_the_bytes_take() -> None:
    found = play_rounds(rounds_of(4, Method.ALL_REDUCE)).mean_iteration_s
    assert 0.1 + ring_share(4) * 0.08 < found < 0.1 + 1.6 * ring_share(4) * 0.08


def test_a_large_model_takes_as_long_over_links_that_are_faster_in_the_same_measure() -> None:
    one = rounds_of(4, Method.ALL_REDUCE, rate_bps=1e8, model_bytes=1_000_000)
    other = replace(rounds_of(4, Method.ALL_REDUCE, rate_bps=1e10), model_bytes=100_000_000)
    assert play_rounds(other).mean_iteration_s == pytest.approx(play_rounds(one).mean_iteration_s, rel=0.02)


def test_elastic_rounds_do_not_wait_for_stragglers_and_rounds_of_all_do() -> None:
    together, elastic = (play_rounds(rounds_of(6, method, "C2")) for method in (Method.ALL_REDUCE, Method.ELASTIC))
    assert elastic.mean_members < 6
    assert elastic.updates_per_s > 1.1 * together.updates_per_s
    all_of_them = play_rounds(rounds_of(6, Method.ELASTIC, "C2", rounds=RoundOptions(at_least=1.0)))
    assert all_of_them.members.min() == 6


def timely_per_s(found: Outcome) -> float:
    """Return how many gradients are in rounds per second; one that comes d rounds late counts 1 / (1 + d)."""
    since_s = 0.1 * found.duration_s
    counts = (found.committed_s > since_s) & (found.committed_s <= found.duration_s)
    return float((1 / (1 + found.delays[counts])).sum() / (found.duration_s - since_s))


def slowed(cluster: Cluster, *slowdowns: float) -> Cluster:
    """Return a cluster whose first hosts compute for so many times as long."""
    first = tuple(replace(host, slowdown=times) for host, times in zip(cluster.workers, slowdowns, strict=False))
    return replace(cluster, workers=first + cluster.workers[len(first) :])


SKEWS = {
    "stragglers": rounds_of(6, Method.PARTIAL, "C2", iterations=30),
    "stragglers, short rounds": rounds_of(6, Method.PARTIAL, "C1", iterations=30, model_bytes=20_000),
    "one slow": slowed(rounds_of(6, Method.PARTIAL, iterations=90), 3.0),
    "half slow": slowed(rounds_of(6, Method.PARTIAL, iterations=30), 2.0, 2.0, 2.0),
    "each slower": slowed(rounds_of(6, Method.PARTIAL, iterations=30), 1.0, 1.3, 1.6, 2.0, 2.5, 4.0),
}


@pytest.mark.parametrize("skew", SKEWS)
def test_the_quorum_that_is_chosen_is_at_most_5_percent_worse_than_the_best_fixed_one(skew: str) -> None:
    found = {
        quorum: timely_per_s(play_rounds(replace(SKEWS[skew], rounds=RoundOptions(quorum=quorum))))
        for quorum in ("auto", *"135", "full")
    }
    assert found["auto"] >= 0.95 * max(found.values()), found


def test_who_is_late_goes_on_at_once_and_is_in_a_round_all_the_same() -> None:
    """A round takes 0.8 s here, and a step 0.1 s."""
    cluster = rounds_of(4, Method.PARTIAL, "C1", model_bytes=2_000_000, rounds=RoundOptions(quorum="solo"))
    found = play_rounds(cluster)
    assert found.mean_iteration_s < 0.4
    assert found.least_share > 0.4
    assert found.dropped.sum() == 0


def test_steps_that_wait_for_no_round_take_what_they_compute_while_later_gradients_are_added_up() -> None:
    """A round takes 0.2 s here, and a step 0.1 s."""
    cluster = rounds_of(4, Method.PARTIAL, rounds=RoundOptions(quorum="full"))
    waiting, going_on = play_rounds(cluster), play_rounds(replace(cluster, waits=False))
    assert waiting.mean_iteration_s > 0.2
    assert going_on.mean_iteration_s < 0.15
    assert going_on.delays.max() > waiting.delays.max() == 0


def test_a_narrow_link_of_the_scheduler_makes_rounds_longer() -> None:
    cluster = rounds_of(6, Method.ALL_REDUCE)
    narrow = replace(cluster, server=replace(cluster.server, up_bps=1e5))
    assert play_rounds(narrow).mean_iteration_s > 1.1 * play_rounds(cluster).mean_iteration_s


def test_progress_is_told_to_its_end_and_too_many_workers_are_refused() -> None:
    told: list[tuple[int, int]] = []
    play_rounds(rounds_of(2, iterations=3), lambda done, total: told.append((done, total)))
    assert told == [(n, 6) for n in range(1, 7)]
    with pytest.raises(UsageError, match="200 at most"):
        play_rounds(rounds_of(MOST_PLAYED + 1))
