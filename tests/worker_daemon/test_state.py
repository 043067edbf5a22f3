"""The worker daemon's state machine: what is asked for, tried, asked for again; exact actions."""

from __future__ import annotations

import pytest

from mlfabric.protocol import (
    Drop,
    Dropped,
    DropReason,
    Resolve,
    Tick,
    TransferEnd,
    TransferEnded,
    WorkerHolds,
)
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.state import FIRST_PAUSE_NS, LONGEST_PAUSE_NS
from tests.worker_daemon.stage import (
    DONE,
    LATE,
    Stage,
    answered,
    arrived,
    asks,
    broken,
    delivers,
    fetch,
    get,
    push,
    send,
    settles,
    update,
)


@pytest.fixture
def stage():
    return Stage()


def test_an_update_is_asked_for_sent_and_settled(stage):
    assert stage.push(0) == [asks(push(0))]
    assert stage.tell(send(0)) == [act.StartSend(plan=send(0))]
    assert stage.tell(answered(0, DONE)) == [settles(0, DONE)]
    assert stage.state.next_wakeup_ns() is None


def test_a_model_is_asked_for_fetched_and_delivered(stage):
    assert stage.get(0) == [asks(get(0))]
    assert stage.tell(fetch(0)) == [act.StartFetch(plan=fetch(0))]
    assert stage.tell(arrived(0, 3)) == [delivers(0, 3)]


def test_an_instruction_that_is_repeated_starts_nothing_new(stage):
    stage.push(0)
    stage.get(0)
    stage.tell(send(0), fetch(0))
    assert stage.tell(send(0)) == []
    assert stage.tell(fetch(0)) == []


def test_a_drop_settles(stage):
    stage.push(0)
    drop = Drop(to="a", model="net", update=update(0), cause=DropReason.DEADLINE_PAST, reason="too late")
    dropped = Dropped(cause=DropReason.DEADLINE_PAST, detail="too late")
    assert stage.tell(drop) == [settles(0, dropped)]


def test_an_outcome_that_was_known_before_settles(stage):
    stage.push(0)
    assert stage.tell(Resolve(to="a", update=update(0), outcome=DONE, reason="")) == [settles(0, DONE)]


def test_a_second_outcome_changes_nothing(stage):
    stage.push(0)
    stage.tell(send(0), Resolve(to="a", update=update(0), outcome=DONE, reason=""))
    assert stage.tell(answered(0, DONE)) == []
    assert stage.break_off(0) == []


def test_a_broken_update_is_asked_for_again_after_a_pause_that_doubles(stage):
    stage.push(0)
    pauses = []
    for attempt in range(9):
        ticket = str(attempt).encode()
        stage.tell(send(0, ticket))
        assert stage.break_off(0, ticket) == []
        pauses.append(stage.state.next_wakeup_ns() - stage.now_ns)
        stage.now_ns = stage.state.next_wakeup_ns()
        assert stage.tell(Tick()) == [asks(push(0))]
    assert pauses[:3] == [FIRST_PAUSE_NS, 2 * FIRST_PAUSE_NS, 4 * FIRST_PAUSE_NS]
    assert pauses[-1] == LONGEST_PAUSE_NS


def test_a_tick_before_its_time_asks_for_nothing(stage):
    stage.push(0)
    stage.tell(send(0))
    stage.break_off(0)
    stage.now_ns += FIRST_PAUSE_NS - 1
    assert stage.tell(Tick()) == []


def test_a_broken_get_is_asked_for_again(stage):
    stage.get(0)
    stage.tell(fetch(0), broken(0))
    stage.now_ns += FIRST_PAUSE_NS
    assert stage.tell(Tick()) == [asks(get(0))]


def test_the_break_of_an_earlier_attempt_is_none(stage):
    stage.push(0)
    stage.tell(send(0, b"1"))
    stage.break_off(0, b"1")
    stage.tell(send(0, b"2"))
    assert stage.break_off(0, b"1") == []
    assert stage.state.next_wakeup_ns() is None


