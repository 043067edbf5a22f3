"""A get's way through the scheduler: with its update or alone, planned, served, asked for again."""

from __future__ import annotations

import pytest

from mlfabric.protocol import (
    CancelServe,
    Fetch,
    LinkRate,
    LinksReported,
    MemberSilent,
    Serve,
    TransferEnd,
    WorkerHolds,
)
from tests.scheduler.stage import GIGABIT, MS, Stage, ended, get, push, ticket, update


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
        after_update=request.after_update,
        after=after,
        rate_bps=rate_bps,
        reason="",
    )
    fetch = Fetch(to=request.get.worker, get=request.get, server="s", address="s:1", ticket=ticket(made), reason="")
    return [serve, fetch]


def test_a_get_is_planned_at_once(stage):
    request = get("a")
    assert stage.ask(request) == served(request, 1)


def test_a_second_get_is_served_after_the_first(stage):
    first, second = get("a"), get("b")
    stage.ask(first)
    assert stage.ask(second) == served(second, 2, after=(first.get,))


def test_a_get_after_an_update_is_planned_with_it_in_one_round_trip(stage):
    request = get("a", after=update("a"))
    stage.tell(push("a"))
    stage.tell(request)
    assert stage.tick()[2:] == served(request, 2)


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


def test_the_gets_of_a_silent_worker_are_cancelled(stage):
    request = get("a")
    stage.ask(request)
    cancel = CancelServe(to="s", model="net", get=request.get, reason="")
    assert stage.tell(MemberSilent(name="a", incarnation=1)) == [cancel]
    stage.worker("a")
    assert stage.ask(WorkerHolds(worker="a", pushes=(), gets=(request,))) == served(request, 2)


def test_a_get_over_a_link_without_capacity_is_tried_again_later(stage):
    def report(bps):
        return LinksReported(monitor="m", rates=(LinkRate(host="h-a", up=False, bps=bps, age_ns=0),))

    stage.tell(report(0))
    assert stage.ask(get("a")) == []
    assert stage.state.next_wakeup_ns(stage.now_ns) == stage.now_ns + 100 * MS
    stage.tell(report(GIGABIT))
    stage.wait(100)
    assert stage.tick() == served(get("a"), 1)
