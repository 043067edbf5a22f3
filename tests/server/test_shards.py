"""A part of a model at its server: orders take effect in turn, refusals change nothing, what is here is kept."""

from __future__ import annotations

import pytest

from mlfabric.model.specs import Method
from mlfabric.protocol import (
    CancelServe,
    Committed,
    Conclude,
    Drop,
    Dropped,
    DropReason,
    Expected,
    HeldBack,
    ModelVersion,
    Prepare,
    Prepared,
    SumId,
    TransferEnd,
    TransferEnded,
    TransferId,
    UpdateId,
    UpdateKind,
)
from mlfabric.server import actions as act
from tests.server.stage import (
    SIZE,
    Stage,
    abandon,
    answer,
    commit,
    commit_report,
    end_report,
    expect,
    followed,
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
    want,
)

A, B, C = update("a"), update("b"), update("c")
G, H = get("a"), get("b")
LR = (0.1,)


@pytest.fixture
def stage():
    return Stage(shards=2)


def prepare(unit: int, *transfers: TransferId, version: int = 1, epoch: int = 1) -> Prepare:
    return Prepare(
        to="s", model="net", unit=unit, transfers=transfers, version=ModelVersion(epoch, version), reason="here"
    )


def conclude(unit: int, commit: bool = True) -> Conclude:
    return Conclude(to="s", model="net", unit=unit, commit=commit, reason="")


def first_pass(unit: int, *transfers: TransferId, version: int = 1, kind=act.StepKind.ONE, lrs=LR) -> act.PrepareStep:
    made = ModelVersion(1, version)
    return act.PrepareStep(model="net", unit=unit, transfers=transfers, kind=kind, lrs=lrs, version=made)


def second_pass(unit: int, *transfers: TransferId, version: int = 1) -> act.CommitStep:
    made = ModelVersion(1, version)
    return act.CommitStep(model="net", unit=unit, transfers=transfers, version=made)


def thrown_away(unit: int) -> act.DiscardStep:
    return act.DiscardStep(model="net", unit=unit)


def prepared(unit: int) -> act.Report:
    return act.Report(event=Prepared(server="s", model="net", unit=unit, accepted=True))


def said(actions: list[act.Action]) -> list[Prepared]:
    return [a.event for a in actions if isinstance(a, act.Report) and isinstance(a.event, Prepared)]


def ends(actions: list[act.Action]) -> list[TransferEnded]:
    return [a.event for a in actions if isinstance(a, act.Report) and isinstance(a.event, TransferEnded)]


def versions(actions: list[act.Action]) -> list[ModelVersion]:
    return [a.version for a in actions if isinstance(a, act.PrepareStep | act.PinModel)]


def pinned(name, version: int) -> act.PinModel:
    return act.PinModel(get=name, model="net", version=ModelVersion(1, version))


def unpinned(name) -> act.UnpinModel:
    return act.UnpinModel(get=name, model="net")


def at(number: int, epoch: int = 1) -> ModelVersion:
    return ModelVersion(epoch, number)


def bring_and_prepare(stage: Stage, name: UpdateId, unit: int, version: int = 1, **fields) -> None:
    """Bring an update and let the store make its first pass."""
    stage.bring(name, unit, **fields)
    assert stage.tell(prepare(unit, name, version=version)) == [first_pass(unit, name, version=version)]
    assert stage.tell(act.StepPrepared(model="net", unit=unit)) == [prepared(unit)]


def make(stage: Stage, name: UpdateId, unit: int) -> None:
    """Bring an update and let the store make its step."""
    bring_and_prepare(stage, name, unit)
    stage.tell(conclude(unit))
    stage.step(name)


# Units


def test_what_is_complete_waits_for_an_order(stage):
    assert stage.bring(A, 1) == [end_report(A, TransferEnd.RECEIVED)]
    assert stage.tick(3600) == []
    assert stage.model.version == at(0)


def test_a_unit_is_prepared_and_committed_on_the_schedulers_word(stage):
    bring_and_prepare(stage, A, 7)
    assert stage.tell(conclude(7)) == [second_pass(7, A)]
    assert stage.step(A) == [forget(A), answer(A, Committed(version=at(1), tau=0)), commit_report(A, 1)]
    assert stage.model.version == at(1)


def test_a_unit_that_is_thrown_away_leaves_its_transfers_as_they_were(stage):
    bring_and_prepare(stage, A, 7)
    assert stage.tell(conclude(7, commit=False)) == [thrown_away(7)]
    assert stage.tell(act.StepDiscarded(model="net", unit=7)) == []
    assert stage.model.version == at(0)
    assert stage.model.holds().received == (A,)
    assert stage.tell(prepare(8, A)) == [first_pass(8, A)]


