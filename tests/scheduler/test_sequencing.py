"""What is slow on its way makes way for what comes, within its deadline; what cannot is not waited for for long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.model.update_rules import RuleSpec, Schedule
from mlfabric.network import Piece, Profile
from mlfabric.protocol import Drop, DropReason, Expect, Send, Sum, SumId, Tick, TransferEnd, Void
from mlfabric.scheduler.records import TornBy
from mlfabric.scheduler.updates.pace import LOOKS, MOST_MISSED, Pace
from tests.scheduler.stage import GIGABIT, MS, SPEC, Stage, committed, committed_together, ended, of, push, update

pytestmark = pytest.mark.usefixtures("compiled_planner")

SLOW_BPS = GIGABIT // 100
"""An update takes 800 ms."""


def fabric(tau_max: int, slow: tuple[str, ...] = ("z",), rule: RuleSpec | None = None) -> Stage:
    """Let fast and slow workers train, with somebody to sum; several slow ones are too many for the server's link.

    A sum of theirs takes 890 ms, and leaves half of that link free.
    """
    stage = Stage()
    stage.server(down_bps=GIGABIT if len(slow) == 1 else 2 * SLOW_BPS)
    stage.aggregator("g", up_bps=SLOW_BPS * 9 // 10)
    spec = replace(SPEC, tau_max=tau_max, rule=rule or SPEC.rule)
    for name in slow:
        stage.worker(name, spec=spec, up_bps=SLOW_BPS)
    return stage.trained("a", "b", "c", spec=spec, server=False)


def seqs(stage: Stage) -> list[str]:
    """Return whose updates are on their way, in the order of commits."""
    planned = sorted(stage.pushes.planned.values(), key=lambda p: p.seq)
    return [p.request.update.worker for p in planned]


# Making way


def test_a_slow_update_makes_way_for_what_comes_after_it():
    stage = fabric(tau_max=40)
    stage.ask(push("z"))
    told = stage.ask(push("a"))
    assert seqs(stage) == ["a", "z"]
    first, again = of(Expect, told)
    assert (first.transfer, again.transfer) == (update("a"), update("z"))
    assert first.seq < again.seq


def test_a_slow_sum_makes_way_as_a_whole():
    stage = fabric(tau_max=40, slow=("x", "y", "z"))
    assert of(Sum, stage.ask_all(*map(push, "xyz")))
    told = stage.ask(push("a"))
    assert seqs(stage)[0] == "a"
    (again,) = [e for e in of(Expect, told) if isinstance(e.transfer, SumId)]
    assert again.seq == max(p.seq for p in stage.pushes.planned.values())
    stage.tell(committed(update("a"), 1))
    stage.tell(ended(again.transfer, TransferEnd.RECEIVED))
    stage.tell(committed_together(*(update(w) for w in "xyz"), number=4))
    assert not stage.pushes.planned


def test_a_sum_whose_coefficients_depend_on_its_versions_keeps_its_place():
    rule = RuleSpec(lr=0.1, schedule=Schedule.STEP, milestones=(2,), factor=0.5)
    stage = fabric(tau_max=40, slow=("x", "y", "z"), rule=rule)
    stage.ask_all(*map(push, "xyz"))
    stage.ask(push("a"))
    assert seqs(stage)[-1] == "a"


def test_what_is_there_soon_keeps_its_place():
    stage = fabric(tau_max=40)
    stage.ask(push("a"))
    stage.wait(7)
    stage.ask(push("b"))
    assert seqs(stage) == ["a", "b"]


def test_what_is_received_keeps_its_place_however_long_it_took():
    stage = fabric(tau_max=40)
    stage.ask(push("z"))
    stage.tell(ended(update("z"), TransferEnd.RECEIVED))
    stage.ask(push("a"))
    assert seqs(stage) == ["z", "a"]


def test_it_makes_way_no_further_than_its_delay_bound_allows():
    stage = fabric(tau_max=1)
    stage.ask(push("z"))
    stage.ask(push("a"))
    assert seqs(stage) == ["a", "z"]


def test_what_would_hold_up_everybody_is_let_go():
    stage = fabric(tau_max=1)
    stage.ask(push("z"))
    told = stage.ask_all(*map(push, "ab"))
    assert [v.transfer for v in of(Void, told)] == [update("z")]
    assert stage.pushes.planned[update("z")].voided
    assert {s.update for s in of(Send, told)} == {update("a"), update("b")}


def test_who_was_turned_away_again_and_again_is_waited_for():
    stage = fabric(tau_max=1)
    for _ in range(MOST_MISSED):
        stage.pushes._pace.missed("z")
    stage.ask(push("z"))
    assert not of(Void, stage.ask_all(*map(push, "ab")))
    assert seqs(stage)[0] == "z"


# Room


def book(stage: Stage, begin_ms: int, end_ms: int) -> None:
    """Reserve most of the server's link for a while."""
    begin_ns, end_ns = stage.now_ns + begin_ms * MS, stage.now_ns + end_ms * MS
    network = stage.state.context.network
    path = (network.path("h-a", "h-s")[-1],)
    network.reserve("booked", path, Profile(begin_ns, end_ns, (Piece(begin_ns, end_ns, GIGABIT * 9 // 10),)))


def test_nobody_waits_for_what_is_reserved_for_much_later():
    for begin_ms, senders in ((8, ["a"]), (7, [])):
        stage = fabric(tau_max=40)
        book(stage, begin_ms, 600)
        assert [s.update.worker for s in of(Send, stage.ask(push("a")))] == senders


def test_a_batch_stays_open_behind_what_is_reserved_rather_than_have_something_late_given_up():
    stage = fabric(tau_max=1)
    stage.ask(push("z"))
    book(stage, 500, 600)
    assert not of(Void, stage.ask_all(*map(push, "ab")))
    assert seqs(stage) == ["z"]


# Hopeless


def moving(stage: Stage, per_s: int, start: int = 0) -> int:
    """Let the fabric commit so many updates a second for a while; return the version."""
    version = start
    for counter in range(12):
        stage.tell(push("a", counter, version))
        stage.tick()
        version += 1
        stage.tell(committed(update("a", counter), version))
        stage.wait(1000 / per_s)
    return version


def test_an_update_that_cannot_be_there_in_time_is_turned_away_at_once_in_words():
    stage = fabric(tau_max=8)
    version = moving(stage, per_s=50)
    stage.tell(push("z", 0, version))
    (drop,) = of(Drop, stage.state.handle(Tick(), stage.now_ns))
    assert drop.update == update("z")
    assert drop.cause is DropReason.DEADLINE_PAST
    assert "its link takes 800 ms" in drop.reason
    assert "its delay allows 8" in drop.reason


def test_it_is_sent_where_others_are_slow_enough():
    stage = fabric(tau_max=8)
    version = moving(stage, per_s=5)
    assert [s.update for s in of(Send, stage.ask(push("z", 0, version)))] == [update("z")]


def test_nobody_is_shut_out():
    stage = fabric(tau_max=8)
    version = moving(stage, per_s=50)
    for counter in range(MOST_MISSED):
        assert of(Drop, stage.ask(push("z", counter, version)))
    assert [s.update for s in of(Send, stage.ask(push("z", MOST_MISSED, version)))] == [update("z", MOST_MISSED)]
    stage.tell(committed(update("z", MOST_MISSED), version + 1))
    assert of(Drop, stage.ask(push("z", MOST_MISSED + 1, version + 1)))


def test_a_sum_that_held_up_others_is_counted():
    stage = fabric(tau_max=3, slow=("x", "y", "z"))
    stage.ask_all(*map(push, "xyz"))
    stage.ask_all(*map(push, "abc"))
    assert stage.state.count.torn[TornBy.HELD_UP] == 1


# The pace


def test_the_pace_is_that_of_the_last_plans():
    pace = Pace()
    assert pace.commits_in(1000 * MS) == 0
    for step in range(2 * LOOKS):
        pace.look(3 * step, 100 * MS * step)
    assert pace.commits_in(1000 * MS) == pytest.approx(30)
    pace.look(1, 10**12)
    assert pace.commits_in(1000 * MS) == 0
