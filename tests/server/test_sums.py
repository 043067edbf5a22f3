"""Sums at the server: all or nothing, each update in one transfer at a time and applied once, and what crosses what."""

from __future__ import annotations

import math

import pytest

from mlfabric.model.specs import RuleKind
from mlfabric.protocol import Dropped, DropReason, ModelVersion, SumId, TransferEnd, UpdateKind
from mlfabric.server import actions as act
from mlfabric.transfer.offers import UNCLAIMED_NS
from tests.server.stage import (
    LAYOUT,
    SIZE,
    Stage,
    abandon,
    answer_all,
    apply,
    apply_sum,
    commit,
    commit_report,
    committed,
    end_report,
    expect,
    expect_sum,
    forget,
    get,
    grant,
    group_report,
    member,
    offer,
    refuse,
    serve,
    serving,
    update,
    void,
    want,
)

A, B, C, D = (update(name) for name in "abcd")
S, T = SumId(1, 0), SumId(1, 1)


# The main story


def test_a_sum_makes_a_version_for_each_member_in_one_commit(stage):
    assert stage.tell(expect_sum(S, 1, member(A), member(B))) == []
    assert stage.tell(offer(S)) == [grant(S)]
    received = stage.tell(act.PayloadReceived(transfer=S, connection=1))
    assert received == [end_report(S, TransferEnd.RECEIVED), apply_sum(S, 2)]
    assert stage.step(S) == [
        forget(S),
        answer_all(((A, committed(1)), (B, committed(2, tau=1)))),
        group_report(commit(A, 1), commit(B, 2, tau=1)),
    ]
    assert stage.model.version == ModelVersion(1, 2)
    assert not stage.model.incoming.transfers


def test_the_learning_rates_of_a_sum_are_those_that_it_was_planned_with(stage):
    told = stage.bring_sum(S, 1, member(A), member(B), lrs=(0.5, 0.25))
    assert told[-1] == apply_sum(S, 2, (0.5, 0.25))
    assert stage.step(S)[-1] == group_report(commit(A, 1, lr=0.5), commit(B, 2, tau=1, lr=0.25))


def test_a_sum_under_adam_is_one_step_with_the_learning_rate_of_the_present_version():
    stage = Stage(version=1, kind=RuleKind.ADAM, lr=0.5, warmup_versions=3)
    told = stage.bring_sum(S, 1, member(A, 1), member(B, 1), lrs=())
    assert told[-1] == apply_sum(S, 3, (0.25, 0.25))


def test_the_learning_rate_of_an_update_follows_its_delay_under_adadelay():
    stage = Stage(version=3, lr=0.1, kind=RuleKind.ADADELAY, smoothness=2.0, delay_scale=1.0)
    rate = 1 / (2 + math.sqrt(3 + 1))
    assert stage.bring(A, 1, computed_from=2)[-1] == apply(A, version=4, lrs=(rate,))
    assert stage.step(A)[-1] == commit_report(A, 4, tau=1, lr=rate)


def test_a_sum_under_momentum_is_two_images():
    stage = Stage(momentum=0.9)
    order = expect_sum(S, 1, member(A), member(B), size_bytes=2 * SIZE)
    stage.tell(order)
    assert stage.tell(offer(S, length=2 * SIZE)) == [grant(S, size_bytes=2 * SIZE)]


def test_a_get_waits_for_its_update_in_a_sum(stage):
    stage.tell(expect_sum(S, 1, member(A), member(B)), serve(get("a"), after_updates=(B,)))
    assert stage.tell(want(get("a"), 5)) == []
    stage.bring_sum(S, 1, member(A), member(B))
    assert stage.step(S)[-1] == serving(get("a"), 2, 5)


def test_a_sum_that_is_late_to_be_offered_is_not_given_up(stage):
    stage.tell(expect_sum(S, 1, member(A), member(B)))
    assert stage.state.next_wakeup_ns() is None
    assert stage.tick(2 * UNCLAIMED_NS / 1e9) == []
    assert stage.tell(offer(S)) == [grant(S)]


# The gate


def refused(stage: Stage, told, words: str) -> None:
    """Check that the last thing told is that the sum was refused whole, and that nobody was settled."""
    *_, freed, answered, report = told
    assert (freed, answered) == (forget(S), refuse())
    assert (report.event.transfer, report.event.end, report.event.cause) == (S, TransferEnd.VOIDED, None)
    assert words in report.event.detail
    assert all(stage.model.applied.outcome(u) is None for u in (A, B))
    assert S not in stage.model.incoming.transfers


