"""An update's way through the scheduler: asked for, planned, settled, asked for again."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mlfabric.protocol import (
    Committed,
    Drop,
    DropReason,
    Expect,
    ModelVersion,
    Resolve,
    Send,
    TransferEnd,
    Void,
)
from tests.scheduler.stage import (
    GIGABIT,
    MS,
    SPEC,
    Stage,
    committed,
    ended,
    expected,
    initial,
    push,
    sent,
    seq,
    ticket,
    update,
)


@pytest.fixture
def stage():
    stage = Stage().trained("a", "b", "c")
    yield stage
    stage.state.validate()


@pytest.fixture
def sending(stage):
    """Return a stage at which a's update is on its way."""
    stage.ask(push("a"))
    return stage


def drop(name, cause):
    return Drop(to=name.worker, model="net", update=name, cause=cause, reason="")


def void(name):
    return Void(to="s", model="net", transfer=name, reason="")


def resolve(name, outcome):
    return Resolve(to=name.worker, update=name, outcome=outcome, reason="")


def test_a_lone_update_is_planned_at_once(stage):
    request = push("a")
    assert stage.tell(request) == []
    assert stage.state.next_wakeup_ns(stage.now_ns) <= stage.now_ns
    assert stage.tick() == [sent(request, 1, 1), expected(request, 1, 1)]


def test_a_second_update_is_planned_just_before_the_ingress_runs_dry(sending):
    second = push("b")
    assert sending.ask(second) == []
    assert sending.state.next_wakeup_ns(sending.now_ns) == sending.now_ns + 8 * MS - 2 * MS
    sending.wait(6)
    assert sending.tick() == [sent(second, 2, 2), expected(second, 2, 2, after=(update("a"),))]


def test_the_batch_window_ends_before_a_slow_transfer_does(stage):
    stage.rate("h-s", False, GIGABIT // 100)
    stage.ask(push("a"))
    stage.ask(push("b"))
    assert stage.state.next_wakeup_ns(stage.now_ns) == stage.now_ns + 100 * MS


def test_updates_of_one_instant_are_planned_together_the_shortest_first():
    stage = Stage().trained("fast", "slow")
    stage.rate("h-slow", True, GIGABIT // 10)
    sends = [i for i in stage.ask_all(push("slow"), push("fast")) if isinstance(i, Send)]
    assert [i.to for i in sends] == ["fast", "slow"]
    assert [i.seq for i in sends] == [seq(1), seq(2)]


def test_a_commit_settles_an_update_and_frees_its_place(sending):
    assert sending.tell(ended(update("a"), TransferEnd.RECEIVED)) == []
    assert sending.tell(committed(update("a"), 1)) == []
    assert not sending.pushes.planned
    assert sending.pushes.version == ModelVersion(1, 1)
    assert sending.state.models["net"].delays == {0: 1}
    assert sending.state.context.members["a"].tally.committed == 1


def test_a_commit_that_is_reported_twice_counts_once(sending):
    sending.tell(committed(update("a"), 1))
    sending.tell(committed(update("a"), 1))
    assert sending.state.models["net"].delays == {0: 1}


def test_a_commit_that_the_worker_heard_of_first_is_counted(sending):
    sending.ask(push("a", 1, resolved_below=1))
    sending.tell(committed(update("a"), 1))
    sending.tell(committed(update("a"), 1))
    assert sending.state.models["net"].delays == {0: 1}


def test_a_request_that_is_repeated_gets_the_same_instructions(stage):
    request = push("a")
    first = stage.ask(request)
    assert stage.ask(request) == first


def test_an_update_whose_commit_was_not_heard_of_is_resolved(sending):
    sending.tell(committed(update("a"), 1))
    assert sending.ask(push("a")) == [resolve(update("a"), Committed(version=ModelVersion(1, 1), tau=0))]


def test_a_drop_that_was_not_heard_of_is_resolved(stage):
    stage.ask(push("a", norm=math.nan))
    answer = stage.ask(push("a", norm=math.nan))
    assert [type(i) for i in answer] == [Resolve]
    assert answer[0].outcome.cause is DropReason.NOT_FINITE


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"norm": math.nan}, DropReason.NOT_FINITE),
        ({"norm": math.inf}, DropReason.NOT_FINITE),
        ({"norm": -1.0}, DropReason.NOT_FINITE),
        ({"size_bytes": 16}, DropReason.WRONG_LAYOUT),
        ({"computed_from": 1}, DropReason.FUTURE_VERSION),
    ],
)
def test_an_update_that_cannot_be_applied_is_dropped_at_once(stage, fields, cause):
    assert stage.ask(push("a", **fields)) == [drop(update("a"), cause)]
    assert stage.state.context.members["a"].tally.dropped == {cause.value: 1}
    assert not stage.pushes.waiting


def test_a_version_that_planned_updates_may_have_made_is_not_of_the_future(sending):
    answer = sending.ask(push("b", computed_from=1))
    assert not any(isinstance(i, Drop) for i in answer)


def test_an_update_that_is_past_its_deadline_is_dropped():
    stage = Stage().trained("a", version=9)
    assert stage.ask(push("a", computed_from=4)) == [drop(update("a"), DropReason.DEADLINE_PAST)]


def test_an_update_at_its_deadline_is_planned():
    stage = Stage().trained("a", version=8)
    assert [type(i) for i in stage.ask(push("a", computed_from=4))] == [Send, Expect]


def test_no_more_are_planned_for_a_deadline_than_positions_are_left():
    stage = Stage().trained("a", "b", spec=replace(SPEC, tau_max=0))
    kinds = [type(i) for i in stage.ask_all(push("a"), push("b"))]
    assert sorted(k.__name__ for k in kinds) == ["Drop", "Expect", "Send"]


