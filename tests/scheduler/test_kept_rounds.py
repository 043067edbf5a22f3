"""A round that is begun anew as links have become slow: what all of its workers have of its result is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.protocol import CancelReduce, Instruction, Probe, Reduce, RoundKept, RoundSlow

from .stage import of
from .test_probing import Computing
from .test_rounds import BIG
from .test_step_probing import FIRST_PAUSE_MS, HELD, JOB, NAMES, Team, team

__all__ = ["team"]

HALF, QUARTER = BIG // 2, BIG // 4


@pytest.fixture
def slow(team: Team) -> Team:
    """A round has just been found to be slow."""
    told = of(Reduce, team.begin(NAMES))
    assert [(one.after, one.rest) for one in told] == len(NAMES) * [(None, ())]
    running = team.rounds._running
    assert running is not None
    left_ns = 9 * running.planned_ns
    event = RoundSlow(worker="b", model="net", round=running.id, left_ns=left_ns, usual_ns=running.planned_ns // 2)
    void = of(CancelReduce, team.ask(event))
    assert sorted(one.to for one in void) == list(NAMES)
    assert all(one.keep for one in void)
    team.slow_round = running.id
    return team


def keep(team: Team, names: str = NAMES, *ranges: tuple[int, int]) -> list[Instruction]:
    """Let some say what they have; return what follows."""
    told: list[Instruction] = []
    for name in names:
        assert told == []
        told = team.ask(RoundKept(worker=name, model="net", round=team.slow_round, kept=ranges or ((0, HALF),)))
    return told


def goes_on(team: Team, probes: list[Instruction]) -> list[Reduce]:
    """Let links be probed; return who is told what then."""
    assert of(Probe, probes)
    assert of(Reduce, probes) == []
    assert team.due_ms() == FIRST_PAUSE_MS
    team.wait(FIRST_PAUSE_MS)
    told: list[Reduce] = of(Reduce, team.tick())
    assert told
    return told


def test_once_all_have_said_what_they_have_links_are_probed_and_it_goes_on_with_what_some_worker_lacks(slow) -> None:
    assert keep(slow, NAMES[1:], (0, HALF), (HALF + QUARTER, BIG)) == []
    told = goes_on(slow, keep(slow, "a", (QUARTER, BIG)))
    assert sorted(one.to for one in told) == list(NAMES)
    for one in told:
        assert (one.after, one.rest) == (slow.slow_round, ((0, QUARTER), (HALF, HALF + QUARTER)))
        assert one.size_bytes == BIG
        assert max(part.end for part in one.parts) == HALF
    assert f"the other {HALF} bytes of the round before" in slow.rounds.how
    slow.end()
    assert [one.rest for one in of(Reduce, slow.begin(NAMES))] == len(NAMES) * [()]


def test_it_pays_earlier_the_less_is_left(team) -> None:
    team.begin(NAMES)
    running = team.rounds._running
    assert running is not None
    price_ns = round(2 * FIRST_PAUSE_MS * 10**6) + running.planned_ns // 4

    def slow(left_ns: int) -> list[Instruction]:
        usual_ns = running.planned_ns // 4
        event = RoundSlow(worker="b", model="net", round=running.id, left_ns=left_ns, usual_ns=usual_ns)
        told: list[Instruction] = team.ask(event)
        return told

    assert slow(price_ns) == []
    assert of(CancelReduce, slow(price_ns + 4))


def test_what_is_kept_ends_at_whole_blocks(slow) -> None:
    told = goes_on(slow, keep(slow, NAMES, (1, 50), (60, 70)))
    assert {one.rest for one in told} == {((0, 16), (48, BIG))}


def test_a_round_is_of_something_though_all_is_kept(slow) -> None:
    told = goes_on(slow, keep(slow, NAMES, (0, BIG)))
    assert {one.rest for one in told} == {((BIG - 16, BIG),)}


def test_all_is_summed_again_while_somebody_has_not_said_what_it_has(slow) -> None:
    assert keep(slow, NAMES[1:]) == []
    slow.wait(2 * FIRST_PAUSE_MS)
    assert {(one.after, one.rest) for one in goes_on(slow, slow.tick())} == {(None, ())}
    assert keep(slow, "a") == []
    running = slow.rounds._running
    assert running is not None
    assert not running.rest


def test_who_says_so_while_links_are_probed_is_not_too_late(slow) -> None:
    keep(slow, NAMES[1:])
    slow.wait(2 * FIRST_PAUSE_MS)
    probes = slow.tick()
    assert keep(slow, "a") == []
    assert {(one.after, one.rest) for one in goes_on(slow, probes)} == {(slow.slow_round, ((HALF, BIG),))}


def test_all_is_summed_again_if_a_member_is_gone(slow) -> None:
    probes = keep(slow)
    slow.silent("c")
    assert {(one.after, one.rest) for one in goes_on(slow, probes)} == {(None, ())}


def test_all_is_summed_again_if_somebody_has_come_who_has_kept_nothing(slow) -> None:
    assert of(Probe, keep(slow))
    slow.worker("g", spec=JOB, address="g:1")
    slow.says("g", rounds=replace(HELD, version=slow.version, applied=slow.version, settled=None))
    slow.wait(FIRST_PAUSE_MS)
    probes = slow.tick()  # for nothing is known of its link
    assert {(one.after, one.rest) for one in goes_on(slow, probes)} == {(None, ())}


def test_who_was_not_in_it_waits_for_the_next_one(team) -> None:
    team.begin(NAMES[1:])
    running = team.rounds._running
    assert running is not None
    assert running.receivers == {"a"}
    team.offer("a")
    left_ns = 9 * running.planned_ns
    team.ask(RoundSlow(worker="b", model="net", round=running.id, left_ns=left_ns, usual_ns=running.planned_ns))
    team.slow_round = running.id
    told = goes_on(team, keep(team))
    assert {one.to: one.reduce is None for one in told} == {name: name == "a" for name in NAMES}


def test_calls_of_all_reduce_go_on_too() -> None:
    job = Computing()
    job.round()
    assert job.compute()
    running = job.state.reductions["net"]._running
    assert running is not None
    void = of(CancelReduce, job.ask(RoundSlow(worker="b", model="net", round=running.id, left_ns=10**12, usual_ns=1)))
    assert [one.keep for one in void] == 6 * [True]
    for name in job.names:
        probes = job.ask(RoundKept(worker=name, model="net", round=running.id, kept=((0, HALF),)))
    assert len(of(Probe, probes)) == 6
    job.wait(1000)
    assert {(one.after, one.rest) for one in of(Reduce, job.tick())} == {(running.id, ((HALF, BIG),))}


def test_where_each_gets_a_sum_of_its_own_nothing_is_kept(slow) -> None:
    running = next(iter(goes_on(slow, keep(slow)))).round
    assert slow.rounds._running is not None
    slow.rounds._running.summed = dict.fromkeys(NAMES, 2)
    void = slow.ask(RoundSlow(worker="b", model="net", round=running, left_ns=10**12, usual_ns=1))
    assert {one.keep for one in of(CancelReduce, void)} == {False}
