"""Rounds that workers apply by themselves, under storms: what must hold of gradients, sums, models and delays."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from mlfabric.model.specs import Method
from mlfabric.network import down_link, up_link
from mlfabric.protocol import BeginState, MemberSilent
from tests.scheduler.step_storm import StepStorm

CASES = [
    (Method.ELASTIC, {}),
    (Method.ELASTIC, {"tau_max": 0, "at_least": 0.2}),
    (Method.PARTIAL, {"quorum": "solo", "full_every": 4}),
    (Method.PARTIAL, {"quorum": "majority"}),
    (Method.PARTIAL, {"quorum": "2", "full_every": 7}),
    (Method.PARTIAL, {"quorum": "auto", "full_every": 30}),
    (Method.ALL_REDUCE, {}),
]


@pytest.mark.parametrize(("method", "options"), CASES)
@pytest.mark.parametrize("seed", range(6))
def test_storms(method: Method, options: dict[str, Any], seed: int) -> None:
    StepStorm(seed, 2 + seed % 4, 30, method, **options).run(1500)


@pytest.mark.parametrize("tau_max", [0, 3])
@pytest.mark.parametrize("seed", range(6))
def test_storms_with_workers_that_are_left_out(seed: int, tau_max: int) -> None:
    storm = StepStorm(seed, 6, 40, Method.ELASTIC, members="chosen", tau_max=tau_max)
    storm.run(3000)


@pytest.mark.parametrize("tau_max", [0, 2])
def test_who_has_slow_links_is_a_guest_of_every_eighth_round(tau_max: int) -> None:
    storm = StepStorm(1, 6, 1000, Method.ELASTIC, members="chosen", tau_max=tau_max)
    for _ in range(100):
        storm.step(calm=True)
    for link in (up_link("h-w0"), down_link("h-w0")):
        storm.state.context.network.set_rate(link, 4)
    versions: list[int] = []
    while len(versions) < 4:
        storm.step(calm=True)
        if storm.guests.total() > len(versions):
            versions.append(storm.state.reductions["net"].version)
    assert set(storm.guests) == {"w0"}
    assert [later - earlier for earlier, later in pairwise(versions)] == [8, 8, 8]
    assert storm.players[0].dropped
    assert storm.delays.keys() <= set(range(tau_max + 1))


def test_a_newcomer_does_not_begin_anew_while_those_that_have_the_model_may_come_back() -> None:
    storm = StepStorm(0, 2, 1000, Method.ELASTIC)
    for _ in range(600):
        storm.step(calm=True)
    old, version = list(storm.players), storm.state.reductions["net"].version
    assert version > 5
    newcomer = storm.born("w9")
    storm.players.append(newcomer)
    storm.join(newcomer)
    storm.say(newcomer)
    for player in old:
        storm.tell(MemberSilent(name=player.name, incarnation=player.incarnation))
        player.up = None
    storm.tick()
    assert not any(isinstance(told, BeginState) for told in newcomer.down)
    for _ in range(600):
        storm.step(calm=True)
    assert storm.state.reductions["net"].version > version
    assert {player.history[0] for player in storm.players} == {old[0].history[0]}


def test_a_newcomer_begins_anew_where_nobody_comes_back() -> None:
    storm = StepStorm(0, 1, 5, Method.ELASTIC)
    for _ in range(60):
        storm.step(calm=True)
    old, version = storm.players[0], storm.state.reductions["net"].version
    storm.tell(MemberSilent(name=old.name, incarnation=old.incarnation))
    storm.players.remove(old)
    storm.players.append(storm.born("w9"))
    for _ in range(300):
        storm.step(calm=True)
        if not storm.players:
            break
    assert storm.state.reductions["net"].version > version
