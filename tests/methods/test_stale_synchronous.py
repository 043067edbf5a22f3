"""Stale-synchronous training at the scheduler: who is too far ahead gets no model; who is behind goes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.methods.policy import NO_BOUND
from mlfabric.model.specs import Method
from mlfabric.protocol import (
    AppliedIds,
    DropReason,
    Expect,
    Fetch,
    LinkRate,
    LinksReported,
    MemberLeft,
    MemberSilent,
    Send,
    TransferEnd,
    Welcome,
    WorkerHolds,
)
from tests.scheduler.stage import GIGABIT, SPEC, Stage, committed, ended, get, holds, push, update

SLACK = 1
STALE = replace(SPEC, method=Method.STALE_SYNCHRONOUS, tau_max=None, slack=SLACK)


def staged(slack: int = SLACK, *workers: str) -> Stage:
    return Stage(silence_ns=10**9).trained(*(workers or ("a", "b")), spec=replace(STALE, slack=slack))


@pytest.fixture
def stage():
    stage = staged()
    yield stage
    stage.state.validate()


def finish(stage: Stage, worker: str, counter: int) -> None:
    """Push an update that is committed."""
    version = stage.pushes.version.number
    stage.ask(push(worker, counter, version))
    stage.wait(1000)
    stage.tick()
    stage.tell(ended(update(worker, counter), TransferEnd.RECEIVED))
    stage.tell(committed(update(worker, counter), version + 1))


def fetchers(instructions):
    return [i.to for i in instructions if isinstance(i, Fetch)]


def runs_ahead(stage: Stage) -> None:
    """Let one worker get too far ahead of the other, and wait for its model."""
    finish(stage, "a", 0)
    finish(stage, "a", 1)
    assert stage.ask(get("a", after=update("a", 1))) == []


def test_a_worker_within_the_slack_is_answered(stage):
    finish(stage, "a", 0)
    assert fetchers(stage.ask(get("a", after=update("a", 0)))) == ["a"]


def test_a_worker_beyond_the_slack_waits_for_the_slowest(stage):
    runs_ahead(stage)
    assert stage.state.next_wakeup_ns(stage.now_ns) is None
    (why,) = stage.state.models["net"].gets.held_back("a")
    assert why == "it has finished 2 iterations, the slowest worker 0; a slack of 1 is allowed"
    stage.ask(push("b"))
    assert fetchers(stage.ask(committed(update("b"), 3))) == ["a"]


def test_a_get_counts_the_update_that_it_follows_as_finished(stage):
    finish(stage, "a", 0)
    stage.ask(push("a", 1, 1))
    assert stage.ask(get("a", after=update("a", 1))) == []


def test_without_slack_nobody_begins_an_iteration_before_all_have_finished_the_last():
    stage = staged(0)
    finish(stage, "a", 0)
    assert stage.ask(get("a", after=update("a", 0))) == []
    stage.ask(push("b"))
    assert fetchers(stage.ask(get("b", after=update("b")))) == []
    assert sorted(fetchers(stage.ask(committed(update("b"), 2)))) == ["a", "b"]


@pytest.mark.parametrize(
    "events",
    [
        [push("b", norm=float("nan"))],
        [push("b"), ended(update("b"), TransferEnd.DISCARDED, DropReason.NOT_FINITE)],
        [MemberLeft(name="b", incarnation=1)],
    ],
    ids=["dropped", "discarded by the server", "left"],
)
def test_the_slowest_is_waited_for_until_its_update_is_settled_in_any_way_or_it_has_left(stage, events):
    runs_ahead(stage)
    assert fetchers([told for event in events for told in stage.ask(event)]) == ["a"]


def test_an_update_is_counted_once_however_often_it_is_asked_for(stage):
    finish(stage, "b", 0)
    stage.ask(push("b", 0))
    stage.tell(committed(update("b", 0), 1))
    assert stage.pushes.clocks.finished("b") == 1


def test_a_worker_that_joins_late_begins_where_the_slowest_is(stage):
    finish(stage, "a", 0)
    finish(stage, "b", 0)
    finish(stage, "a", 1)
    (welcome,) = [i for i in stage.worker("late", spec=STALE) if isinstance(i, Welcome)]
    assert welcome.clock == stage.pushes.clocks.finished("late") == 1


def test_a_silent_worker_is_waited_for_until_it_counts_as_left(stage):
    runs_ahead(stage)
    stage.tell(MemberSilent(name="b", incarnation=1))
    stage.wait(999)
    assert fetchers(stage.tick()) == []
    stage.wait(1)
    assert fetchers(stage.tick()) == ["a"]


def test_a_silent_worker_that_comes_back_is_where_it_was(stage):
    finish(stage, "a", 0)
    stage.tell(MemberSilent(name="b", incarnation=1))
    stage.worker("b", spec=STALE)
    assert stage.pushes.clocks.finished("b") == 0


def test_updates_of_workers_that_are_behind_go_first():
    stage = staged(5, "fast", "slow", "third")
    finish(stage, "fast", 0)
    stage.tell(LinksReported(monitor="m", rates=(LinkRate(host="h-slow", up=True, bps=GIGABIT // 10, age_ns=0),)))
    stage.tell(push("fast", 1, 1))
    stage.tell(push("slow", 0, 0))
    told = stage.tick()
    assert [i.to for i in told if isinstance(i, Send)] == ["slow", "fast"]


def test_no_delay_is_too_long(stage):
    told = stage.ask(push("a"))
    assert [i.tau_max for i in told if isinstance(i, Expect)] == [NO_BOUND]
    assert stage.pushes.tau_max == NO_BOUND


def test_a_lone_worker_is_never_held_back():
    stage = staged(0, "a")
    for counter in range(3):
        finish(stage, "a", counter)
        assert fetchers(stage.ask(get("a", counter, after=update("a", counter)))) == ["a"]
        stage.tell(ended(get("a", counter).get, TransferEnd.SERVED))


def begun_anew(*came: tuple[str, int]) -> Stage:
    """A new scheduler, to which the server came back, and workers that said how many iterations they have finished."""
    stage = Stage(term=2, silence_ns=10**9)
    stage.server(held=(STALE,))
    stage.tell(holds(9, spec=STALE, applied=(applied("a"), applied("b"))))
    for name, clock in came:
        stage.worker(name, spec=STALE)
        stage.tell(WorkerHolds(worker=name, pushes=(), gets=(), clock=clock))
    return stage


def applied(worker: str) -> AppliedIds:
    return AppliedIds(worker=worker, incarnation=1, low=4, recent=())


def test_a_new_scheduler_answers_nobody_before_it_has_heard_of_all_that_the_server_knows():
    stage = begun_anew(("a", 5))
    assert stage.ask(get("a")) == []
    (why,) = stage.state.models["net"].gets.held_back("a")
    assert why == "how far b came before the scheduler began anew is not known yet"
    stage.worker("b", spec=STALE)
    assert fetchers(stage.ask(WorkerHolds(worker="b", pushes=(), gets=(), clock=4))) == ["a"]


def test_a_new_scheduler_keeps_the_slack_between_those_who_come_back():
    stage = begun_anew(("a", 5), ("b", 3))
    assert stage.ask(get("a")) == []
    assert fetchers(stage.ask(get("b"))) == ["b"]


def test_who_does_not_come_back_to_a_new_scheduler_is_waited_for_as_if_it_were_silent():
    stage = begun_anew(("a", 5))
    assert stage.ask(get("a")) == []
    stage.wait(1000)
    assert fetchers(stage.tick()) == ["a"]


def test_an_update_that_a_worker_holds_and_the_server_has_committed_is_a_finished_iteration():
    stage = begun_anew(("a", 3))
    stage.worker("b", spec=STALE)
    known = replace(applied("c"), recent=((4, stage.pushes.version, 0),))
    stage.tell(holds(9, spec=STALE, applied=(known,)))
    stage.worker("c", spec=STALE)
    stage.tell(WorkerHolds(worker="c", pushes=(push("c", 4),), gets=(), clock=4))
    assert stage.pushes.clocks.finished("c") == 5


def test_a_newcomer_that_is_there_before_those_who_come_back_is_no_further_behind_than_they():
    stage = begun_anew()
    stage.worker("new", spec=STALE)
    assert stage.ask(WorkerHolds(worker="new", pushes=(), gets=(), clock=None)) == []
    assert stage.pushes.clocks.finished("new") == 0
    stage.worker("a", spec=STALE)
    stage.tell(WorkerHolds(worker="a", pushes=(), gets=(), clock=12))
    assert stage.pushes.clocks.finished("new") == 12


def test_who_was_awaited_and_given_up_begins_where_the_slowest_is_whatever_it_says():
    stage = begun_anew(("a", 40))
    stage.wait(1000)
    stage.tick()
    (welcome,) = [i for i in stage.worker("b", spec=STALE) if isinstance(i, Welcome)]
    assert welcome.clock == 40
    stage.tell(WorkerHolds(worker="b", pushes=(), gets=(), clock=3))
    assert stage.pushes.clocks.finished("b") == 40


def test_who_is_counted_goes_on_whatever_it_says(stage):
    finish(stage, "a", 0)
    stage.tell(WorkerHolds(worker="a", pushes=(), gets=(), clock=9))
    assert stage.pushes.clocks.finished("a") == 1
