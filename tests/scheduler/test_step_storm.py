"""Rounds that workers apply by themselves, under storms: what must hold of gradients, sums, models and delays."""

from __future__ import annotations

from typing import Any

import pytest

from mlfabric.model.specs import Method
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