def test_units_are_prepared_one_after_the_other_whatever_their_seq(stage):
    stage.bring(A, 5)
    stage.bring(B, 1, connection=2)
    stage.tell(prepare(1, A))
    assert stage.tell(prepare(2, B, version=2)) == []
    stage.tell(act.StepPrepared(model="net", unit=1), conclude(1))
    assert stage.step(A)[-1] == first_pass(2, B, version=2)


def test_a_conclusion_may_come_together_with_its_order(stage):
    stage.bring(A, 1)
    stage.tell(prepare(1, A))
    assert stage.tell(conclude(1)) == []
    assert stage.tell(act.StepPrepared(model="net", unit=1)) == [prepared(1), second_pass(1, A)]


def test_an_order_that_comes_again_is_answered_again(stage):
    bring_and_prepare(stage, A, 1)
    assert stage.tell(prepare(1, A)) == [prepared(1)]
    stage.tell(conclude(1))
    assert stage.step(A)[-1] == commit_report(A, 1)


def test_an_iteration_is_one_step_of_the_mean_of_all_its_transfers():
    stage = Stage(shards=2, method=Method.SYNCHRONOUS)
    stage.bring(A, 1, parts=2)
    assert stage.bring(B, 1, connection=2, parts=2) == [end_report(B, TransferEnd.RECEIVED)]
    kind, lrs = act.StepKind.MEAN, (0.1, 0.1)
    assert stage.tell(prepare(1, B, A)) == [first_pass(1, B, A, kind=kind, lrs=lrs)]
    stage.tell(act.StepPrepared(model="net", unit=1))
    assert stage.tell(conclude(1)) == [second_pass(1, B, A)]
    assert stage.step(B, A)[-1] == group_report(commit(B, 1), commit(A, 1))


def test_initial_weights_need_no_order():
    stage = Stage(shards=2, initialised=False)
    told = stage.bring(A, 1, kind=UpdateKind.INITIAL)
    assert told[-1] == act.InstallInitial(model="net", update=A)
    stage.tell(act.Installed(model="net", update=A))
    assert stage.model.initialised
    taken = stage.bring(B, 2, connection=2, kind=UpdateKind.INITIAL)
    assert [end.cause for end in ends(taken)] == [None, DropReason.DUPLICATE]


# Refusals


def refusal_of(stage: Stage, order: Prepare) -> Prepared:
    [only] = said(stage.tell(order))
    assert not only.accepted
    assert stage.tell(conclude(order.unit, commit=False)) == []
    assert stage.tell(conclude(order.unit)) == []
    return only


def test_a_unit_of_what_is_not_complete_is_refused(stage):
    stage.tell(expect(A, 1))
    refused = refusal_of(stage, prepare(1, A, B))
    assert (refused.culprits, refused.cause) == ((), None)
    assert refused.detail == "not complete here: a#0, b#0"


def test_a_unit_that_would_make_another_version_is_refused(stage):
    stage.bring(A, 1)
    refused = refusal_of(stage, prepare(1, A, version=2))
    assert not refused.culprits
    assert "it would make" in refused.detail


def test_only_an_iteration_has_several_transfers(stage):
    stage.bring(A, 1)
    stage.bring(B, 2, connection=2)
    assert "2 transfers; allowed: one" in refusal_of(stage, prepare(1, A, B)).detail


def test_an_update_above_the_delay_bound_is_refused_and_kept():
    stage = Stage(version=9, shards=2)
    stage.bring(A, 1, computed_from=2, tau_max=4)
    refused = refusal_of(stage, prepare(1, A, version=10))
    assert (refused.culprits, refused.cause) == ((A,), DropReason.DELAY_BOUND)
    assert stage.model.holds().received == (A,)


def test_an_update_that_is_not_finite_is_refused_and_kept_until_it_is_dropped(stage):
    stage.bring(A, 1)
    stage.tell(prepare(1, A))
    [refused] = said(stage.tell(act.PrepareRefused(model="net", unit=1, detail="NaN", culprits=(A,))))
    assert (refused.accepted, refused.culprits, refused.cause) == (False, (A,), DropReason.NOT_FINITE)
    assert stage.tell(conclude(1, commit=False)) == []
    assert stage.model.holds().received == (A,)
    outcome = Dropped(cause=DropReason.NOT_FINITE, detail="its part elsewhere is NaN")
    dropped = Drop(to="s", model="net", update=A, cause=DropReason.NOT_FINITE, reason=outcome.detail)
    assert stage.tell(dropped) == [
        forget(A),
        answer(A, outcome),
        end_report(A, TransferEnd.DISCARDED, DropReason.NOT_FINITE, outcome.detail),
    ]