def test_the_delay_of_a_member_counts_the_members_before_it():
    stage = Stage(version=8)
    assert stage.bring_sum(S, 1, member(A, 4), member(B, 5))[-1] == apply_sum(S, 10)


@pytest.mark.parametrize(
    ("bases", "words"),
    [((3, 8), "delay 5 is above the bound 4"), ((8, 4), "delay 5 is above"), ((8, 9), "the model is at")],
)
def test_a_sum_is_refused_whole_if_one_member_does_not_pass(bases, words):
    stage = Stage(version=8)
    told = stage.bring_sum(S, 1, member(A, bases[0]), member(B, bases[1]))
    refused(stage, told, words)


def test_a_refused_sum_lets_the_next_one_commit_and_its_members_come_alone():
    stage = Stage(version=8)
    stage.tell(expect(C, 2, computed_from=8))
    told = stage.bring_sum(S, 1, member(A, 8), member(B, 3), lrs=(0.1, 0.1))
    refused(stage, told, "delay 6")
    assert stage.bring(C, 2, 2, computed_from=8)[-1] == apply(C, version=9)
    stage.step(C)
    assert stage.bring(A, 3, 3, computed_from=8)[-1] == apply(A, version=10)


def test_a_sum_whose_step_is_not_finite_is_refused_whole(stage):
    stage.bring_sum(S, 1, member(A), member(B))
    told = stage.tell(act.StepRefused(model="net", transfers=(S,), detail="NaN in w", culprits=(S,)))
    refused(stage, told, "NaN in w")
    assert stage.model.version == ModelVersion(1, 0)


@pytest.mark.parametrize("changes", [{"length": 2 * SIZE}, {"digest": 7}])
def test_a_sum_of_another_layout_is_refused_whole(stage, changes):
    stage.tell(expect_sum(S, 1, member(A), member(B)))
    answered, report = stage.tell(offer(S, **changes))
    assert answered == refuse()
    assert f"allowed for net: {SIZE} bytes, digest {LAYOUT.digest:#x}" in report.event.detail
    assert (report.event.end, report.event.cause) == (TransferEnd.VOIDED, None)


def test_nothing_is_summed_into_a_model_without_weights():
    stage = Stage(initialised=False)
    refused(stage, stage.bring_sum(S, 1, member(A), member(B)), "no weights yet")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lrs": (0.1,)}, "allowed: 2"),
        ({"lrs": (0.1, math.nan)}, "each >= 0"),
        ({"lrs": (0.1, -0.1)}, "each >= 0"),
        ({"size_bytes": 2 * SIZE}, f"allowed: 1 images of {SIZE}"),
        ({"kind": UpdateKind.INITIAL}, "allowed: gradients"),
    ],
)
def test_a_sum_that_cannot_be_is_not_expected(stage, fields, words):
    (report,) = stage.tell(expect_sum(S, 1, member(A), member(B), **fields))
    assert (report.event.transfer, report.event.end) == (S, TransferEnd.VOIDED)
    assert words in report.event.detail
    assert not stage.model.incoming.transfers


def test_an_update_twice_in_a_sum_is_not_expected(stage):
    (report,) = stage.tell(expect_sum(S, 1, member(A), member(A)))
    assert "each once" in report.event.detail


# Void, break, expect again


def test_a_void_that_crosses_the_last_byte_comes_too_late(stage):
    stage.tell(expect(C, 1))
    stage.bring_sum(S, 2, member(A), member(B), connection=2)
    it_is_here = [end_report(S, TransferEnd.RECEIVED, again=True)]
    assert stage.tell(void(S)) == it_is_here
    assert stage.commit(C, 1)[-1] == apply_sum(S, 3)
    assert stage.tell(void(S)) == it_is_here
    stage.step(S)
    assert stage.tell(void(S)) == [end_report(S, TransferEnd.VOIDED, detail="it is not here")]


def test_a_void_of_an_update_that_is_here_in_a_sum_is_not_obeyed(stage):
    stage.tell(expect(C, 1))
    stage.bring_sum(S, 2, member(A), member(B), connection=2)
    assert stage.tell(void(A)) == []
    assert S in stage.model.incoming.transfers


