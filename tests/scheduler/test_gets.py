"""A get's way through the scheduler: with its update or alone, planned, served, asked for again."""

from __future__ import annotations

import pytest

from mlfabric.protocol import (
    CancelServe,
    DropReason,
    Expect,
    Fetch,
    GetId,
    Send,
    Serve,
    Tick,
    TransferEnd,
)
from tests.scheduler.stage import GIGABIT, MS, Stage, committed, ended, get, push, ticket, update


@pytest.fixture
def stage():
    stage = Stage().trained("a", "b")
    yield stage
    stage.state.validate()


def served(request, made, after=(), rate_bps=0):
    serve = Serve(
        to="s",
        get=request.get,
        model="net",
        ticket=ticket(made),
        min_version=request.min_version,
        after_updates=() if request.after_update is None else (request.after_update,),
        after=after,
        rate_bps=rate_bps,
        reason="",
    )
    fetch = Fetch(to=request.get.worker, get=request.get, source="s", address="s:1", ticket=ticket(made), reason="")
    return [serve, fetch]


def test_a_lone_get_is_planned_at_once(stage):
    request = get("a")
    assert stage.ask(request) == served(request, 1)


def test_a_server_is_told_how_long_a_get_is_planned_to_take(stage):
    stage.tell(get("a"))
    told = stage.state.handle(Tick(), stage.now_ns)
    assert [i.span_ns for i in told if isinstance(i, Serve)] == [8 * MS]


@pytest.mark.parametrize("window_ms", [3, 100])
def test_gets_gather_until_the_server_can_send_again_however_short_the_batch_window_is(window_ms):
    first, second, third = get("a"), get("b"), get("c")
    stage = Stage(batch_window_ns=window_ms * MS).trained("a", "b", "c")
    stage.ask(first)  # takes 8 ms
    assert stage.ask(second) == []
    stage.wait(1)
    assert stage.ask(third) == []
    assert stage.due_ms() == 5
    stage.wait(5)
    assert stage.tick() == [*served(second, 2, after=(first.get,)), *served(third, 3, after=(second.get,))]


def test_asking_again_does_not_make_a_get_wait_anew(stage):
    stage.ask(get("a"))
    stage.ask(get("b"))
    due_ns = stage.state.next_wakeup_ns(stage.now_ns)
    stage.wait(2)
    stage.ask(get("b"))
    assert stage.state.next_wakeup_ns(stage.now_ns) == due_ns


def gets_served(told) -> list[GetId]:
    return [i.get for i in told if isinstance(i, Serve)]


def test_a_get_after_a_planned_update_waits_until_the_server_can_send_again(stage):
    stage.ask(push("b"))
    stage.wait(7)
    stage.ask(get("a"))
    request = get("b", after=update("b"))
    assert stage.ask(request) == []
    stage.wait(1)
    assert stage.ask(committed(update("b"), 1)) == []
    assert stage.due_ms() == 5
    stage.wait(5)
    assert gets_served(stage.tick()) == [request.get]


def slow_behind_a_gigabit() -> Stage:
    """Let a slow worker's get, of 100 ms at 80 Mbit/s, be under way."""
    stage = Stage().trained("a", "b")
    stage.worker("slow", down_bps=80_000_000)
    stage.ask(get("slow"))
    return stage


@pytest.mark.parametrize("late_ms", [0, 150])
def test_a_get_neither_waits_for_a_slower_workers_nor_follows_it_also_if_that_is_late(late_ms):
    stage = slow_behind_a_gigabit()
    stage.wait(late_ms)  # by now its link is slower still: it has not ended
    (serve, _) = stage.ask(get("a"))
    assert isinstance(serve, Serve)
    assert serve.after == ()
    assert stage.state.models["net"].gets.planned[get("a").get].profile.start_ns == stage.now_ns


def test_a_get_of_the_same_slow_worker_follows_the_one_that_fills_its_link():
    stage = slow_behind_a_gigabit()
    stage.wait(150)
    (serve, _) = stage.ask(get("slow", counter=1))
    assert isinstance(serve, Serve)
    assert serve.after == (get("slow").get,)


def test_the_slowest_of_a_batch_goes_last():
    stage = Stage()
    stage.server()
    stage.worker("slow", down_bps=80_000_000)
    stage.tell(get("slow"))
    for name in ("a", "b"):
        stage.worker(name)
        stage.tell(get(name))
    stage.trained(server=False)
    assert {i.get: i.after for i in stage.tick() if isinstance(i, Serve)} == {
        get("a").get: (),
        get("b").get: (get("a").get,),
        get("slow").get: (get("b").get,),
    }


