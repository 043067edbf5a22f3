"""Synchronous training at the server: an iteration is one place, one step, one version."""

from __future__ import annotations

import pytest

from mlfabric.model.specs import Method
from mlfabric.protocol import (
    Committed,
    Drop,
    Dropped,
    DropReason,
    ModelVersion,
    SumId,
    TransferEnd,
    TransferEnded,
    UpdateKind,
)
from mlfabric.server import actions as act
from tests.server.stage import (
    SIZE,
    Stage,
    abandon,
    answer,
    answer_all,
    apply,
    commit,
    end_report,
    expect,
    expect_sum,
    followed,
    forget,
    grant,
    group_report,
    member,
    offer,
    refuse,
    update,
    void,
)

A, B, C, D = (update(name) for name in "abcd")
S = SumId(1, 0)
ONE = Committed(version=ModelVersion(1, 1), tau=0)


def stage_of(**fields) -> Stage:
    return Stage(method=Method.SYNCHRONOUS, **fields)


@pytest.fixture
def stage():
    return stage_of()


def causes(told: list[act.Action]) -> list[DropReason]:
    outcomes = [outcome for a in told if isinstance(a, act.Answer) for _, outcome in a.outcomes]
    return [outcome.cause for outcome in outcomes if isinstance(outcome, Dropped)]


def mean(*names, version: int = 1, count: int | None = None) -> act.ApplyStep:
    return apply(*names, version=version, kind=act.StepKind.MEAN, lrs=(0.1,) * (count or len(names)))


def test_an_iteration_is_applied_when_all_its_parts_are_here_whatever_came_first(stage):
    stage.tell(expect(A, 1, parts=2))
    assert stage.bring(B, 1, 2, parts=2) == [end_report(B, TransferEnd.RECEIVED)]
    assert stage.bring(A, 1, 1, parts=2) == [end_report(A, TransferEnd.RECEIVED), mean(A, B)]
    assert stage.step(A, B) == [
        forget(A),
        answer(A, ONE),
        forget(B),
        answer(B, ONE, 2),
        group_report(commit(A, 1), commit(B, 1)),
    ]
    assert stage.model.version == ModelVersion(1, 1)


def test_a_sum_is_one_part_with_all_its_members(stage):
    stage.bring_sum(S, 1, member(B), member(C), lrs=(), parts=2, connection=2)
    assert stage.bring(A, 1, 1, parts=2)[-1] == mean(A, S, count=3)
    told = stage.step(A, S)
    assert answer_all(((B, ONE), (C, ONE)), 2) in told
    assert told[-1] == group_report(commit(A, 1), commit(B, 1), commit(C, 1))


def test_the_parts_are_added_up_in_the_order_of_their_first_members(stage):
    stage.bring_sum(S, 1, member(B), member(A), lrs=(), parts=3, connection=2)
    stage.bring(C, 1, 3, parts=3)
    earliest = update("Z")
    assert stage.bring(earliest, 1, 1, parts=3)[-1] == mean(earliest, S, C, count=4)


def test_a_sum_under_momentum_is_one_image():
    stage = stage_of(momentum=0.9)
    assert stage.bring_sum(S, 1, member(A), member(B), lrs=(), size_bytes=SIZE)[-1] == mean(S, count=2)


def test_a_sum_with_learning_rates_is_not_expected(stage):
    (report,) = stage.tell(expect_sum(S, 1, member(A), member(B), lrs=(0.1, 0.1)))
    assert report.event.end is TransferEnd.VOIDED


def test_an_iteration_that_is_not_whole_keeps_the_next_one_waiting(stage):
    stage.bring(A, 1, 1, parts=2)
    assert stage.bring(B, 2, 2, computed_from=1) == [end_report(B, TransferEnd.RECEIVED)]


