"""Links that become faster or slower than planned with: what has not started is planned anew."""

from __future__ import annotations

import pytest

from mlfabric.protocol import CancelSum, Expect, Send, Serve, Sum, SumId, TransferEnd, Void
from mlfabric.scheduler.records import TornBy
from tests.scheduler.stage import GIGABIT, MS, Stage, ended, get, of, push, seq, update
from tests.scheduler.test_sums import narrow


@pytest.fixture
def stage():
    stage = Stage().trained("a", "b", "c")
    yield stage
    stage.state.validate()


def test_a_rate_that_left_the_plan_by_more_than_a_quarter_changes_the_order_of_what_has_not_started(stage):
    stage.ask_all(*map(push, "abc"))
    assert [p.seq for p in stage.pushes.planned.values()] == [seq(1), seq(2), seq(3)]
    told = stage.rate("h-b", True, GIGABIT // 10)
    assert not of(Send, told)
    assert {e.transfer: (e.seq, e.after) for e in of(Expect, told)} == {
        update("c"): (seq(3), (update("a"),)),
        update("b"): (seq(4), (update("c"),)),
    }
    assert {e.ticket for e in of(Expect, told)} == {stage.pushes.planned[update(w)].ticket for w in "bc"}


@pytest.mark.parametrize("bps", [GIGABIT * 5 // 4, GIGABIT * 3 // 4])
def test_a_quarter_is_not_enough(stage, bps):
    stage.ask_all(*map(push, "abc"))
    assert stage.rate("h-s", False, bps) == []


def test_what_has_started_stays_as_it_is(stage):
    stage.ask(push("a"))
    assert stage.rate("h-a", True, GIGABIT // 10) == []
    assert stage.pushes.planned[update("a")].profile.end_ns == stage.now_ns + 8 * MS


def test_a_link_that_nothing_is_planned_over_drifts_unnoticed(stage):
    stage.ask_all(*map(push, "ab"))
    assert stage.rate("h-c", True, GIGABIT // 10) == []


@pytest.mark.parametrize("comes_back", [False, True])
def test_plans_are_made_anew_every_50_ms_at_most_unless_the_rate_comes_back_in_time(stage, comes_back):
    stage.rate("h-s", False, GIGABIT // 20)
    stage.ask_all(*map(push, "abc"))
    assert of(Expect, stage.rate("h-b", True, GIGABIT // 40))
    assert stage.rate("h-b", True, GIGABIT // 100) == []
    assert stage.due_ms() == 50
    if comes_back:
        stage.rate("h-b", True, GIGABIT // 40)
    stage.wait(50)
    assert bool(of(Expect, stage.tick())) is not comes_back


def test_a_link_that_carries_nothing_any_more_leaves_no_place_to_what_was_to_use_it(stage):
    stage.ask_all(*map(push, "abc"))
    told = stage.rate("h-b", True, 0)
    assert of(Void, told) == [Void(to="s", model="net", transfer=update("b"), reason="")]
    stage.tell(ended(update("b"), TransferEnd.VOIDED))
    assert stage.state.context.network.reservation(("net", "push", update("b"))) is None


def test_a_sum_that_has_not_started_is_given_up_and_its_updates_may_be_summed_again(compiled_planner):
    stage = narrow("a", "b", "c")
    stage.ask_all(*map(push, "abc"))
    stage.now_ns -= MS  # the scheduler looks a moment before anything starts
    assert of(CancelSum, stage.rate("h-s", False, GIGABIT // 50))
    assert stage.state.count.torn == {TornBy.DRIFT: 1}
    stage.tell(ended(SumId(1, 0), TransferEnd.VOIDED))
    assert not stage.pushes.apart
    assert of(Sum, stage.ask_all(*map(push, "abc")))


def test_gets_that_have_not_started_are_ordered_anew(stage):
    first = [s.get.worker for s in of(Serve, stage.ask_all(*map(get, "abc")))]
    assert first == ["a", "b", "c"]
    told = stage.rate("h-b", False, GIGABIT // 10)
    assert [type(i) for i in told] == [Serve, Serve]
    assert {s.get.worker: s.after for s in told} == {"c": (get("a").get,), "b": (get("c").get,)}
    assert {s.ticket for s in told} == {stage.state.models["net"].gets.planned[get(w).get].ticket for w in "bc"}
    for worker in "abc":
        stage.tell(ended(get(worker).get, TransferEnd.SERVED))
    assert stage.state.next_wakeup_ns(stage.now_ns) is None