def test_a_get_after_an_update_is_planned_little_before_that_is_committed(stage):
    request = get("a", after=update("a"))
    stage.tell(push("a"))
    stage.tell(request)
    assert [type(i) for i in stage.tick()] == [Send, Expect]
    assert stage.due_ms() == 6
    stage.wait(6)
    assert stage.tick() == served(request, 2)


def fast_and_slow(slow_ms: float) -> Stage:
    """Let a worker push in 0.8 ms and one in ``slow_ms``, and both want the model then, which takes 8 ms."""
    stage = Stage()
    stage.server(down_bps=10 * GIGABIT)
    stage.worker("a", up_bps=10 * GIGABIT)
    stage.worker("b", up_bps=round(8 * GIGABIT / slow_ms))
    stage.trained(server=False)
    for name in "ab":
        stage.tell(push(name))
        stage.tell(get(name, after=update(name)))
    return stage


@pytest.mark.parametrize(("slow_ms", "waits"), [(5, True), (7, False)])
def test_an_answer_waits_for_the_updates_of_others_where_they_gain_more_than_it_loses(slow_ms: float, waits: bool):
    stage = fast_and_slow(slow_ms)
    told = stage.tick()
    assert stage.pushes.commit_ns[update("b")] / MS == pytest.approx(1000 + 0.8 + slow_ms)
    assert gets_served(told) == ([] if waits else [get("a").get])


def test_answers_that_waited_for_one_another_are_planned_together():
    stage = fast_and_slow(5)
    stage.tick()
    stage.wait(0.8)
    stage.ask(committed(update("a"), 1))
    assert stage.due_ms() == 5
    stage.wait(5)
    assert gets_served(stage.tick()) == [get("a").get, get("b").get]


def test_nobody_waits_for_a_get_whose_update_is_late(stage):
    stage.ask(push("b"))
    late = get("b", after=update("b"))
    stage.ask(late)
    stage.wait(8 + 1.1)  # it should be there, and an eighth of a send is over
    assert gets_served(stage.ask(get("a"))) == [get("a").get]
    assert late.get in stage.state.models["net"].gets.waiting
    stage.wait(20)
    assert gets_served(stage.ask(committed(update("b"), 1))) == [late.get]


def test_a_get_whose_update_is_dropped_is_answered_all_the_same(stage):
    stage.ask(push("b"))
    stage.ask(get("b", after=update("b")))
    stage.wait(20)
    told = stage.ask(ended(update("b"), TransferEnd.DISCARDED, cause=DropReason.NOT_FINITE))
    assert gets_served(told) == [get("b").get]


def test_a_get_waits_while_its_update_has_no_plan(stage):
    stage.ask(push("a"))
    stage.ask(push("b"))
    assert stage.ask(get("b", after=update("b"))) == []


def test_no_get_is_planned_before_there_are_weights():
    stage = Stage()
    stage.server()
    stage.worker("a")
    assert stage.ask(get("a")) == []


def test_a_get_that_is_asked_for_again_gets_the_same_instructions(stage):
    request = get("a")
    first = stage.ask(request)
    assert stage.ask(request) == first


@pytest.mark.parametrize("end", [TransferEnd.SERVED, TransferEnd.BROKEN])
def test_a_get_that_ended_is_planned_anew_if_it_is_asked_for_again(stage, end):
    request = get("a")
    stage.ask(request)
    assert stage.tell(ended(request.get, end)) == []
    assert not stage.state.models["net"].gets.planned
    assert stage.ask(request) == served(request, 2)


@pytest.mark.parametrize("goes", [Stage.silent, Stage.lost])
def test_the_gets_of_a_worker_that_is_gone_are_cancelled_and_broken_off_if_it_does_not_answer(stage, goes):
    request = get("a")
    stage.ask(request)
    assert goes(stage, "a") == [CancelServe(to="s", model="net", get=request.get, reason="", gone=goes is Stage.lost)]
    stage.worker("a")
    assert stage.says("a", gets=(request,)) == served(request, 2)


def test_a_get_over_a_link_without_capacity_keeps_nobody_waiting_and_is_tried_again_later(stage):
    stage.rate("h-a", False, 0)
    assert stage.ask(get("a")) == []
    assert stage.due_ms() == 100
    assert stage.ask(get("b")) == served(get("b"), 1)
    stage.rate("h-a", False, GIGABIT)
    stage.wait(100)
    assert stage.tick() == served(get("a"), 2, after=(get("b").get,))
