"""An update is in one transfer at a time, alone or in a sum; and what a new scheduler is told of sums."""

from __future__ import annotations

import pytest

from mlfabric.protocol import Dropped, DropReason, SumId, TransferEnd
from mlfabric.server import actions as act
from tests.server.stage import (
    Stage,
    abandon,
    apply_sum,
    commit_report,
    end_report,
    expect,
    expect_sum,
    forget,
    member,
    offer,
    refuse,
    update,
)

A, B, C, D = (update(name) for name in "abcd")
S, T = SumId(1, 0), SumId(1, 1)


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    stage.state.validate()


# Exactly once


def test_a_sum_with_a_member_that_was_applied_before_is_refused_and_says_what_became_of_it(stage):
    stage.bring(A, 1)
    stage.step(A)
    again = commit_report(A, 1, lr=0.0, step_norm=0.0, again=True)
    told = stage.tell(expect_sum(S, 2, member(A), member(B)))
    assert told == [again, end_report(S, TransferEnd.VOIDED, detail="settled before: a#0")]
    assert not stage.model.incoming.transfers


def test_a_sum_with_a_member_whose_outcome_its_worker_knows_is_refused(stage):
    stage.tell(expect(update("a", 5), 1, resolved_below=5))
    told = stage.tell(expect_sum(S, 2, member(update("a", 3)), member(B)))
    assert [a.event.end for a in told] == [TransferEnd.VOIDED, TransferEnd.VOIDED]
    assert S not in stage.model.incoming.transfers


def test_a_member_that_falls_below_the_mark_while_its_sum_waits_is_not_applied(stage):
    stage.tell(expect(C, 1))
    stage.bring_sum(S, 2, member(A), member(B), connection=2)
    stage.tell(expect(update("a", 7), 3, resolved_below=7))
    stage.bring(C, 1)
    told = stage.step(C)
    assert told[-1] == end_report(S, TransferEnd.VOIDED, detail=f"{DropReason.DUPLICATE.value}: a#0 was settled before")


def test_a_sum_takes_over_an_update_that_is_not_here(stage):
    stage.tell(expect(A, 1))
    stage.tell(offer(A, 1))
    told = stage.tell(expect_sum(S, 2, member(A), member(B)))
    assert told == [
        abandon(),
        forget(A),
        end_report(A, TransferEnd.VOIDED, detail="sum 0 brings what was to come in it"),
    ]
    assert stage.bring_sum(S, 2, member(A), member(B), connection=2)[-1] == apply_sum(S, 2)


def test_a_sum_does_not_take_over_an_update_that_is_here(stage):
    stage.tell(expect(C, 1))
    stage.bring(A, 2, 2)
    told = stage.tell(expect_sum(S, 3, member(A), member(B)))
    assert told == [end_report(S, TransferEnd.VOIDED, detail="a#0 is here and has a#0 in it")]
    assert list(stage.model.incoming.transfers) == [C, A]


def test_an_update_takes_over_from_a_sum_that_is_not_here(stage):
    stage.tell(expect_sum(S, 1, member(A), member(B)))
    stage.tell(offer(S, 4))
    told = stage.tell(expect(A, 2))
    assert told == [
        abandon(4),
        forget(S),
        end_report(S, TransferEnd.VOIDED, detail="a#0 brings what was to come in it"),
    ]
    assert stage.bring(B, 3, 3) == [end_report(B, TransferEnd.RECEIVED)]


def test_an_update_does_not_take_over_from_a_sum_that_is_here(stage):
    stage.tell(expect(C, 1))
    stage.bring_sum(S, 2, member(A), member(B), connection=2)
    assert stage.tell(expect(A, 3)) == [end_report(A, TransferEnd.VOIDED, detail="sum 0 is here and has a#0 in it")]
    stage.bring(C, 1)
    assert stage.step(C)[-1] == apply_sum(S, 3)


def test_a_sum_takes_over_from_several_others_at_once(stage):
    stage.tell(expect(A, 1))
    stage.tell(expect_sum(S, 2, member(B), member(C)))
    told = stage.tell(expect_sum(T, 3, member(A), member(B), member(D)))
    assert [(a.event.transfer, a.event.end) for a in told] == [(A, TransferEnd.VOIDED), (S, TransferEnd.VOIDED)]
    assert list(stage.model.incoming.transfers) == [T]


def test_one_rival_that_is_here_keeps_the_others_waiting(stage):
    stage.tell(expect(A, 1))
    stage.bring(B, 2, 2)
    told = stage.tell(expect_sum(S, 3, member(A), member(B)))
    assert [a.event.transfer for a in told] == [S]
    assert list(stage.model.incoming.transfers) == [A, B]


# A new scheduler


def test_a_new_epoch_keeps_sums_that_are_here_and_voids_others(stage):
    stage.tell(act.EpochBegan(epoch=1))
    stage.tell(expect(update("e"), 1))
    stage.bring_sum(S, 2, member(A), member(B), connection=2)
    stage.tell(expect_sum(T, 3, member(C), member(D)))
    stage.tell(offer(T, 3))
    assert stage.tell(act.EpochBegan(epoch=2)) == [abandon(3), forget(T), apply_sum(S, 2)]
    assert stage.model.holds().received == (A, B)


def test_what_is_held_names_the_members_of_sums_that_are_here_only(stage):
    stage.tell(expect(C, 1))
    stage.tell(offer(C, 1))
    stage.bring_sum(S, 2, member(A), member(B), connection=2)
    stage.tell(expect_sum(T, 3, member(D)))
    stage.tell(offer(T, 3))
    assert stage.model.holds().received == (C, A, B)


def test_a_sum_of_an_earlier_epoch_is_refused_by_its_members_names():
    stage = Stage(version=8)
    stage.tell(act.EpochBegan(epoch=1))
    stage.bring(C, 1, computed_from=8)
    stage.bring_sum(S, 2, member(A, 8), member(B, 4), connection=2)
    stage.tell(act.EpochBegan(epoch=2))
    told = stage.step(C)
    words = f"{DropReason.DELAY_BOUND.value}: delay 6 is above the bound 4"
    ends = [end_report(name, TransferEnd.BROKEN, detail=words) for name in (A, B)]
    assert told[-4:] == [forget(S), refuse(2), *ends]


def test_what_was_dropped_is_said_of_a_member(stage):
    stage.tell(expect(A, 1))
    stage.tell(offer(A, digest=7))
    dropped = stage.model.applied.outcome(A)
    assert isinstance(dropped, Dropped)
    told = stage.tell(expect_sum(S, 2, member(A), member(B)))
    again = end_report(A, TransferEnd.DISCARDED, dropped.cause, dropped.detail, again=True)
    assert told == [again, end_report(S, TransferEnd.VOIDED, detail="settled before: a#0")]