def test_a_newer_plan_is_tried_when_the_running_one_breaks(stage):
    stage.push(0)
    stage.tell(send(0, b"1"))
    assert stage.tell(send(0, b"2")) == []
    assert stage.break_off(0, b"1") == [act.StartSend(plan=send(0, b"2"))]
    assert stage.state.next_wakeup_ns() is None


def test_a_plan_that_comes_during_the_pause_is_tried_at_once(stage):
    stage.push(0)
    stage.tell(send(0, b"1"))
    stage.break_off(0, b"1")
    assert stage.tell(send(0, b"2")) == [act.StartSend(plan=send(0, b"2"))]
    assert stage.state.next_wakeup_ns() is None


def test_a_new_scheduler_hears_of_everything_that_is_open(stage):
    stage.push(0)
    stage.push(1)
    stage.get(0)
    stage.tell(send(0))
    holds = WorkerHolds(worker="a", pushes=(push(0), push(1)), gets=(get(0),))
    assert stage.tell(act.TermBegan(term=2)) == []
    assert stage.state.holds() == holds


def test_a_worker_tells_the_next_scheduler_how_many_iterations_it_has_finished(stage):
    stage.tell(act.TermBegan(term=2, clock=7))
    assert stage.state.holds().clock is None
    stage.push(0)
    stage.tell(answered(0, DONE), act.TermBegan(term=3, clock=100))
    assert stage.state.holds().clock == 8


def test_a_worker_that_its_scheduler_had_given_up_counts_from_where_it_is_told(stage):
    stage.tell(act.TermBegan(term=2, clock=7), act.TermBegan(term=2, clock=20))
    assert stage.state.holds().clock == 20


def test_requests_say_below_which_counter_all_outcomes_are_known(stage):
    for counter in range(3):
        stage.push(counter)
    stage.tell(answered(1, DONE))
    assert stage.push(3) == [asks(push(3, resolved_below=0))]
    stage.tell(answered(0, DONE))
    assert stage.push(4) == [asks(push(4, resolved_below=2))]
    for counter in (2, 3, 4):
        stage.tell(answered(counter, DONE))
    assert stage.state.pushing.resolved_below() == 5


def test_pushing_under_a_counter_twice_is_a_broken_invariant(stage):
    stage.push(0)
    with pytest.raises(AssertionError, match="pushed twice"):
        stage.push(0)


# A model that follows an update


def test_a_model_without_its_update_is_fetched_by_a_plan_that_came_meanwhile(stage):
    stage.push(0)
    stage.get(0, after=0)
    stage.tell(fetch(0, b"1"), arrived(0, 6), fetch(0, b"2"))
    again = act.StartFetch(plan=fetch(0, b"2"))
    assert stage.tell(answered(0, DONE)) == [settles(0, DONE), again]


def test_a_model_that_arrives_after_the_outcome_without_the_update_is_fetched_again(stage):
    stage.push(0)
    stage.get(0, after=0)
    stage.tell(fetch(0), answered(0, DONE))
    assert stage.tell(arrived(0, 6)) == [asks(get(0, after=0, min_version=7))]


def test_a_model_after_a_dropped_update_is_delivered_as_it_is(stage):
    stage.push(0)
    stage.get(0, after=0)
    stage.tell(fetch(0), arrived(0, 6))
    assert stage.tell(answered(0, LATE))[:2] == [settles(0, LATE), delivers(0, 6)]


def test_the_scheduler_hears_of_a_drop_that_somebody_else_may_have_told_it_in_vain(stage):
    stage.push(0)
    dropped = Dropped(cause=DropReason.CHANGED, detail="written to")
    report = TransferEnded(
        member="a",
        model="net",
        transfer=update(0),
        end=TransferEnd.DISCARDED,
        cause=DropReason.CHANGED,
        detail="written to",
    )
    assert stage.tell(answered(0, dropped)) == [settles(0, dropped), asks(report)]
    assert stage.tell(answered(0, dropped)) == []


def test_a_model_that_is_here_is_not_asked_for_again(stage):
    stage.push(0)
    stage.get(0, after=0)
    stage.tell(fetch(0), arrived(0, 6))
    assert stage.state.holds().gets == ()