def test_the_head_iteration_may_exceed_the_budget_and_the_next_one_may_not():
    stage = stage_of(budget_updates=1)
    for name, seq in ((A, 1), (B, 1), (C, 2)):
        stage.tell(expect(name, seq, parts=2))
    assert stage.tell(offer(C, 3)) == [grant(C, 3)]
    assert stage.tell(offer(A, 1)) == [grant(A, 1)]
    assert stage.tell(offer(B, 2)) == [grant(B, 2)]
    stage.tell(expect(D, 2, parts=2))
    assert stage.tell(offer(D, 4)) == []


# Parts that change


def test_fewer_parts_make_an_iteration_whole_as_soon_as_they_are_announced(stage):
    stage.bring(A, 1, 1, parts=3)
    stage.bring(B, 1, 2, parts=3)
    stage.tell(expect(C, 1, parts=3), void(C))
    assert stage.tell(expect(A, 1, parts=2)) == [mean(A, B)]
    assert stage.tell(expect(B, 1, parts=2)) == []


def test_a_part_that_takes_the_place_of_a_voided_one_is_waited_for(stage):
    stage.bring(A, 1, 1, parts=2)
    stage.tell(expect_sum(S, 1, member(B), lrs=(), parts=2), void(S))
    assert stage.bring(B, 1, 3, parts=2)[-1] == mean(A, B)


def test_a_void_that_crosses_the_last_byte_leaves_the_iteration_as_it_was(stage):
    stage.bring(A, 1, 1, parts=3)
    stage.bring(C, 1, 3, parts=3)
    assert stage.tell(void(C)) == [end_report(C, TransferEnd.RECEIVED, again=True)]
    assert stage.tell(expect(A, 1, parts=3)) == []
    assert stage.bring(B, 1, 2, parts=3)[-1] == mean(A, B, C)


def test_parts_that_change_while_the_iteration_is_applied_change_nothing(stage):
    stage.bring(A, 1, 1, parts=2)
    stage.bring(B, 1, 2, parts=2)
    assert stage.tell(expect(A, 1, parts=1)) == []
    assert stage.tell(expect(B, 1, parts=3)) == []
    assert stage.tell(void(B)) == [end_report(B, TransferEnd.RECEIVED, again=True)]
    assert stage.tell(act.TermBegan(term=5)) == []
    assert stage.step(A, B)[-1] == group_report(commit(A, 1), commit(B, 1))


def test_a_part_that_comes_after_the_step_is_dropped_and_blocks_nobody(stage):
    stage.bring(A, 1, 1, parts=1)
    stage.tell(expect(C, 1, parts=2))
    stage.step(A)
    told = stage.bring(C, 1, 3, parts=2)
    assert causes(told) == [DropReason.DELAY_BOUND]
    assert stage.bring(D, 2, 4, computed_from=1)[-1] == mean(D, version=2)


# The gate


@pytest.mark.parametrize(("base", "cause"), [(2, DropReason.DELAY_BOUND), (4, DropReason.FUTURE_VERSION)])
def test_only_what_was_computed_from_the_present_version_is_applied(base, cause):
    stage = stage_of(version=3)
    stage.bring(A, 1, 1, parts=2, computed_from=3)
    told = stage.bring(B, 1, 2, parts=2, computed_from=base)
    assert causes(told) == [cause]
    assert stage.tell(expect(A, 1, parts=1, computed_from=3)) == [mean(A, version=4)]


def test_a_sum_with_a_member_of_an_older_version_is_refused_whole():
    stage = stage_of(version=3)
    stage.bring(A, 1, 1, parts=2, computed_from=3)
    told = stage.bring_sum(S, 1, member(B, 3), member(C, 2), lrs=(), parts=2, connection=2)
    assert told[1:3] == [forget(S), refuse(2)]
    report = told[3]
    assert isinstance(report, act.Report)
    assert isinstance(report.event, TransferEnded)
    assert (report.event.transfer, report.event.end) == (S, TransferEnd.VOIDED)
    assert list(stage.model.incoming.transfers) == [A]


# Steps that are not finite