def test_a_void_of_an_update_whose_sum_is_not_here_is_answered(stage):
    stage.tell(expect_sum(S, 1, member(A), member(B)))
    assert stage.tell(void(A)) == [end_report(A, TransferEnd.VOIDED, detail="it is not here")]
    assert S in stage.model.incoming.transfers


def test_a_member_of_an_applied_sum_is_answered_alone(stage):
    stage.bring_sum(S, 1, member(A), member(B))
    stage.step(S)
    assert stage.tell(offer(B, 2)) == [answer_all(((B, committed(2, tau=1)),), 2)]
    again = commit_report(B, 2, tau=1, lr=0.0, step_norm=0.0, again=True)
    assert stage.tell(expect(B, 4)) == [again]


# Exactly once


def test_a_sum_with_a_member_that_was_applied_before_is_refused_and_says_what_became_of_it(stage):
    stage.commit(A, 1)
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


LONE, SUMMED = expect(A, 2), expect_sum(S, 2, member(A), member(B))


@pytest.mark.parametrize(("known", "later"), [(LONE, SUMMED), (SUMMED, LONE)])
def test_what_is_not_here_gives_its_updates_to_what_is_to_bring_them(stage, known, later):
    stage.tell(known, offer(known.transfer, 4))
    assert stage.tell(later) == [
        abandon(4),
        forget(known.transfer),
        end_report(known.transfer, TransferEnd.VOIDED, detail=f"{later.transfer} brings what was to come in it"),
    ]
    assert list(stage.model.incoming.transfers) == [later.transfer]


@pytest.mark.parametrize(("known", "later"), [(LONE, SUMMED), (SUMMED, LONE)])
def test_what_is_here_keeps_its_updates(stage, known, later):
    stage.tell(expect(C, 1), known, offer(known.transfer, 2))
    stage.tell(act.PayloadReceived(transfer=known.transfer, connection=2))
    detail = f"{known.transfer} is here and has a#0 in it"
    assert stage.tell(later) == [end_report(later.transfer, TransferEnd.VOIDED, detail=detail)]
    assert list(stage.model.incoming.transfers) == [C, known.transfer]


def test_a_sum_takes_over_from_several_others_at_once(stage):
    stage.tell(expect(A, 1), expect_sum(S, 2, member(B), member(C)))
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
    stage.tell(act.TermBegan(term=1), expect(update("e"), 1))
    stage.bring_sum(S, 2, member(A), member(B), connection=2)
    stage.tell(expect_sum(T, 3, member(C), member(D)), offer(T, 3))
    assert stage.tell(act.TermBegan(term=2)) == [abandon(3), forget(T), apply_sum(S, 2)]
    assert stage.model.holds().received == (A, B)


def test_what_is_held_names_the_members_of_sums_that_are_here_only(stage):
    stage.tell(expect(C, 1), offer(C, 1))
    stage.bring_sum(S, 2, member(A), member(B), connection=2)
    stage.tell(expect_sum(T, 3, member(D)), offer(T, 3))
    assert stage.model.holds().received == (C, A, B)


def test_a_sum_of_an_earlier_epoch_is_refused_by_its_members_names():
    stage = Stage(version=8)
    stage.tell(act.TermBegan(term=1))
    stage.bring(C, 1, computed_from=8)
    stage.bring_sum(S, 2, member(A, 8), member(B, 4), connection=2)
    stage.tell(act.TermBegan(term=2))
    told = stage.step(C)
    words = f"{DropReason.DELAY_BOUND.value}: delay 6 is above the bound 4"
    ends = [end_report(name, TransferEnd.BROKEN, detail=words) for name in (A, B)]
    assert told[-4:] == [forget(S), refuse(2), *ends]


def test_what_was_dropped_is_said_of_a_member(stage):
    stage.tell(expect(A, 1), offer(A, digest=7))
    dropped = stage.model.applied.outcome(A)
    assert isinstance(dropped, Dropped)
    told = stage.tell(expect_sum(S, 2, member(A), member(B)))
    again = end_report(A, TransferEnd.DISCARDED, dropped.cause, dropped.detail, again=True)
    assert told == [again, end_report(S, TransferEnd.VOIDED, detail="settled before: a#0")]
