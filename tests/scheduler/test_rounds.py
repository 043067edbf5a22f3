"""Who takes part in a round, when it begins and when it is over: exact lists of instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mlfabric.model.specs import Method
from mlfabric.network import up_link
from mlfabric.protocol import (
    CancelReduce,
    Instruction,
    MemberEvent,
    MemberLeft,
    MemberLost,
    MemberSilent,
    Peer,
    Reduce,
    ReduceFailed,
    ReduceId,
    ReduceOp,
    ReducePart,
    ReduceRequested,
    ReduceSettled,
    RoundArrived,
    RoundBroken,
    RoundId,
    Tick,
)
from mlfabric.scheduler.meter import Meter
from mlfabric.scheduler.rounds.round_carrier import MOST_BREAKS
from mlfabric.scheduler.rounds.round_table import Rounds
from mlfabric.telemetry import SchedulerMetrics

from .stage import MS, SPEC, Stage, ticket

PATIENCE_MS = 700
JOB = replace(SPEC, method=Method.ALL_REDUCE, tau_max=None)


def asks(worker: str, counter: int = 0, **fields) -> ReduceRequested:
    plain = ReduceRequested(
        reduce=ReduceId(worker, fields.pop("incarnation", 1), counter),
        model="net",
        size_bytes=64,
        dtype="float32",
        op=ReduceOp.SUM,
    )
    return replace(plain, **fields)


class Team(Stage):
    """A stage with workers of an AllReduce job."""

    def __init__(self, *names: str, **settings) -> None:
        super().__init__(**{"round_patience_ns": PATIENCE_MS * MS, **settings})
        for name in names:
            self.worker(name, spec=JOB, address=f"{name}:1")

    @property
    def rounds(self) -> Rounds:
        rounds = self.state.reductions["net"]
        assert isinstance(rounds, Rounds)
        return rounds

    def ask_each(self, workers: str, counter: int = 0, **fields) -> list[Instruction]:
        return [told for worker in workers for told in self.ask(asks(worker, counter, **fields))]

    def arrive_each(self, workers: str, number: int = 1) -> list[Instruction]:
        return [told for worker in workers for told in self.arrive(worker, number)]

    def arrive(self, worker: str, number: int = 1) -> list[Instruction]:
        return self.ask(RoundArrived(worker=worker, model="net", round=RoundId(1, number)))


def settled(worker: str, counter: int = 0, number: int = 1, workers: int = 2) -> ReduceSettled:
    return ReduceSettled(
        to=worker, reduce=ReduceId(worker, 1, counter), round=RoundId(1, number), workers=workers, reason=""
    )


def told(instructions: Sequence[Instruction]) -> list[tuple[str, str]]:
    return [(type(instruction).__name__, instruction.to) for instruction in instructions]


def test_a_round_begins_when_all_have_asked_and_both_ends_of_an_edge_get_its_ticket() -> None:
    team = Team("a", "b")
    assert team.ask(asks("a")) == []
    found = [one for one in team.ask(asks("b")) if isinstance(one, Reduce)]
    assert told(found) == [("Reduce", "a"), ("Reduce", "b")]
    root = next(one for one in found if one.parts[0].parent is None)
    leaf = next(one for one in found if one is not root)
    up, down = ticket(1), ticket(2)
    assert leaf.parts == (
        ReducePart(
            start=0,
            end=64,
            inputs=(),
            parent=Peer(root.to, f"{root.to}:1", up),
            source=Peer(root.to, f"{root.to}:1", down),
            takers=(),
        ),
    )
    assert root.parts[0].inputs == (Peer(leaf.to, "", up),)
    assert root.parts[0].takers == (Peer(leaf.to, "", down),)


def test_nobody_is_settled_before_all_have_the_result() -> None:
    team = Team("a", "b")
    team.ask_each("ab")
    assert team.arrive("a") == []
    assert team.arrive("a") == []
    assert team.arrive("b", number=2) == []
    assert team.arrive("b") == [settled("a"), settled("b")]
    assert (team.rounds.done, team.rounds.workers) == (1, 2)


def test_the_next_round_is_of_the_oldest_requests_and_begins_when_the_last_is_settled() -> None:
    team = Team("a", "b")
    for counter in (0, 1):
        team.ask(asks("a", counter))
        team.ask(asks("b", counter))
    team.arrive("a")
    found = team.arrive("b")
    assert told(found) == [("ReduceSettled", "a"), ("ReduceSettled", "b"), ("Reduce", "a"), ("Reduce", "b")]
    assert [one.reduce for one in found if isinstance(one, Reduce)] == [ReduceId("a", 1, 1), ReduceId("b", 1, 1)]


def test_the_first_round_waits_for_as_many_workers_as_it_should_have() -> None:
    team = Team("a", "b")
    team.ask(asks("a", together=3))
    assert team.ask(asks("b", together=3)) == []
    team.wait(100_000)
    assert team.tick() == []
    team.worker("c", spec=JOB)
    assert told(team.ask(asks("c", together=3))) == [("Reduce", name) for name in "abc"]


def test_one_that_leaves_makes_the_round_void_and_it_is_done_again_without_it() -> None:
    team = Team("a", "b", "c")
    team.ask_each("abc")
    team.arrive("a")
    left = team.ask(MemberLeft(name="c", incarnation=1, detail="killed"))
    assert told(left) == [("CancelReduce", name) for name in "abc"] + [("Reduce", "a"), ("Reduce", "b")]
    assert {one.round for one in left if isinstance(one, CancelReduce)} == {RoundId(1, 1)}
    assert {(one.round, one.workers) for one in left if isinstance(one, Reduce)} == {(RoundId(1, 2), 2)}
    assert team.arrive("a", 1) == []
    assert told(team.arrive_each("ab", 2)) == [("ReduceSettled", "a"), ("ReduceSettled", "b")]


def test_one_that_falls_silent_is_waited_for_a_moment_and_takes_part_if_it_is_back() -> None:
    team = Team("a", "b")
    team.ask_each("ab")
    team.ask(MemberSilent(name="b", incarnation=1))
    team.wait(PATIENCE_MS - 1)
    assert team.tick() == []
    team.worker("b", spec=JOB)
    assert told(team.says("b", reduces=(asks("b"),))) == [
        ("Reduce", "a"),
        ("Reduce", "b"),
    ]


@pytest.mark.parametrize("goes", ["silent for long", "lost", "silent and lost"])
def test_one_that_is_back_too_late_or_was_lost_is_told_that_the_round_was_done_without_it(goes: str) -> None:
    team = Team("a", "b")
    team.ask_each("ab")
    if "silent" in goes:
        assert ("Reduce", "a") not in told(team.ask(MemberSilent(name="b", incarnation=1)))
    if goes == "silent for long":
        team.wait(PATIENCE_MS)
        assert told(team.tick()) == [("Reduce", "a")]
    else:
        answers = told(team.ask(MemberLost(name="b", incarnation=1, detail="its process is stopped")))
        assert answers[-1] == ("Reduce", "a")
    team.worker("b", spec=JOB)
    for _ in range(2):
        assert told(team.ask(asks("b"))) == [("ReduceFailed", "b")]
    team.arrive("a", 2)
    team.ask(asks("a", 1))
    assert told(team.ask(asks("b", 1, settled=None))) == [("Reduce", "a"), ("Reduce", "b")]


def test_one_that_was_computing_while_it_was_silent_misses_no_round_unnoticed() -> None:
    team = Team("a", "b")
    team.ask_each("ab")
    team.arrive_each("ab")
    team.ask(MemberSilent(name="b", incarnation=1))
    assert team.ask(asks("a", 1)) == []
    team.wait(PATIENCE_MS)
    assert told(team.tick()) == [("Reduce", "a")]
    team.worker("b", spec=JOB)
    assert told(team.ask(asks("b", 1, settled=RoundId(1, 1)))) == [("ReduceFailed", "b")]


def test_one_with_the_result_of_a_round_before_the_last_is_told_that_it_was_settled() -> None:
    team, found = Team("a", "b", "c", term=3), RoundId(2, 7)
    team.ask_each("ab", 7, settled=found)
    team.ask(MemberSilent(name="c", incarnation=1))
    team.wait(PATIENCE_MS)
    team.tick()
    for worker in "ab":
        team.ask(RoundArrived(worker=worker, model="net", round=RoundId(3, 1)))
    team.worker("c", spec=JOB)
    team.ask_each("ab", 8, settled=RoundId(3, 1))
    late = team.ask(asks("c", arrived=found))
    assert [(one.to, one.round) for one in late if isinstance(one, ReduceSettled)] == [("c", found)]
    assert told(team.ask(asks("c", 1, settled=found))) == [("ReduceFailed", "c")]


def test_outcomes_that_were_not_heard_are_repeated() -> None:
    team = Team("a", "b")
    team.ask_each("ab")
    team.arrive_each("ab")
    assert team.ask(asks("a", arrived=RoundId(1, 1))) == [settled("a")]


def test_a_part_that_was_not_heard_is_repeated_and_a_result_that_was_not_reported_is_taken() -> None:
    team = Team("a", "b")
    team.ask(asks("a"))
    first = team.ask(asks("b"))
    assert team.ask(asks("a")) == [first[0]]
    team.ask(asks("a", arrived=RoundId(1, 1)))
    assert team.arrive("b") == [settled("a"), settled("b")]


def test_what_differs_fails_for_all_with_the_names_of_who_gave_what() -> None:
    team = Team("a", "b", "c")
    team.tell(asks("a"))
    team.tell(asks("b", dtype="float16"))
    team.state.handle(asks("c", op=ReduceOp.MEAN), team.now_ns)
    due_ns = team.state.next_wakeup_ns(team.now_ns)
    assert due_ns is not None
    failed = team.tick()
    assert told(failed) == [("ReduceFailed", name) for name in "abc"]


def test_an_attempt_that_breaks_is_made_again_after_a_pause_and_given_up_in_the_end() -> None:
    team = Team("a", "b")
    team.ask_each("ab")
    for number in range(1, MOST_BREAKS):
        broken = team.ask(RoundBroken(worker="a", model="net", round=RoundId(1, number), detail="no way to b"))
        assert told(broken) == [("CancelReduce", "a"), ("CancelReduce", "b")]
        team.wait(20 << (number - 1))
        assert told(team.tick()) == [("Reduce", "a"), ("Reduce", "b")]
    last = team.state.handle(
        RoundBroken(worker="a", model="net", round=RoundId(1, MOST_BREAKS), detail="no way to b"), team.now_ns
    )
    failures = [one for one in last if isinstance(one, ReduceFailed)]
    assert [one.to for one in failures] == ["a", "b"]
    assert all("no way to b" in one.reason and "a:" in one.reason for one in failures)


def test_a_new_scheduler_settles_what_was_settled_for_those_who_have_it() -> None:
    team = Team("a", "b", term=2)
    last = RoundId(1, 7)
    team.ask(asks("a", 8, together=2, settled=last))
    found = team.ask(asks("b", 5, together=2, settled=RoundId(1, 6), arrived=last))
    assert found == [
        ReduceSettled(to="b", reduce=ReduceId("b", 1, 5), round=last, workers=2, reason=""),
    ]
    assert told(team.ask(asks("b", 6, together=2, settled=last))) == [("Reduce", "a"), ("Reduce", "b")]


def test_a_new_scheduler_tells_one_that_missed_what_was_settled() -> None:
    team = Team("a", "b", term=2)
    team.ask(asks("a", 8, together=2, settled=RoundId(1, 7)))
    assert told(team.ask(asks("b", 5, together=2, settled=RoundId(1, 6)))) == [("ReduceFailed", "b")]


def test_a_new_scheduler_waits_for_those_of_the_last_round_as_long_as_for_the_silent() -> None:
    team = Team("a", term=2, silence_ns=10_000 * MS)
    assert team.ask(asks("a", 8, together=2, settled=RoundId(1, 7))) == []
    team.wait(9_999)
    assert team.tick() == []
    team.wait(1)
    assert told(team.tick()) == [("Reduce", "a")]


def test_a_model_of_another_method_is_refused_under_the_same_name() -> None:
    team = Team("a")
    refused = team.worker("b", spec=replace(SPEC, tau_max=None))
    assert told(refused) == [("Refuse", "b")]


def test_without_a_way_for_all_the_round_waits_for_one() -> None:
    team = Team("a", "b")
    link = up_link("h-a")
    team.state.context.network.set_rate(link, 0)
    team.ask(asks("a"))
    assert team.ask(asks("b")) == []
    team.state.next_wakeup_ns(team.now_ns)
    assert "no capacity" in team.rounds.waits_for
    team.state.context.network.set_rate(link, 1_000_000_000)
    team.wait(20)
    assert told(team.tick()) == [("Reduce", "a"), ("Reduce", "b")]


def test_rounds_are_counted_and_timed_once_for_all_their_workers() -> None:
    team, metrics = Team("a", "b"), SchedulerMetrics()
    meter = Meter(metrics, "0")

    def say(event: MemberEvent) -> None:
        meter.handle(team.state, event, team.now_ns)
        meter.handle(team.state, Tick(), team.now_ns)

    def sample(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"mlfabric_{name}", {"model": "net"})

    say(asks("a"))
    say(asks("b"))
    say(RoundBroken(worker="a", model="net", round=RoundId(1, 1), detail="oh"))
    assert (sample("rounds_voided_total"), sample("round_seconds_count")) == (1, None)
    team.wait(1000)
    say(Tick())
    team.wait(30)
    for worker in ("a", "b"):
        say(RoundArrived(worker=worker, model="net", round=RoundId(1, 2)))
    assert (sample("rounds_voided_total"), sample("round_seconds_count"), sample("round_bytes_total")) == (1, 1, 64)
    assert sample("round_seconds_sum") == pytest.approx(0.03)
    say(asks("a"))
    assert sample("round_seconds_count") == 1


BIG = 25_000_000


class Rhythmic(Team):
    """Six workers that have done a round, so that it is known who is late in the next."""

    def __init__(self) -> None:
        super().__init__(*"abcdef")
        self.ask_each("abcdef", size_bytes=BIG)
        self.arrive_each("abcdef")
        self.wait(100)

    def early(self) -> list[Reduce]:
        """Let all but f ask, and time pass."""
        assert self.ask_each("abcde", 1, size_bytes=BIG) == []
        self.wait(9)
        assert self.tick() == []
        self.wait(1)
        return [one for one in self.tick() if isinstance(one, Reduce)]


@pytest.fixture
def rhythmic() -> Rhythmic:
    return Rhythmic()


def test_a_round_begins_without_one_that_is_late_and_it_is_told_its_part_when_it_asks(rhythmic) -> None:
    early = rhythmic.early()
    assert told(early) == [("Reduce", name) for name in "abcde"]
    assert {one.workers for one in early} == {6}
    rhythmic.state.next_wakeup_ns(rhythmic.now_ns)
    assert rhythmic.rounds.waits_for == "f"
    (last,) = rhythmic.ask(asks("f", 1, size_bytes=BIG))
    assert isinstance(last, Reduce)
    assert not any(part.inputs or part.takers for part in last.parts)
    for one in early:
        for part in one.parts:
            if any(peer.worker == "f" for peer in part.inputs):
                assert part.inputs[-1].worker == "f"
    assert rhythmic.arrive_each("abcde", 2) == []
    over = told(rhythmic.arrive("f", 2))
    assert over[:6] == [("ReduceSettled", name) for name in "abcdef"]
    assert sorted(over[6:]) == [("Probe", name) for name in "abcdef"]


def test_a_late_one_that_dies_makes_the_round_void_and_the_others_do_it_without_it(rhythmic) -> None:
    rhythmic.early()
    left = rhythmic.ask(MemberLeft(name="f", incarnation=1, detail="killed"))
    assert told(left) == [("CancelReduce", name) for name in "abcde"] + [("Reduce", name) for name in "abcde"]
    assert {one.workers for one in left if isinstance(one, Reduce)} == {5}


def test_a_late_one_that_asks_for_something_else_fails_the_round_for_all(rhythmic) -> None:
    rhythmic.early()
    failed = rhythmic.ask(asks("f", 1, size_bytes=64))
    assert told(failed) == [("CancelReduce", name) for name in "abcde"] + [("ReduceFailed", name) for name in "abcdef"]


def test_a_late_one_that_has_missed_a_round_is_told_so_and_stays_late(rhythmic) -> None:
    rhythmic.ask(MemberLeft(name="f", incarnation=1, detail="restarted"))
    rhythmic.worker("f", incarnation=2, spec=JOB)
    rhythmic.early()
    missed = asks("f", 0, incarnation=2, size_bytes=BIG, settled=RoundId(0, 9))
    assert told(rhythmic.ask(missed)) == [("ReduceFailed", "f")]
    assert told(rhythmic.ask(asks("f", 1, incarnation=2, size_bytes=BIG))) == [("Reduce", "f")]


def settled_team() -> Team:
    """Return a team of three that has done a round, a while ago."""
    team = Team("a", "b", "c")
    team.ask_each("abc")
    team.arrive_each("abc")
    team.wait(100)
    return team


def test_who_was_started_again_has_not_asked_and_nothing_is_due_until_it_does() -> None:
    team = settled_team()
    team.ask_each("ab", 1)
    for worker in "ab":
        team.lost(worker, has_ended=True)
        team.worker(worker, 2, spec=JOB, address=f"{worker}:1")
    team.wait(1000)
    team.tick()
    assert team.state.next_wakeup_ns(team.now_ns) is None


def test_once_a_call_has_failed_for_all_nothing_is_due_until_they_ask_again() -> None:
    team = settled_team()
    team.ask_each("ab", 1)
    assert told(team.ask(asks("c", 1, size_bytes=128)))[0][0] == "ReduceFailed"
    team.wait(1000)
    assert team.state.next_wakeup_ns(team.now_ns) is None


def test_one_that_is_back_after_its_job_was_done_by_others_alone_is_told_that_it_missed_their_rounds() -> None:
    team = Team("a")
    team.ask_each("a")
    team.arrive("a")
    team.lost("a")  # nobody is left
    for worker in "bbc":  # who comes first is asked to come again, for the job of before ends
        team.worker(worker, spec=JOB, address=f"{worker}:1")
    team.ask_each("bc", together=2)
    team.arrive_each("bc", 2)
    team.worker("a", spec=JOB, address="a:1")
    team.ask(asks("a", 1, settled=RoundId(1, 1)))
    assert told(team.ask_each("bc", 1, settled=RoundId(1, 2))) == [("ReduceFailed", "a")]