def refused(stage: Stage, *names, culprits=(), spoilt=()):
    stage_told = stage.tell(
        act.StepRefused(model="net", transfers=names, detail="NaN", culprits=culprits, spoilt=spoilt)
    )
    assert stage.model.version == ModelVersion(1, 0)
    return stage_told


def test_the_culprit_is_dropped_and_the_rest_stays_for_a_step_without_it(stage):
    stage.bring(A, 1, 1, parts=2)
    stage.bring(B, 1, 2, parts=2)
    outcome = Dropped(cause=DropReason.NOT_FINITE, detail="NaN")
    report = end_report(A, TransferEnd.DISCARDED, DropReason.NOT_FINITE, "NaN")
    assert refused(stage, A, B, culprits=(A,)) == [forget(A), answer(A, outcome), report]
    assert stage.tell(expect(B, 1, parts=1)) == [mean(B)]


def test_what_was_spoilt_is_sent_again(stage):
    for connection, name in enumerate((A, B, C), start=1):
        stage.bring(name, 1, connection, parts=3)
    told = refused(stage, A, B, C, culprits=(C,), spoilt=(A,))
    assert told[:3] == [forget(A), refuse(1), end_report(A, TransferEnd.BROKEN, detail="NaN")]
    assert list(stage.model.incoming.transfers) == [B]
    assert stage.tell(void(A)) == [end_report(A, TransferEnd.VOIDED, detail="it is not here")]
    stage.tell(expect(B, 1, parts=2))
    assert stage.bring(A, 1, 4, parts=2)[-1] == mean(A, B)


def test_a_sum_that_is_to_blame_is_refused_whole(stage):
    stage.bring_sum(S, 1, member(A), member(B), lrs=(), parts=2)
    stage.bring(C, 1, 3, parts=2)
    told = refused(stage, S, C, culprits=(S,))
    assert told[:2] == [forget(S), refuse()]
    assert (told[2].event.transfer, told[2].event.end, told[2].event.cause) == (S, TransferEnd.VOIDED, None)


# Beginnings


def test_each_worker_s_initial_weights_are_a_place_of_their_own():
    stage = stage_of(initialised=False)
    stage.tell(expect(B, 1, kind=UpdateKind.INITIAL, parts=1))
    told = stage.bring(A, 1, 1, kind=UpdateKind.INITIAL)
    assert told == [end_report(A, TransferEnd.RECEIVED)]
    assert stage.bring(B, 1, 2, kind=UpdateKind.INITIAL)[-1] == act.InstallInitial(model="net", update=B)


def test_a_new_epoch_voids_an_iteration_that_is_not_whole(stage):
    stage.tell(act.TermBegan(term=1))
    stage.bring(A, 1, 1, parts=3)
    stage.bring_sum(S, 1, member(B), member(C), lrs=(), parts=3, connection=2)
    told = stage.tell(act.TermBegan(term=2))
    assert told == [abandon(), forget(A), abandon(2), forget(S)]
    assert stage.model.holds().received == ()


def test_an_iteration_that_a_new_epoch_keeps_goes_on_without_what_is_dropped_of_it(stage):
    stage.tell(act.TermBegan(term=1))
    stage.seeded().tell(followed(norm=0.0))
    stage.bring(A, 1, 1, parts=2)
    stage.bring(B, 1, 2, parts=2)
    stage.tell(act.TermBegan(term=2))
    stage.tell(Drop(to="s", model="net", update=B, cause=DropReason.NOT_REPLICATED, reason="its worker is gone"))
    assert mean(A) in stage.tell(followed(0, A, norm=0.0))


def test_a_new_epoch_keeps_a_whole_iteration(stage):
    stage.tell(act.TermBegan(term=1))
    stage.bring(A, 1, 1, parts=1)
    stage.bring(B, 2, 2, parts=1, computed_from=1)
    assert stage.tell(act.TermBegan(term=2)) == []
    assert stage.model.holds().received == (A, B)
    assert stage.step(A)[-1] == mean(B, version=2)
