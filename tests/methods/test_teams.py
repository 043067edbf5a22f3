"""Groups around workers with fast links: who is in which, what links carry, and how fast models come together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlfabric.methods.teams import MOST_WORSE, Link, Team, ring_contraction, teams

SHARES = st.sampled_from([0.1, 0.25, 0.5, 1.0])
LINKS = st.lists(st.builds(Link, up=SHARES, down=SHARES), min_size=2, max_size=40)
DRAWS, NOISE = 600, 0.03
IN_RING = 2


def half_slow(workers: int) -> list[Link]:
    """Let each direction of half of the workers be slow, and of a quarter both."""
    return [Link(up=(1.0, 0.1)[i % 2], down=(1.0, 0.1)[i // 2 % 2]) for i in range(workers)]


def everybody(groups: list[Team]) -> list[int]:
    return sorted(worker for team in groups for worker in (team.collector, team.giver, *team.others))


@given(LINKS, st.integers(0, 50))
def test_each_worker_is_in_one_group_of_three_at_least(links: list[Link], version: int) -> None:
    groups = teams(links, version)
    if groups:
        assert everybody(groups) == list(range(len(links)))
        assert min(2 + len(team.others) for team in groups) >= min(len(links), 3)


@given(LINKS)
def test_a_round_takes_no_longer_than_in_a_ring_or_there_are_no_groups(links: list[Link]) -> None:
    for collector, giver, others, time in teams(links, 0):
        models = 1 + len(others)
        assert time >= max(models / links[collector].down, models / links[giver].up)
        assert time >= max(1 / min(links[worker]) for worker in (collector, giver, *others))
        assert time <= IN_RING / min(min(link) for link in links)


@pytest.mark.parametrize("workers", [12, 30, 100])
def test_where_half_of_all_links_are_slow_these_carry_half_of_what_they_do_in_a_ring(workers: int) -> None:
    links = half_slow(workers)
    assert max(team.time for team in teams(links, 1)) == 1 / min(min(link) for link in links)


def test_where_links_are_equal_few_workers_make_a_ring() -> None:
    assert teams([Link(1.0, 1.0)] * 8, 1) == []


def test_whom_a_collector_has_beside_it_differs_from_round_to_round() -> None:
    links = half_slow(30)
    drawn = [{frozenset(everybody([team])) for team in teams(links, version)} for version in range(4)]
    assert all(len(drawn[i] & drawn[i + 1]) < 3 for i in range(3))
    assert teams(links, 3) == teams(links, 3)


def spread(links: list[Link], versions: range) -> np.ndarray:
    """Return the mean of what rounds leave of squared distances from the mean, as a quadratic form."""
    workers, total = len(links), np.zeros((len(links), len(links)))
    for version in versions:
        mixing = np.zeros((workers, workers))
        for team in teams(links, version):
            members = everybody([team])
            mixing[np.ix_(members, members)] = 1 / len(members)
        total += mixing.T @ (np.eye(workers) - 1 / workers) @ mixing
    return total / len(versions)


@pytest.mark.parametrize("workers", [4, 8, 9, 16, 30, 64])
def test_in_the_worst_direction_models_come_together_nearly_as_fast_as_in_a_random_ring(workers: int) -> None:
    """The same links are fast all the time; the direction is found in some rounds and tried in others."""
    links = half_slow(workers)
    worst = np.linalg.eigh(spread(links, range(DRAWS)))[1][:, -1]
    left = float(worst @ spread(links, range(DRAWS, 2 * DRAWS)) @ worst)
    assert left <= MOST_WORSE * ring_contraction(workers) + NOISE
