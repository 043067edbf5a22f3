"""Whose links are probed between rounds that workers apply by themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.model.specs import Method
from mlfabric.planning import Shape
from mlfabric.protocol import (
    CancelReduce,
    Instruction,
    LinkProbed,
    Probe,
    Reduce,
    RoundArrived,
    RoundId,
    RoundsHeld,
    RoundSlow,
)
from mlfabric.scheduler.rounds.step_rounds import StepRounds

from .stage import GIGABIT, MS, SPEC, Stage, of
from .test_probing import PAUSE_MS
from .test_rounds import BIG, asks

JOB = replace(SPEC, method=Method.ELASTIC, tau_max=None)
NAMES = "abcdef"
HELD = RoundsHeld(version=4, applied=4, has_state=True, settled=RoundId(1, 4), together=len(NAMES))
OVERDUE_MS = 0.3 * PAUSE_MS
FIRST_PAUSE_MS = BIG * 8 / GIGABIT * 1000
"""As long as the tensor takes over a link."""


class Team(Stage):
    """Workers that compute, and make rounds."""

    def __init__(self, names: str = NAMES) -> None:
        super().__init__(term=2)
        self.version = HELD.version
        self.slow_round = RoundId(1, 4)
        for name in names:
            self.worker(name, spec=JOB, address=f"{name}:1")
        for name in names:
            self.says(name, rounds=replace(HELD, together=len(names)))

    @property
    def rounds(self) -> StepRounds:
        rounds = self.state.reductions["net"]
        assert isinstance(rounds, StepRounds)
        return rounds

    def begin(self, ready: str) -> list[Instruction]:
        """Let some have a gradient after a while; the round begins once the others are overdue."""
        self.wait(PAUSE_MS)
        told = [one for name in ready for one in self.offer(name)]
        self.wait(OVERDUE_MS)
        return told + self.tick()

    def offer(self, name: str) -> list[Instruction]:
        return self.ask(asks(name, self.version, size_bytes=BIG, computed_from=self.version))

    def end(self) -> list[Instruction]:
        """Let all have the result; return what follows."""
        running = self.rounds._running
        assert running is not None
        self.wait(10)
        self.version += 1
        arrived = [RoundArrived(worker=name, model="net", round=running.id) for name in sorted(running.parts)]
        return [one for event in arrived for one in self.ask(event)]


@pytest.fixture
def team() -> Team:
    """Workers that have made two rounds, so that it is known for how long links are idle."""
    team = Team()
    first = of(Probe, team.begin(NAMES))
    assert sorted(one.to for one in first) == list(NAMES)
    team.wait(FIRST_PAUSE_MS)
    rounds = [team.tick()]
    assert sorted(one.to for one in of(Probe, team.end())) == list(NAMES)
    rounds.append(team.begin(NAMES))
    probes = of(Probe, team.end())
    assert [sorted(one.to for one in of(Reduce, told)) for told in rounds] == 2 * [list(NAMES)]
    assert sorted(one.to for one in probes) == list(NAMES)
    return team


def test_before_the_first_round_links_are_probed_and_it_is_planned_with_what_that_shows() -> None:
    team = Team()
    probes = of(Probe, team.begin(NAMES))
    for probe in probes:
        for peer in probe.sources:
            slow = "c" in (peer.worker, probe.to)
            bps = GIGABIT // 10 if slow else GIGABIT
            team.ask(LinkProbed(worker=probe.to, model="net", round=probe.round, source=peer.worker, bps=bps))
    assert team.rounds.running == 0
    assert team.due_ms() == FIRST_PAUSE_MS - OVERDUE_MS
    team.wait(FIRST_PAUSE_MS)
    assert of(Reduce, team.tick())
    running = team.rounds._running
    assert running is not None
    assert not any(part.takers or part.inputs for part in running.parts["c"])


def test_who_offers_its_next_gradient_already_is_probed_like_all_others(team) -> None:
    assert sorted(one.to for one in of(Reduce, team.begin("bcdef"))) == list(NAMES)
    assert team.offer("a") == []
    team.rounds._standings.of["a"].was_late = True  # so it does not give that up for a new one
    probes = of(Probe, team.end())
    assert sorted(one.to for one in probes) == list(NAMES)
    assert team.rounds.asked_by("a") == 1


def test_while_stripes_are_not_trusted_links_are_probed_all_the_same(team) -> None:
    carrier = team.rounds._carrier
    carrier._trust.failed(1e9)
    team.begin(NAMES)
    running = team.rounds._running
    assert running is not None
    assert running.shape is Shape.RING
    assert sorted(one.to for one in of(Probe, team.end())) == list(NAMES)
    assert not carrier.trusts_stripes


def test_a_round_that_goes_on_slowly_is_begun_anew_once_links_were_probed_if_that_pays(team) -> None:
    told = of(Reduce, team.begin(NAMES))
    running = team.rounds._running
    assert running is not None
    assert {one.planned_ns for one in told} == {running.planned_ns}
    price_ns = round(2 * FIRST_PAUSE_MS * MS) + running.planned_ns

    def slow(left_ns: int, worker: str = "b") -> list[Instruction]:
        now = team.rounds._running or running
        usual_ns = max(1, now.planned_ns)
        told: list[Instruction] = team.ask(
            RoundSlow(worker=worker, model="net", round=now.id, left_ns=left_ns, usual_ns=usual_ns)
        )
        return told

    assert slow(price_ns) == slow(2 * price_ns, worker="stranger") == []
    anew = slow(price_ns + 1)
    assert sorted(one.to for one in of(CancelReduce, anew)) == list(NAMES)
    assert slow(9 * price_ns) == of((Probe, Reduce), anew) == []
    assert team.due_ms() == 2 * FIRST_PAUSE_MS
    team.wait(2 * FIRST_PAUSE_MS)
    assert sorted(one.to for one in of(Probe, team.tick())) == list(NAMES)
    assert team.due_ms() == FIRST_PAUSE_MS
    team.wait(FIRST_PAUSE_MS)
    assert sorted(one.to for one in of(Reduce, team.tick())) == list(NAMES)
    again = team.rounds._running
    assert again is not None
    assert again.version == running.version
    assert slow(2 * price_ns) == []
    assert of(CancelReduce, slow(2 * price_ns + 1))
    team.wait(2 * FIRST_PAUSE_MS)
    team.tick()
    team.wait(FIRST_PAUSE_MS)
    team.tick()
    team.end()
    assert of(Reduce, team.begin(NAMES))
    assert of(CancelReduce, slow(price_ns + 1))


def test_a_round_that_loses_a_worker_is_made_anew_once_queues_are_empty_and_links_were_probed(team) -> None:
    assert of(Reduce, team.begin(NAMES))
    assert of((Reduce, Probe), team.silent("c") + team.tick()) == []
    left = list(NAMES.replace("c", ""))
    assert team.due_ms() == FIRST_PAUSE_MS
    team.wait(FIRST_PAUSE_MS)
    probes = team.tick()
    assert sorted(one.to for one in of(Probe, probes)) == left
    assert of(Reduce, probes) == []
    team.wait(FIRST_PAUSE_MS)
    assert sorted(one.to for one in of(Reduce, team.tick())) == left


def test_links_are_probed_before_the_next_round_once_a_worker_has_come_back(team) -> None:
    team.silent("c")
    team.worker("c", spec=JOB, address="c:1")
    team.says("c", rounds=replace(HELD, version=team.version, applied=team.version, settled=None))
    told = team.begin(NAMES)
    assert sorted(one.to for one in of(Probe, told)) == list(NAMES)
    assert of(Reduce, told) == []
    team.wait(FIRST_PAUSE_MS)
    assert of(Reduce, team.tick())


def test_where_links_do_not_change_a_lost_worker_holds_nobody_up(team) -> None:
    assert of(Reduce, team.begin(NAMES))
    team.rounds._carrier._probing._calm = 8
    assert sorted(one.to for one in of(Reduce, team.silent("c") + team.tick())) == list(NAMES.replace("c", ""))


def test_where_links_cannot_be_probed_a_slow_round_goes_on() -> None:
    team = Team("abc")
    assert of(Reduce, team.begin("abc"))
    running = team.rounds._running
    assert running is not None
    left_ns, usual_ns = 100 * running.planned_ns, running.planned_ns
    slow = RoundSlow(worker="b", model="net", round=running.id, left_ns=left_ns, usual_ns=usual_ns)
    assert team.ask(slow) == []


def test_where_gradients_grow_those_watch_the_pace_who_know_when_their_own_is_whole(team) -> None:
    team.wait(PAUSE_MS)
    for name in NAMES:
        told = team.ask(asks(name, team.version, size_bytes=BIG, computed_from=team.version, grows=name == "c"))
    assert {one.to for one in of(Reduce, told) if one.planned_ns} == {"c"}


LONG_MS = 8 * FIRST_PAUSE_MS


def test_after_a_long_pause_links_are_probed_again_before_the_round(team) -> None:
    team.wait(LONG_MS)
    told = team.begin(NAMES)
    assert sorted(one.to for one in of(Probe, told)) == list(NAMES)
    assert of(Reduce, told) == []
    team.wait(FIRST_PAUSE_MS)
    assert sorted(one.to for one in of(Reduce, team.tick())) == list(NAMES)
    team.end()
    assert of(Reduce, team.begin(NAMES))


def test_where_links_do_not_change_the_round_begins_at_once(team) -> None:
    team.rounds._carrier._probing._calm = 8
    team.wait(LONG_MS)
    assert of(Reduce, team.begin(NAMES))
