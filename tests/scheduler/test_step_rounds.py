"""Rounds that workers apply by themselves, under a new scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.model.round_options import MOST_KEPT, RoundOptions
from mlfabric.model.specs import Method
from mlfabric.protocol import (
    BeginState,
    FetchState,
    Instruction,
    PassReduce,
    Reduce,
    ReduceSettled,
    RoundArrived,
    RoundBroken,
    RoundId,
    RoundsHeld,
    StateArrived,
)
from mlfabric.scheduler.rounds.step_rounds import StepRounds

from .stage import SPEC, Stage, of
from .test_rounds import asks

JOB = replace(SPEC, method=Method.ELASTIC, tau_max=None)
FOURTH, FIFTH = RoundId(1, 4), RoundId(1, 5)
HELD = RoundsHeld(version=4, applied=4, has_state=True, settled=FOURTH, arrived=FIFTH, together=2)


class Team(Stage):
    """A new scheduler, and workers that its predecessor knew."""

    def __init__(self, *names: str, **job) -> None:
        super().__init__(term=2)
        for name in names:
            self.worker(name, spec=replace(JOB, **job), address=f"{name}:1")

    @property
    def rounds(self) -> StepRounds:
        rounds = self.state.reductions["net"]
        assert isinstance(rounds, StepRounds)
        return rounds

    def comes(self, worker: str, held: RoundsHeld, **asked) -> list[Instruction]:
        return self.says(worker, rounds=held) + self.ask(asks(worker, **asked))


@pytest.fixture
def team() -> Team:
    """Two workers, which both have the result of the fifth round; b's gradient is in it, and a's is not."""
    team = Team("a", "b", "c")
    assert team.comes("a", HELD, computed_from=4) == []
    settled = of(ReduceSettled, team.comes("b", HELD, computed_from=4, arrived=FIFTH))
    assert [(one.to, one.round) for one in settled] == [("a", FIFTH), ("b", FIFTH)]
    return team


def test_a_gradient_that_is_not_in_the_round_that_is_found_settled_is_offered_for_the_next_one(team) -> None:
    assert team.rounds.version == 5
    assert (team.rounds.asked_by("a"), team.rounds.asked_by("b")) == (1, 0)


def test_who_comes_a_round_later_is_told_that_the_one_it_has_was_settled_and_fetches_the_model(team) -> None:
    team.wait(200)
    team.tick()
    for worker in "ab":  # a's gradient is in a round of the new scheduler
        team.ask(RoundArrived(worker=worker, model="net", round=RoundId(2, 1)))
    assert team.rounds.version == 6
    told = team.comes("c", HELD, computed_from=4, arrived=FIFTH)
    assert [one.round for one in of(ReduceSettled, told) if one.to == "c"] == [FIFTH]
    assert [one.version for one in of(FetchState, told)] == [6]
    assert of(PassReduce, told) == []


def test_a_round_that_others_know_to_be_settled_is_settled_also_for_who_was_cut_off_and_comes_rounds_later() -> None:
    team, sixth = Team("a", "b", "c"), RoundId(1, 6)
    ahead = replace(HELD, version=6, applied=6, settled=sixth, arrived=None, known=(FOURTH, FIFTH, sixth))
    told = team.comes("a", ahead, computed_from=6) + team.comes("b", ahead, computed_from=6)
    told += team.comes("c", HELD, computed_from=4, arrived=FIFTH)
    assert [(one.to, one.round) for one in of(ReduceSettled, told)] == [("c", FIFTH)]
    assert [one.to for one in of(FetchState, told)] == ["c"]
    assert of(PassReduce, told) == []


def test_a_settled_round_says_how_many_it_reached_and_not_how_many_contributed(team) -> None:
    team.wait(200)
    team.tick()
    told = [one for worker in "ab" for one in team.ask(RoundArrived(worker=worker, model="net", round=RoundId(2, 1)))]
    assert team.rounds.workers == 1
    assert [one.workers for one in of(ReduceSettled, told)] == [2, 2]


def test_who_fetches_the_model_does_not_make_up_for_one_that_has_it_and_knows_more_of_the_last_round() -> None:
    team, sixth = Team("a", "b", "c"), RoundId(1, 6)
    fetches = RoundsHeld(version=5, applied=0, has_state=False, settled=sixth, arrived=None, together=2)
    told = team.comes("a", HELD, computed_from=4, arrived=FIFTH) + team.says("c", rounds=fetches)
    told += team.comes("b", replace(HELD, arrived=sixth), computed_from=4, arrived=sixth)
    assert team.rounds.version == 4
    assert of(ReduceSettled, told) == of(PassReduce, told) == []
    assert (team.rounds.asked_by("a"), team.rounds.asked_by("b")) == (1, 1)


def test_where_an_older_model_goes_on_its_version_has_a_number_that_nobody_has_seen() -> None:
    team = Team("a", "b")
    team.comes("a", replace(HELD, arrived=None), computed_from=4)
    team.comes("b", replace(HELD, version=3, applied=3, settled=RoundId(1, 3), arrived=None), computed_from=3)
    assert team.rounds.version == 4
    told = team.left("a")
    assert [(one.to, one.version) for one in of(BeginState, told)] == [("b", 5)]
    assert team.rounds.version == 5


def kept(instructions: list[Instruction]) -> list[tuple[str, int, bool]]:
    return [(one.to, one.reduce.counter, one.keep) for one in of(PassReduce, instructions)]


@pytest.fixture
def eager() -> Team:
    """A solo round of a runs; b computes."""
    team = Team("a", "b", method=Method.PARTIAL, rounds=RoundOptions(quorum="solo"))
    begin = replace(HELD, arrived=None)
    team.says("a", rounds=begin)
    team.says("b", rounds=begin)
    told = team.ask(asks("a", computed_from=4)) + team.tick()
    assert {one.to: one.reduce is not None for one in of(Reduce, told)} == {"a": True, "b": False}
    return team


def test_a_late_worker_of_a_partial_round_is_told_at_once_to_go_on(eager) -> None:
    assert kept(eager.ask(asks("b", computed_from=4))) == [("b", 0, True)]
    assert kept(eager.ask(asks("b", computed_from=4))) == [("b", 0, True)]
    assert kept(eager.ask(asks("b", 1, computed_from=4, updates=2))) == [("b", 1, True)]
    assert eager.rounds.passed == 2


def test_one_that_keeps_many_gradients_waits_for_the_next_round_and_is_in_it(eager) -> None:
    assert eager.ask(asks("b", 7, computed_from=4, updates=MOST_KEPT, weight=20)) == []
    told = [one for worker in "ab" for one in eager.ask(RoundArrived(worker=worker, model="net", round=RoundId(2, 1)))]
    told += eager.tick()
    assert kept(told) == []
    assert [(one.to, one.weight) for one in of(Reduce, told) if one.reduce is not None] == [("b", 20)]


@pytest.fixture
def elastic() -> Team:
    """Workers whose rounds need nearly none of them."""
    team = Team("a", "b", "c", rounds=RoundOptions(at_least=0.1))
    for worker in "abc":
        team.says(worker, rounds=replace(HELD, arrived=None))
    return team


def begin_without(team: Team, late: str, version: int, patience_ms: int = 10_000) -> frozenset[RoundId]:
    """Have all workers but one make a round once that one is overdue; return it."""
    team.wait(100)
    for worker in "abc".replace(late, ""):
        team.ask(asks(worker, version, computed_from=version))
    team.wait(patience_ms)
    return frozenset(one.round for one in of(Reduce, team.tick()))


def end(team: Team, rounds: frozenset[RoundId]) -> list[Instruction]:
    """Let all workers have the round."""
    (made,) = rounds
    arrived = [RoundArrived(worker=worker, model="net", round=made) for worker in "abc"]
    return [one for event in arrived for one in team.ask(event)]


def test_a_late_gradient_of_an_elastic_round_is_given_up_for_a_new_one_when_all_begin_and_not_twice(elastic) -> None:
    made = begin_without(elastic, "c", 4)
    assert elastic.ask(asks("c", 4, computed_from=4)) == []
    (passed,) = of(PassReduce, end(elastic, made))
    assert (passed.to, passed.keep) == ("c", False)
    dropped = elastic.rounds._context.members["c"].tally.dropped
    assert dropped == {"a round was made without it, and there was time for a new one": 1}

    made = begin_without(elastic, "c", 5, patience_ms=1_000_000)  # it is known to take long now
    assert elastic.ask(asks("c", 5, computed_from=5)) == []
    told = end(elastic, made) + elastic.tick()
    assert of(PassReduce, told) == []
    assert elastic.rounds.asked_by("c") == 1


def test_one_that_is_offered_while_backward_makes_it_joins_the_next_round(elastic) -> None:
    made = begin_without(elastic, "c", 4)
    assert elastic.ask(asks("c", 4, computed_from=4, grows=True)) == []
    assert of(PassReduce, end(elastic, made)) == []
    assert elastic.rounds.asked_by("c") == 1


def test_a_gradient_that_comes_when_others_have_begun_with_the_next_one_joins_it(elastic) -> None:
    assert of(PassReduce, end(elastic, begin_without(elastic, "c", 4))) == []
    told = elastic.ask(asks("c", 4, computed_from=4))
    assert [one.to for one in of(Reduce, told) if one.reduce is not None] == ["c"]


def test_who_fetches_what_the_first_round_makes_does_not_hold_up_another_attempt() -> None:
    team, fresh = Team("a", "b", "c"), RoundsHeld(version=0, applied=0, has_state=False, together=2)
    told = team.says("a", rounds=fresh) + team.says("b", rounds=fresh)
    (fetch,) = of(FetchState, told)
    began = StateArrived(worker=fetch.to, model="net", version=fetch.version, round=fetch.round)
    told = team.ask_all(began, *(asks(worker, computed_from=fetch.version) for worker in "ab")) + team.tick()
    first = {one.round for one in of(Reduce, told)}
    assert [one.version for one in of(FetchState, team.says("c", rounds=fresh))] == [fetch.version + 1]
    team.ask(RoundBroken(worker="a", model="net", round=first.pop(), detail="the connection broke"))
    team.wait(100)
    assert {one.to for one in of(Reduce, team.tick())} == {"a", "b", "c"}
