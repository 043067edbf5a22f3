"""What an aggregator does about the models that it is told to hand on, as exact lists of actions."""

from __future__ import annotations

from dataclasses import replace

from mlfabric.aggregator import actions as act
from mlfabric.protocol import CancelHandOn, GetId, ModelVersion, TransferEnd
from tests.aggregator.stage import (
    SIZE,
    Stage,
    get,
    hand_on,
    refuse,
    report,
    serving,
    start_fetch,
    stop_fetch,
    want,
)

OWN, LATER, X, Y = get("a", 0), get("a", 1), get("wx"), get("wy")


def comes(own: GetId = OWN, version: int = 4) -> act.ModelComes:
    return act.ModelComes(get=own, version=ModelVersion(1, version))


def served(who: GetId, connection: int) -> act.GetServed:
    return act.GetServed(get=who, connection=connection)


def gone(who: GetId, connection: int) -> act.GetBroken:
    return act.GetBroken(get=who, connection=connection, detail="it broke")


def cancel(own: GetId) -> CancelHandOn:
    return CancelHandOn(to="a", model="big", get=own, reason="")


def test_a_want_that_overtook_the_order_waits_for_it():
    stage = Stage()
    stage.tell(want(X, 1), hand_on(OWN, X))

    assert stage.tell(comes()) == [serving(OWN, X, 1, 4)]


def test_a_refused_fetch_refuses_those_who_wait():
    stage = Stage()
    stage.tell(hand_on(OWN, X), want(X, 1))

    assert refuse(1) in stage.tell(act.FetchFailed(get=OWN, detail="no"))


def test_one_whose_connection_breaks_keeps_nobody_else_from_the_model():
    stage = Stage()
    stage.tell(hand_on(OWN, X, Y), want(X, 1), want(Y, 2), comes())

    assert stage.tell(gone(X, 1)) == [report(X, TransferEnd.BROKEN, "it broke")]
    stage.tell(act.ModelArrived(get=OWN))
    assert report(Y, TransferEnd.SERVED) in stage.tell(served(Y, 2))


def test_a_model_that_nobody_wants_any_more_is_given_up():
    stage = Stage()
    stage.tell(hand_on(OWN, X), want(X, 1))

    assert stage.tell(gone(X, 1)) == [
        report(X, TransferEnd.BROKEN, "it broke"),
        stop_fetch(OWN),
        report(OWN, TransferEnd.BROKEN, "nobody wants it any more"),
    ]


def test_one_who_never_comes_is_forgotten():
    stage = Stage()
    stage.tell(hand_on(OWN, X, Y), want(X, 1), comes())

    assert stage.tick(9.9) == []
    assert stage.tick(0.2) == [report(Y, TransferEnd.BROKEN, "it was never wanted")]
    assert stage.state.next_wakeup_ns() is None


def test_a_cancelled_model_is_handed_only_to_those_who_are_being_served():
    stage = Stage()
    stage.tell(hand_on(OWN, X, Y), want(X, 1), comes())

    assert stage.tell(cancel(OWN)) == []
    stage.tell(act.ModelArrived(get=OWN))
    assert stage.tell(served(X, 1)) == [report(X, TransferEnd.SERVED), act.ForgetModel(get=OWN, reason="")]
    assert stage.tell(cancel(OWN)) == []


def test_a_cancelled_model_that_nobody_is_served_is_given_up():
    stage = Stage()
    stage.tell(hand_on(OWN, X), want(X, 1))

    assert stage.tell(cancel(OWN)) == [
        refuse(1),
        stop_fetch(OWN),
        report(OWN, TransferEnd.BROKEN, "nobody wants it any more"),
    ]


def test_a_new_scheduler_voids_every_model():
    stage = Stage()
    stage.tell(hand_on(OWN, X), want(X, 1))

    assert stage.tell(act.TermBegan(term=1)) == [stop_fetch(OWN), refuse(1)]


def test_one_who_is_planned_anew_waits_for_the_newer_model():
    stage = Stage()
    stage.tell(hand_on(OWN, X, Y), want(X, 1))

    assert stage.tell(hand_on(LATER, X)) == [refuse(1), start_fetch(hand_on(LATER, X))]
    stage.tell(want(X, 3))
    assert stage.tell(comes(LATER, 5)) == [serving(LATER, X, 3, 5)]


def test_a_second_want_takes_the_place_of_the_first_until_it_is_served():
    stage = Stage()
    stage.tell(hand_on(OWN, X), want(X, 1))

    assert stage.tell(want(X, 2)) == [refuse(1)]
    assert stage.tell(comes()) == [serving(OWN, X, 2, 4)]
    assert stage.tell(want(X, 3)) == [refuse(3)]


def test_models_wait_for_memory_in_their_order_and_the_first_may_exceed_it():
    stage = Stage()
    stage.state.handings._memory.budget_bytes = SIZE // 2
    stage.tell(hand_on(OWN, X))

    assert stage.tell(hand_on(LATER, Y)) == []
    assert stage.tell(cancel(OWN))[-1] == start_fetch(hand_on(LATER, Y))


def test_a_model_that_is_not_known_breaks_for_everybody_at_once():
    detail = "model 'strange' is not known here"
    plan = hand_on(OWN, X)

    assert Stage().tell(replace(plan, model="strange")) == [
        report(OWN, TransferEnd.BROKEN, detail, model="strange"),
        report(X, TransferEnd.BROKEN, detail, model="strange"),
    ]
    stage = Stage()
    stage.tell(plan)
    assert stage.tell(plan) == []


def test_words_about_unknown_models_change_nothing():
    stage = Stage()
    events: list[act.AggregatorEvent] = [
        comes(),
        act.ModelArrived(get=OWN),
        act.FetchFailed(get=OWN, detail=""),
        served(X, 1),
        gone(X, 1),
        cancel(OWN),
    ]

    assert [stage.tell(event) for event in events] == [[]] * len(events)