def test_an_overdue_update_is_overtaken_by_being_given_a_later_seq(stage):
    slow, quick = push("a"), push("b")
    stage.ask(slow)
    stage.wait(7)
    stage.ask(quick)
    assert [p.seq for p in stage.pushes.planned.values()] == [seq(1), seq(2)]
    stage.tell(ended(update("b"), TransferEnd.RECEIVED))
    stage.wait(8 + 50)
    moved = stage.tick()
    assert moved == [expected(slow, 3, 1)]


def test_an_update_that_the_server_has_keeps_its_place(sending):
    sending.tell(ended(update("a"), TransferEnd.RECEIVED))
    sending.wait(200)
    assert sending.ask(push("b")) == [sent(push("b"), 2, 2), expected(push("b"), 2, 2)]
    assert sending.pushes.planned[update("a")].seq == seq(1)


def test_a_broken_update_is_voided_before_it_is_planned_again(stage):
    request = push("a")
    stage.ask(request)
    assert stage.tell(ended(update("a"), TransferEnd.BROKEN)) == [void(update("a"))]
    assert stage.ask(request) == []
    assert stage.tell(ended(update("a"), TransferEnd.VOIDED)) == []
    assert stage.tick() == [sent(request, 2, 2), expected(request, 2, 2)]


def test_the_links_of_a_broken_update_are_free_at_once(sending):
    sending.tell(ended(update("a"), TransferEnd.BROKEN))
    assert sending.ask(push("b")) == [sent(push("b"), 2, 2), expected(push("b"), 2, 2)]


def test_a_void_that_was_not_asked_for_changes_nothing(sending):
    assert sending.tell(ended(update("a"), TransferEnd.VOIDED)) == []
    assert update("a") in sending.pushes.planned


def test_what_a_silent_worker_has_not_sent_is_voided(sending):
    assert sending.silent("a") == [void(update("a"))]


def test_what_a_silent_worker_had_sent_is_committed_and_told_when_it_is_back(sending):
    sending.silent("a")
    sending.worker("a")
    assert sending.says("a", push("a")) == []
    outcome = Committed(version=ModelVersion(1, 1), tau=0)
    assert sending.tell(committed(update("a"), 1)) == [resolve(update("a"), outcome)]


def test_a_worker_that_asks_again_hears_of_a_discard(sending):
    sending.tell(ended(update("a"), TransferEnd.BROKEN))
    sending.tell(push("a"))
    answer = sending.tell(ended(update("a"), TransferEnd.DISCARDED, DropReason.DELAY_BOUND, "too late"))
    assert [type(i) for i in answer] == [Resolve]
    assert answer[0].outcome.cause is DropReason.DELAY_BOUND
    assert sending.state.context.members["a"].tally.dropped == {DropReason.DELAY_BOUND.value: 1}


def test_a_worker_that_was_silent_for_long_still_hears_what_became_of_its_update():
    stage = Stage(silence_ns=100 * MS).trained("a")
    stage.ask(push("a"))
    stage.tell(committed(update("a"), 1))
    stage.silent("a")
    stage.wait(1000)
    stage.tick()
    stage.worker("a")
    answer = stage.says("a", push("a"))
    assert answer == [resolve(update("a"), Committed(version=ModelVersion(1, 1), tau=0))]


def test_a_late_repetition_of_a_request_that_is_over_is_not_planned(sending):
    sending.tell(committed(update("a"), 1))
    sending.ask(push("a", 1, computed_from=1, resolved_below=1))
    assert sending.ask(push("a")) == []


def test_a_request_of_an_earlier_incarnation_is_not_planned(stage):
    stage.silent("a")
    stage.worker("a", incarnation=2)
    assert stage.ask(push("a")) == []
    assert not stage.pushes.waiting


def test_nothing_is_planned_while_the_server_is_away(stage):
    stage.silent("s")
    assert stage.ask(push("a")) == []
    assert stage.state.next_wakeup_ns(stage.now_ns) == stage.now_ns + 10_000 * MS


def test_gradients_wait_for_initial_weights():
    stage = Stage()
    stage.server()
    stage.worker("a")
    assert stage.ask(push("a")) == []
    assert update("a") in stage.pushes.waiting


def test_initial_weights_that_are_asked_for_again_once_the_model_has_others_are_dropped():
    stage = Stage()
    stage.server()
    stage.worker("a")
    stage.ask(initial("a"))
    stage.weights()
    stage.ask(initial("a"))  # its transfer broke
    assert stage.ask(ended(update("a"), TransferEnd.VOIDED)) == [drop(update("a"), DropReason.DUPLICATE)]


def test_initial_weights_that_came_too_late_for_a_server_that_is_gone_are_taken_by_the_next_one():
    stage = Stage().trained("a", "b")
    assert stage.ask(initial("b")) == [drop(update("b"), DropReason.DUPLICATE)]  # which does not hear of it
    stage.silent("s")
    stage.server(incarnation=2)
    assert [type(told) for told in stage.ask(initial("b"))] == [Send, Expect]


def test_an_update_over_a_link_without_capacity_is_dropped_with_that_reason(stage):
    stage.rate("h-a", True, 0)
    assert stage.ask(push("a")) == [drop(update("a"), DropReason.NO_CAPACITY)]


def test_tickets_are_all_different_and_follow_from_the_secret():
    assert len({ticket(n) for n in range(1, 50)}) == 49
    assert ticket(3) == ticket(3)
