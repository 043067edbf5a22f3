"""First draws of many generators at once: those of Python's own generators."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from mlfabric.twin.draws import Weather
from mlfabric.twin.seeded import first_randoms
from mlfabric.twin.settings import NETWORK, Direction
from tests.twin.clusters import cluster_of


@given(st.lists(st.text(max_size=40), max_size=20))
def test_they_are_what_each_generator_draws_first(texts: list[str]):
    assert first_randoms(texts).tolist() == [Random(text).random() for text in texts]


def test_a_seed_longer_than_the_state_is_stirred_in_whole():
    texts = ["x" * 3000, "x" * 2999 + "y"]
    assert first_randoms(texts).tolist() == [Random(text).random() for text in texts]


def test_the_weather_of_every_link_is_that_of_the_testbed():
    cluster = cluster_of(20, rate_bps=1e9, network="N2", seed=3)
    rates = Weather(cluster).rates(12.5e9)
    for number, host in enumerate(cluster.workers):
        assert rates[number] == NETWORK["N2"].share(3, host.name, Direction.UP, 2)
        assert rates[21 + number] == NETWORK["N2"].share(3, host.name, Direction.DOWN, 2)