def test_nothing_that_is_prepared_is_dropped(stage):
    bring_and_prepare(stage, A, 1)
    assert stage.tell(Drop(to="s", model="net", update=A, cause=DropReason.DELAY_BOUND, reason="")) == []
    assert stage.tell(conclude(1)) == [second_pass(1, A)]


def test_a_drop_behind_a_conclusion_takes_effect_once_the_step_is_thrown_away(stage):
    bring_and_prepare(stage, A, 1)
    stage.tell(conclude(1, commit=False))
    assert stage.tell(Drop(to="s", model="net", update=A, cause=DropReason.NOT_FINITE, reason="NaN")) == []
    assert stage.tell(act.StepDiscarded(model="net", unit=1)) == [
        forget(A),
        answer(A, Dropped(cause=DropReason.NOT_FINITE, detail="NaN")),
        end_report(A, TransferEnd.DISCARDED, DropReason.NOT_FINITE, "NaN"),
    ]


def test_a_unit_waits_for_the_replica_and_says_so(stage):
    stage.bring(A, 1)
    stage.seeded()
    stage.tell(followed(updates=0))
    [told] = stage.tell(prepare(1, A))
    assert isinstance(told, act.Report)
    assert isinstance(told.event, HeldBack)
    assert told.event.transfers == (A,)
    assert stage.tell(followed(0, A, updates=0)) == [first_pass(1, A)]


# Gets


def test_the_version_of_a_get_is_pinned_at_its_turn_and_sent_when_it_is_wanted(stage):
    assert stage.tell(serve(G, version=at(0))) == [pinned(G, 0)]
    make(stage, A, 1)
    assert stage.tell(want(G)) == [serving(G, 0)]
    assert stage.tell(act.GetServed(get=G, connection=1)) == [end_report(G, TransferEnd.SERVED)]


def test_a_get_behind_a_unit_waits_for_the_version_that_this_makes(stage):
    bring_and_prepare(stage, A, 1)
    assert stage.tell(serve(G, version=at(1))) == []
    assert stage.tell(want(G, 9)) == []
    stage.tell(conclude(1))
    assert stage.step(A)[-2:] == [pinned(G, 1), serving(G, 1, 9)]


def test_a_get_of_an_earlier_version_is_served_while_a_step_is_made(stage):
    stage.tell(serve(G, version=at(0)))
    bring_and_prepare(stage, A, 1)
    stage.tell(conclude(1))
    assert stage.tell(want(G, 9)) == [serving(G, 0, 9)]


def test_a_get_of_a_version_that_is_not_there_is_given_up(stage):
    told = stage.tell(serve(G, version=at(4)))
    assert [end.end for end in ends(told)] == [TransferEnd.BROKEN]
    assert not stage.model.gets.gets


@pytest.mark.parametrize("is_wanted", [False, True])
def test_what_was_pinned_for_a_get_that_is_cancelled_is_unpinned(stage, is_wanted):
    stage.tell(serve(G, version=at(0)))
    bring_and_prepare(stage, A, 1)
    if is_wanted:
        stage.tell(serve(H, version=at(1)), want(H, 4))
    name = H if is_wanted else G
    told = stage.tell(CancelServe(to="s", model="net", get=name, reason=""))
    assert told == ([refuse(4)] if is_wanted else [unpinned(G)])


def test_what_nobody_comes_for_is_unpinned(stage):
    stage.tell(serve(G, version=at(0)))
    assert stage.tick(10) == [unpinned(G), end_report(G, TransferEnd.BROKEN, detail="it was never wanted")]


def test_a_get_that_is_planned_anew_at_a_later_version_is_pinned_anew(stage):
    stage.tell(serve(G, version=at(0)))
    make(stage, A, 1)
    assert stage.tell(serve(G, b"new", version=at(1))) == [unpinned(G), pinned(G, 1)]


def test_the_orders_wait_at_a_get_when_all_copies_of_the_weights_are_in_use(stage):
    stage.tell(serve(G, version=at(0)), want(G, 9))
    make(stage, A, 1)
    assert stage.tell(serve(H, version=at(1))) == []
    assert stage.state.lacking_bytes() == SIZE
    assert stage.tell(act.GetServed(get=G, connection=9))[-1] == pinned(H, 1)
    assert not stage.state.lacking_bytes()


# The scheduler goes and comes


