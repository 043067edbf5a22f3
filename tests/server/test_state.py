"""The server's state machine: exact actions of the main stories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.protocol import (
    Dropped,
    DropReason,
    InitialReceived,
    ModelVersion,
    TransferEnd,
    UpdateKind,
)
from mlfabric.server import actions as act
from mlfabric.server.hosted import ServerConfig
from mlfabric.server.state import ServerState
from mlfabric.transfer.offers import EARLY_WAIT_NS, UNCLAIMED_NS
from tests.bare import bare
from tests.server.stage import (
    LAYOUT,
    SPEC,
    Stage,
    abandon,
    answer,
    apply,
    commit_report,
    committed,
    end_report,
    expect,
    forget,
    get,
    grant,
    hosted,
    offer,
    refuse,
    serve,
    serving,
    update,
    void,
    want,
)

A, B, C = update("a"), update("b"), update("c")


# The main story


def test_an_update_is_granted_received_applied_answered_and_reported(stage):
    assert stage.tell(expect(A, 1)) == []
    assert stage.tell(offer(A)) == [grant(A)]
    received = stage.tell(act.PayloadReceived(transfer=A, connection=1))
    assert received == [end_report(A, TransferEnd.RECEIVED), apply(A, version=1)]
    assert stage.step(A) == [forget(A), answer(A, committed(1)), commit_report(A, 1)]
    assert not stage.model.incoming.transfers


def test_commits_follow_the_plan_and_not_the_arrival(stage):
    stage.tell(expect(A, 1))
    assert stage.bring(B, 2, 2) == [end_report(B, TransferEnd.RECEIVED)]
    assert stage.bring(A, 1, 1)[-1] == apply(A, version=1)
    assert stage.step(A)[-1] == apply(B, version=2)
    assert stage.step(B)[1] == answer(B, committed(2, tau=1), 2)


def test_an_update_that_is_expected_again_moves_to_its_new_place(stage):
    stage.tell(expect(A, 1))
    stage.bring(B, 2, 2)
    assert stage.tell(expect(A, 3)) == [apply(B, version=1)]


def test_the_next_step_waits_for_the_one_that_is_made_though_that_was_moved(stage):
    stage.bring(A, 1)
    assert stage.bring(B, 2, 2) == [end_report(B, TransferEnd.RECEIVED)]
    assert stage.tell(expect(A, 3)) == []
    assert stage.step(A)[-1] == apply(B, version=2)


def test_offers_and_wants_may_come_before_the_scheduler_s_word_and_a_guessed_ticket_is_refused_in_the_end(stage):
    stage.tell(offer(A), replace(offer(A, 2), ticket=b"guessed"), want(get("a"), 3))
    stage.tell(replace(want(get("a"), 4), ticket=b"guessed"))
    assert stage.state.next_wakeup_ns() == EARLY_WAIT_NS
    assert stage.tell(expect(A, 1)) == [grant(A)]
    assert stage.tell(serve(get("a"))) == [serving(get("a"), 0, 3)]
    assert stage.tick(5) == [refuse(2), refuse(4)]


def test_an_early_offer_whose_connection_broke_is_forgotten(stage):
    stage.tell(offer(A), act.TransferBroken(transfer=A, connection=1, detail=""))
    assert stage.tell(expect(A, 1)) == []


def test_another_model_goes_its_own_way(stage):
    other = replace(SPEC, name="other")
    assert stage.tell(hosted(other)) == [act.CreateStore(spec=other, reason="")]
    assert stage.tell(hosted(other)) == []
    assert [h.spec.name for h in stage.state.holds()] == ["net", "other"]


# Grants


def test_a_transfer_waits_for_the_one_that_the_plan_puts_before_it(stage):
    stage.tell(expect(A, 1), expect(B, 2, after=(A,)))
    assert stage.tell(offer(A, 1)) == [grant(A, 1)]
    assert stage.tell(offer(B, 2)) == []
    assert grant(B, 2) in stage.tell(act.PayloadReceived(transfer=A, connection=1))


def test_a_transfer_does_not_wait_for_one_that_is_not_offered(stage):
    stage.tell(expect(A, 1), expect(B, 2, after=(A,)))
    assert stage.tell(offer(B, 2)) == [grant(B, 2)]


def test_updates_beyond_the_budget_wait_but_the_head_of_the_sequence_never_does():
    stage = Stage(budget_updates=1)
    for name, seq in ((A, 1), (B, 2), (C, 3)):
        stage.tell(expect(name, seq))
    assert stage.tell(offer(B, 2)) == [grant(B, 2)]
    assert stage.tell(offer(C, 3)) == []
    assert stage.tell(offer(A, 1)) == [grant(A, 1)]
    assert grant(C, 3) not in stage.tell(act.PayloadReceived(transfer=A, connection=1))
    stage.step(A)
    stage.tell(act.PayloadReceived(transfer=B, connection=2))
    assert grant(C, 3) in stage.step(B)


def test_initial_weights_are_granted_though_gradients_fill_the_budget():
    stage = Stage(budget_updates=1, initialised=False)
    stage.bring(A, 1)
    stage.tell(expect(B, 2, kind=UpdateKind.INITIAL))
    assert stage.tell(offer(B, 2)) == [grant(B, 2)]


# Broken, voided, offered anew


def test_an_update_whose_connection_breaks_leaves_the_sequence(stage):
    stage.bring(B, 2, 2)
    stage.tell(expect(A, 1), expect(C, 3), offer(C, 3))
    told = stage.tell(act.TransferBroken(transfer=C, connection=3, detail="gone"))
    assert told == [forget(C), end_report(C, TransferEnd.BROKEN, detail="gone")]


def test_a_complete_update_is_committed_though_its_connection_broke(stage):
    stage.tell(expect(A, 1))
    stage.bring(B, 2, 2)
    assert stage.tell(act.TransferBroken(transfer=B, connection=2, detail="gone")) == []
    stage.commit(A, 1)
    assert stage.step(B) == [forget(B), commit_report(B, 2, tau=1)]


def test_the_break_of_an_earlier_connection_is_none(stage):
    stage.tell(expect(A, 1), offer(A, 1))
    assert stage.tell(offer(A, 2)) == [abandon(1), forget(A), grant(A, 2)]
    assert stage.tell(act.TransferBroken(transfer=A, connection=1, detail="")) == []
    assert stage.tell(act.PayloadReceived(transfer=A, connection=1)) == []


def test_a_complete_update_that_is_offered_again_is_answered_there(stage):
    stage.tell(expect(A, 1))
    stage.bring(B, 2, 2)
    assert stage.tell(offer(B, 3)) == []
    stage.commit(A, 1)
    assert answer(B, committed(2, tau=1), 3) in stage.step(B)


def test_what_was_applied_is_answered_at_once_when_it_is_offered_again(stage):
    stage.commit(A, 1)
    assert stage.tell(offer(A, 2)) == [answer(A, committed(1), 2)]


@pytest.mark.parametrize("order", [expect(A, 2), void(A)])
def test_what_was_applied_is_reported_again_when_it_is_expected_again_or_voided(stage, order):
    stage.commit(A, 1)
    assert stage.tell(order) == [commit_report(A, 1, lr=0.0, step_norm=0.0, again=True)]
    assert not stage.model.incoming.transfers


def test_what_was_dropped_stays_dropped_when_it_is_expected_and_offered_again(stage):
    stage.tell(expect(A, 1), offer(A, length=8))
    detail = f"8 bytes with digest {LAYOUT.digest:#x} offered; allowed for net: 16 bytes, digest {LAYOUT.digest:#x}"
    again = end_report(A, TransferEnd.DISCARDED, DropReason.WRONG_LAYOUT, detail, again=True)
    assert stage.tell(expect(A, 2)) == [again]
    assert stage.tell(offer(A, 2)) == [answer(A, Dropped(cause=DropReason.WRONG_LAYOUT, detail=detail), 2)]


def test_a_void_takes_an_update_out_and_closes_its_connection(stage):
    stage.tell(expect(A, 1), offer(A))
    assert stage.tell(void(A)) == [abandon(), forget(A), end_report(A, TransferEnd.VOIDED)]


def test_a_void_lets_the_next_one_commit(stage):
    stage.tell(expect(A, 1))
    stage.bring(B, 2, 2)
    assert stage.tell(void(A)) == [end_report(A, TransferEnd.VOIDED), apply(B, version=1)]


def test_a_void_of_a_complete_update_is_not_obeyed_but_answered(stage):
    stage.tell(expect(A, 1))
    stage.bring(B, 2, 2)
    assert stage.tell(void(B)) == [end_report(B, TransferEnd.RECEIVED, again=True)]
    assert B in stage.model.incoming.transfers


def test_a_void_of_what_is_not_here_is_answered(stage):
    assert stage.tell(void(A)) == [end_report(A, TransferEnd.VOIDED, detail="it is not here")]


def test_an_update_that_nobody_offers_is_given_up(stage):
    stage.tell(expect(A, 1))
    assert stage.state.next_wakeup_ns() == UNCLAIMED_NS
    assert stage.tick(10) == [end_report(A, TransferEnd.BROKEN, detail="it was never offered")]


# What must not be applied


@pytest.mark.parametrize(
    ("version", "fields", "cause", "words"),
    [
        (9, {"computed_from": 4}, DropReason.DELAY_BOUND, "delay 5 is above the bound 4"),
        (3, {"computed_from": 4}, DropReason.FUTURE_VERSION, "the model is at"),
        (0, {"kind": UpdateKind.INITIAL}, DropReason.DUPLICATE, "the model has weights already"),
    ],
)
def test_the_gate_drops_what_must_not_be_applied(version, fields, cause, words):
    stage = Stage(version=version)
    told = stage.bring(A, 1, **fields)
    [dropped] = [outcome for a in told if isinstance(a, act.Answer) for _, outcome in a.outcomes]
    assert isinstance(dropped, Dropped)
    assert dropped.cause is cause
    assert words in dropped.detail
    assert told[-1] == end_report(A, TransferEnd.DISCARDED, cause, dropped.detail)


def test_an_update_at_the_bound_is_applied():
    assert apply(A, version=9) in Stage(version=8).bring(A, 1, computed_from=4)


def test_a_drop_lets_the_next_one_commit():
    stage = Stage(version=9)
    stage.tell(expect(A, 1, computed_from=0))
    stage.bring(B, 2, 2, computed_from=9)
    assert stage.bring(A, 1, computed_from=0)[-1] == apply(B, version=10)


def test_another_layout_on_a_second_connection_leaves_no_connection_writing(stage):
    stage.tell(expect(A, 1), offer(A, 1))
    assert stage.tell(offer(A, 2, digest=7))[:2] == [abandon(1), forget(A)]


def test_another_layout_of_a_complete_update_changes_nothing(stage):
    stage.bring(A, 1)
    assert stage.tell(offer(A, 2, digest=7)) == []
    assert answer(A, committed(1), 2) in stage.step(A)


def test_a_step_that_is_not_finite_is_dropped(stage):
    stage.bring(A, 1)
    told = stage.tell(act.StepRefused(model="net", transfers=(A,), detail="NaN in w", culprits=(A,)))
    outcome = Dropped(cause=DropReason.NOT_FINITE, detail="NaN in w")
    report = end_report(A, TransferEnd.DISCARDED, DropReason.NOT_FINITE, "NaN in w")
    assert told == [forget(A), answer(A, outcome), report]
    assert stage.model.version == ModelVersion(1, 0)


def test_below_the_mark_nothing_is_expected(stage):
    stage.tell(expect(update("a", 5), 1, resolved_below=5), void(update("a", 5)))
    assert [a.event.end for a in stage.tell(expect(update("a", 2), 2))] == [TransferEnd.VOIDED]


# Weights and epochs


def test_initial_weights_are_installed_and_answered():
    stage = Stage(initialised=False)
    told = stage.bring(A, 1, kind=UpdateKind.INITIAL)
    assert told[-1] == act.InstallInitial(model="net", update=A)
    report = act.Report(event=InitialReceived(server="s", model="net", version=ModelVersion(1, 0)))
    done = stage.tell(act.Installed(model="net", update=A))
    assert done == [forget(A), answer(A, committed(0)), report]


def test_initial_weights_are_asked_for_again_in_vain():
    stage = Stage(initialised=False)
    stage.bring(A, 1, kind=UpdateKind.INITIAL)
    stage.tell(act.Installed(model="net", update=A))
    assert stage.tell(void(A)) == [commit_report(A, 0, lr=0.0, step_norm=0.0, again=True)]
    assert stage.tell(offer(A, 2)) == [answer(A, committed(0), 2)]


def test_a_new_epoch_voids_what_nobody_started_and_keeps_the_rest(stage):
    stage.tell(act.TermBegan(term=1))
    for name, seq, after in ((A, 1, ()), (B, 2, ()), (C, 3, (B,))):
        stage.tell(expect(name, seq, after=after))
    stage.tell(offer(B, 2), offer(C, 3), serve(get("a")))
    assert stage.tell(act.TermBegan(term=2)) == [abandon(3)]
    assert list(stage.model.incoming.transfers) == [B]
    assert not stage.model.gets.gets
    assert stage.model.holds().received == (B,)


def test_the_same_epoch_again_voids_nothing(stage):
    stage.tell(act.TermBegan(term=1), expect(A, 1))
    assert stage.tell(act.TermBegan(term=1)) == []
    assert A in stage.model.incoming.transfers


def test_what_is_held_says_what_was_applied(stage):
    stage.commit(A, 1)
    (ids,) = stage.model.holds().applied
    assert (ids.worker, ids.low, ids.recent) == ("a", 0, ((0, ModelVersion(1, 1), 0),))


def test_instructions_for_a_model_that_is_not_held_are_ignored():
    state = ServerState(ServerConfig(name="s", receive_budget_bytes=100))
    for order in (expect(A, 1), void(A), serve(get("a"))):
        assert bare(state.handle(order, 0)) == []