@pytest.mark.parametrize("epoch", [0, 2])
def test_who_is_admitted_again_forgets_what_is_not_concluded_and_keeps_what_is_complete(stage, epoch):
    bring_and_prepare(stage, A, 1)
    stage.bring(B, 2, connection=2)
    stage.tell(prepare(2, B, version=2), serve(G, version=at(2)), want(G, 9))
    assert stage.tell(act.TermBegan(term=epoch)) == [refuse(9), thrown_away(1)]
    assert stage.model.holds().received == (A, B)
    assert stage.tell(act.StepDiscarded(model="net", unit=1)) == []
    assert stage.tell(prepare(9, B)) == [first_pass(9, B)]


def test_a_first_pass_that_ends_after_its_order_was_forgotten_is_thrown_away_in_silence(stage):
    stage.bring(A, 1)
    stage.tell(prepare(1, A))
    assert stage.tell(act.TermBegan(term=2)) == []
    assert stage.tell(prepare(1 << 22, A)) == []
    assert stage.tell(act.StepPrepared(model="net", unit=1)) == [thrown_away(1)]
    assert stage.tell(act.StepDiscarded(model="net", unit=1)) == [first_pass(1 << 22, A)]


def test_what_is_concluded_is_committed_whatever_becomes_of_the_scheduler(stage):
    stage.bring(A, 1)
    stage.tell(prepare(1, A), conclude(1), act.TermBegan(term=2))
    assert stage.tell(act.StepPrepared(model="net", unit=1))[-1] == second_pass(1, A)
    assert stage.step(A)[-1] == commit_report(A, 1)


def test_a_new_scheduler_hears_of_what_is_complete_and_the_rest_is_broken_off(stage):
    stage.bring(A, 1)
    stage.tell(expect(B, 2))
    assert stage.tell(offer(B, 2)) == [grant(B, 2)]
    assert stage.model.holds().received == (A,)
    assert stage.tell(act.TermBegan(term=2)) == [abandon(2), forget(B)]


def test_pins_that_are_not_being_sent_are_released_by_a_new_scheduler_only(stage):
    stage.tell(serve(G, version=at(0)))
    assert stage.tell(act.TermBegan(term=0)) == []
    assert stage.tell(act.TermBegan(term=2)) == [unpinned(G)]


def test_a_new_scheduler_names_a_sum_by_its_members():
    stage = Stage(shards=2, method=Method.SYNCHRONOUS)
    whole = SumId(1, 4)
    members: tuple[Expected, ...] = (member(A), member(B))
    stage.bring_sum(whole, 1, *members, lrs=())
    stage.tell(act.TermBegan(term=2))
    assert stage.model.holds().received == (A, B)
    assert "has b#0 in it, too" in refusal_of(stage, prepare(1, A)).detail
    told = stage.tell(prepare(2, B, A))
    assert told == [first_pass(2, whole, kind=act.StepKind.MEAN, lrs=(0.1, 0.1))]


def test_a_part_takes_over_the_server_epoch_that_counts_for_all(stage):
    stage.bring(A, 1)
    assert versions(stage.tell(prepare(1, A, version=1, epoch=3))) == [at(1, epoch=3)]
    stage.tell(act.StepPrepared(model="net", unit=1), conclude(1))
    stage.step(A)
    assert stage.model.version == at(1, epoch=3)
    assert versions(stage.tell(serve(G, version=at(1, epoch=4)))) == [at(1, epoch=4)]
    stage.bring(B, 2, computed_from=1, epoch=3)
    assert versions(stage.tell(prepare(2, B, version=2, epoch=4))) == [at(2, epoch=4)]


# The end


def test_a_server_that_stops_waits_for_the_end_of_what_is_prepared_and_begins_nothing(stage):
    bring_and_prepare(stage, A, 1)
    stage.bring(B, 2, connection=2)
    stage.tell(prepare(2, B, version=2))
    assert stage.tell(act.Stopping()) == []
    stage.tell(conclude(1))
    assert stage.step(A)[-2:] == [commit_report(A, 1), act.Settled()]


def test_a_server_that_stops_with_nothing_prepared_may_end_at_once(stage):
    stage.bring(A, 1)
    assert stage.tell(act.Stopping()) == [act.Settled()]


# Memory


def test_the_oldest_push_may_come_though_the_budget_is_used_up():
    stage = Stage(shards=2, budget_updates=1)
    late, other = update("a", 2), update("b", 2)
    stage.bring(late, 1)
    stage.tell(expect(other, 2))
    assert stage.tell(offer(other, 2)) == []
    stage.tell(expect(C, 3))
    assert stage.tell(offer(C, 3)) == [grant(C, 3)]
