"""How the scheduler lets a replica follow: seeds, folds, what is sent when, holes; exact instructions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mlfabric.model.update_rules import RuleKind, RuleSpec
from mlfabric.protocol import (
    Drop,
    DropReason,
    Expect,
    Expected,
    Fold,
    Followed,
    HeldBack,
    Instruction,
    Keep,
    Logged,
    MemberLeft,
    MemberSilent,
    ModelVersion,
    NotKept,
    Release,
    ReplicaReported,
    Replicate,
    Seed,
    SumId,
    Tick,
    TransferEnd,
    TransferEnded,
    Unfollowed,
    UpdateId,
    UpdateKind,
    Void,
)
from mlfabric.scheduler.followers.replication_state import Phase
from tests.scheduler.stage import SPEC, Stage, committed, committed_together, ended, holds, of, push, update

TERM = 1 << 20


def reported(version: int, *held: UpdateId, term: int = TERM + 1, epoch: int = 1) -> ReplicaReported:
    return ReplicaReported(replica="r", model="net", term=term, version=ModelVersion(epoch, version), held=held)


def seeded(stage: Stage, version: int = 0, term: int = TERM + 1, **bounds) -> Stage:
    stage.replica(**bounds)
    stage.tell(reported(version, term=term))
    assert stage.state.models["net"].replication.phase is Phase.FOLLOWING
    return stage


@pytest.fixture
def strict() -> Stage:
    """Return one that allows no lead, at which a's update is on its way."""
    stage = seeded(Stage().trained("a", "b"), updates=0)
    stage.ask(push("a"))
    return stage


def commit(stage: Stage, worker: str, number: int, counter: int = 0) -> list[Instruction]:
    stage.ask(push(worker, counter, computed_from=number - 1))
    return stage.tell(committed(update(worker, counter), number))


def test_a_replica_is_seeded_when_it_joins_and_workers_keep_from_then_on():
    stage = Stage().trained("a", "b", version=3)
    found = stage.replica(updates=4)
    assert [k.to for k in of(Keep, found)] == ["a", "b"]
    (seed,) = of(Seed, found)
    (expect,) = of(Expect, found)
    assert (seed.to, seed.term, seed.receiver, seed.address) == ("s", TERM + 1, "r", "r:1")
    assert (expect.to, expect.kind, expect.ticket, expect.transfer) == (
        "r",
        UpdateKind.STATE,
        seed.ticket,
        seed.transfer,
    )


def test_what_the_seed_has_in_it_is_released_and_the_rest_is_folded():
    stage = Stage().trained("a")
    stage.replica(updates=10)
    commit(stage, "a", 1, 0)
    found = commit(stage, "a", 2, 1)
    assert of(Logged, found)
    assert not of(Fold, found)
    found = stage.tell(reported(1))
    assert of(Release, found) == [Release(to="a", model="net", term=TERM + 1, updates=(update("a", 0),), reason="")]
    assert of(Fold, found) == [
        Fold(to="a", model="net", term=TERM + 1, update=update("a", 1), lrs=(0.1,), share=1.0, begins=True, reason="")
    ]
    assert of(Followed, found) == [
        Followed(
            to="s",
            model="net",
            replica="r",
            version=ModelVersion(1, 1),
            held=(),
            norm=math.inf,
            updates=10,
            reason="",
        )
    ]


def test_what_the_primary_tells_of_only_after_the_replica_was_seeded_with_it_is_not_folded():
    stage = Stage().trained("a")
    stage.replica(updates=10)
    stage.ask(push("a", 0))
    stage.tell(reported(1))
    found = stage.tell(committed(update("a", 0), 1))
    assert not of(Fold, found)
    assert [r.updates for r in of(Release, found)] == [(update("a", 0),)]
    assert [f.update for f in of(Fold, commit(stage, "a", 2, 1))] == [update("a", 1)]


def test_what_a_replica_is_to_expect_before_it_is_committed_comes_with_its_samples():
    stage = seeded(Stage().trained("a"), updates=0)
    (expect,) = [e for e in of(Expect, stage.ask(push("a", samples=((0, 8),)))) if e.to == "r"]
    assert [m.samples for m in expect.members] == [((0, 8),)]


def test_a_fold_brings_the_learning_rates_of_the_places_since_the_last_one():
    stage = seeded(Stage().trained("a", "b"), updates=100)
    commit(stage, "a", 1, 0)
    commit(stage, "b", 2, 0)
    commit(stage, "b", 3, 1)
    (fold,) = of(Fold, commit(stage, "a", 4, 1))
    assert (fold.update, fold.lrs) == (update("a", 1), (0.1, 0.1, 0.1))


@pytest.mark.parametrize("bound", [{"updates": 4}, {"norm": 3.0}])
def test_windows_are_sent_when_the_lead_reaches_half_the_bound(bound):
    stage = seeded(Stage().trained("a", "b"), **bound)
    assert not of(Replicate, commit(stage, "a", 1))
    found = commit(stage, "b", 2)
    assert [(r.to, r.transfer) for r in of(Replicate, found)] == [("a", SumId(1, 1)), ("b", SumId(1, 2))]
    assert [tuple(m.update for m in e.members) for e in of(Expect, found)] == [(update("a"),), (update("b"),)]


def test_while_a_window_is_on_its_way_its_worker_folds_another_one():
    stage = seeded(Stage().trained("a"), updates=2)
    (first,) = of(Replicate, commit(stage, "a", 1, 0))
    assert not of(Replicate, commit(stage, "a", 2, 1))
    found = stage.tell(ended(first.transfer, TransferEnd.RECEIVED, by="r"))
    assert [r.transfer for r in of(Replicate, found)] == [SumId(1, 2)]


def test_without_any_lead_an_update_goes_to_the_replica_before_it_is_committed():
    stage = seeded(Stage().trained("a"), norm=0.0)
    found = stage.ask(push("a"))
    (order,) = of(Replicate, found)
    assert (order.to, order.transfer) == ("a", update("a"))
    found = stage.tell(ended(update("a"), TransferEnd.RECEIVED, by="r"))
    release = Release(to="a", model="net", term=TERM + 1, updates=(update("a"),), reason="")
    assert of(Release, found) == [release], "its worker need not keep what the replica got"
    assert of(Followed, stage.tell(reported(0, update("a"))))[0].held == (update("a"),)
    assert not of(Fold, stage.tell(committed(update("a"), 1)))


def test_a_primary_that_comes_back_is_told_again_to_send_a_seed_that_is_not_there():
    stage = Stage().trained("a")
    seeds = of(Seed, stage.replica(updates=100))
    stage.silent("s")
    found = [*stage.server(held=(SPEC,)), *stage.tell(holds(0))]
    assert of(Seed, found) == seeds


def test_a_primary_that_comes_back_is_told_again_what_the_replica_has(strict):
    strict.tell(ended(update("a"), TransferEnd.RECEIVED, by="r"))
    strict.tell(reported(0, update("a")))
    strict.silent("s")
    found = [*strict.server(held=(SPEC,)), *strict.tell(holds(0, replica="r"))]
    assert [told.held for told in of(Followed, found)] == [(update("a"),)]


def test_what_is_held_back_goes_to_the_replica_at_once():
    stage = seeded(Stage().trained("a", "b"), updates=100)
    commit(stage, "a", 1)
    stage.ask(push("b"))
    found = stage.tell(HeldBack(server="s", model="net", transfers=(update("b"),), alone=False, detail=""))
    assert [r.transfer for r in of(Replicate, found)] == [SumId(1, 1)]
    found = stage.tell(HeldBack(server="s", model="net", transfers=(update("b"),), alone=True, detail=""))
    assert [r.transfer for r in of(Replicate, found)] == [update("b")]


def test_of_a_sum_of_a_former_scheduler_that_is_held_back_all_goes_to_the_replica_that_may_be_in_it():
    stage = seeded(Stage().trained("a"), updates=100)
    stage.ask(push("a"))
    found = stage.tell(HeldBack(server="s", model="net", transfers=(SumId(0, 9),), alone=True, detail=""))
    assert [r.transfer for r in of(Replicate, found)] == [update("a")]


def test_an_update_that_is_dropped_is_forgotten_by_the_replica(strict):
    found = strict.tell(ended(update("a"), TransferEnd.DISCARDED, DropReason.DELAY_BOUND))
    assert [v.transfer for v in of(Void, found) if v.to == "r"] == [update("a")]


def test_an_update_whose_transfer_to_the_primary_broke_stays_with_the_replica(strict):
    strict.tell(ended(update("a"), TransferEnd.BROKEN))
    found = strict.tell(ended(update("a"), TransferEnd.VOIDED))
    assert not [v for v in of(Void, found) if v.to == "r"]
    assert not of(Replicate, strict.ask(push("a")))


def test_an_update_whose_worker_is_gone_before_the_replica_had_it_is_dropped_by_the_primary(strict):
    strict.tell(ended(update("a"), TransferEnd.RECEIVED))
    found = strict.left("a")
    assert [(d.to, d.update, d.cause) for d in of(Drop, found)] == [("s", update("a"), DropReason.NOT_REPLICATED)]
    assert not of(Drop, strict.tell(Tick()))


def test_what_a_worker_sent_before_it_was_away_is_not_taken_for_what_it_sends_again():
    stage = seeded(Stage().trained("a", "b"), updates=0)
    assert [r.transfer for r in of(Replicate, stage.ask(push("a")))] == [update("a")]
    assert [v.transfer for v in of(Void, stage.silent("a")) if v.to == "r"]
    found = stage.worker("a") + stage.ask(push("a"))
    assert not of(Replicate, found)
    assert of(Seed, found)[0].term == TERM + 2
    late = TransferEnded(member="r", model="net", transfer=update("a"), end=TransferEnd.RECEIVED)
    found = stage.tell(late) + stage.tell(reported(0, update("a")))
    assert not of(Release, found)
    assert not [f for f in of(Followed, found) if f.held]
    assert [r.transfer for r in of(Replicate, stage.tell(reported(0, term=TERM + 2)))] == [update("a")]


@pytest.mark.parametrize("other", ["nothing", "another process", "it is over"])
def test_a_worker_that_comes_back_with_nothing_to_send_again_leaves_no_hole(other):
    stage = seeded(Stage().trained("a", "b"), updates=0)
    if other != "nothing":
        stage.ask(push("a"))
    stage.silent("a")
    if other == "it is over":
        stage.tell(ended(update("a"), TransferEnd.DISCARDED, DropReason.DELAY_BOUND))
    assert not of(Seed, stage.worker("a", incarnation=2 if other == "another process" else 1))


@pytest.mark.parametrize("gone", [MemberLeft(name="a", incarnation=1), MemberSilent(name="a", incarnation=1)])
def test_a_worker_that_is_gone_with_what_it_folded_leaves_a_hole(gone):
    stage = seeded(Stage().trained("a", "b"), updates=100)
    commit(stage, "a", 1)
    found = stage.tell(gone)
    assert [(k.to, k.term) for k in of(Keep, found)] == [("b", TERM + 2)]
    assert of(Seed, found)[0].term == TERM + 2
    assert not of(Unfollowed, found)


def test_a_worker_that_is_gone_without_any_leaves_none():
    stage = seeded(Stage().trained("a", "b"), updates=100)
    commit(stage, "b", 1)
    assert not of(Seed, stage.left("a"))


@pytest.mark.parametrize("before", [(), committed(update("a"), 1).commits], ids=["between reports", "within one"])
def test_a_gap_in_the_log_is_a_hole(before):
    stage = seeded(Stage().trained("a", "b"), updates=100)
    stage.ask_all(push("a"), push("b"))
    report = committed(update("b"), 3)
    assert of(Seed, stage.tell(replace(report, commits=(*before, *report.commits))))


def test_what_somebody_does_not_have_is_a_hole_of_the_present_term_only():
    stage = seeded(Stage().trained("a"), updates=100)
    told = NotKept(member="a", model="net", term=TERM, detail="gone")
    assert not of(Seed, stage.tell(told))
    assert of(Seed, stage.tell(replace(told, term=TERM + 1)))


def test_what_the_primary_was_told_that_the_replica_holds_is_held_in_the_next_term(strict):
    strict.tell(ended(update("a"), TransferEnd.RECEIVED, by="r"))
    found = strict.tell(NotKept(member="a", model="net", term=TERM + 1, detail="gone"))
    assert not [v for v in of(Void, found) if v.transfer == update("a")]
    strict.tell(reported(0, update("a"), term=TERM + 2))
    assert not of(Fold, strict.tell(committed(update("a"), 1)))


def test_a_replica_that_left_lifts_the_bound_and_one_that_is_silent_does_not():
    stage = seeded(Stage().trained("a"), updates=100)
    assert not of(Unfollowed, stage.silent("r"))
    stage.wait(9_000)
    assert not of(Unfollowed, stage.tell(Tick()))
    stage.wait(2_000)
    found = stage.tell(Tick())
    assert of(Unfollowed, found) == [Unfollowed(to="s", model="net", reason="")]
    assert [k.receiver for k in of(Keep, found)] == [""]


def test_a_replica_that_comes_back_is_seeded_anew_and_the_bound_stays():
    stage = seeded(Stage().trained("a"), updates=100)
    stage.silent("r")
    found = stage.replica(updates=100)
    assert not of(Unfollowed, found)
    assert of(Seed, found)[0].term == TERM + 2


def test_a_primary_whose_replica_does_not_come_back_to_a_new_scheduler_is_released():
    stage = Stage().trained("a")
    stage.tell(holds(3, replica="r"))
    stage.wait(9_000)
    assert not of(Unfollowed, stage.tell(Tick()))
    stage.wait(2_000)
    assert of(Unfollowed, stage.tell(Tick()))


def test_adam_s_updates_are_never_folded():
    spec = replace(SPEC, rule=RuleSpec(kind=RuleKind.ADAM))
    stage = seeded(Stage().trained("a", "b", spec=spec), updates=4)
    assert not of(Fold, commit(stage, "a", 1))
    found = commit(stage, "b", 2)
    assert [r.transfer for r in of(Replicate, found)] == [update("a"), update("b")]


def test_a_sum_of_commits_is_logged_as_the_group_that_it_was():
    stage = seeded(Stage().trained("a", "b"), updates=100)
    for name in ("a", "b"):
        stage.ask(push(name))
    report = committed_together(update("a"), update("b"), number=2)
    found = stage.tell(report)
    assert [log.commits for log in of(Logged, found)] == [report.commits]
    assert [f.update for f in of(Fold, found)] == [update("a"), update("b")]


def test_a_transfer_to_the_replica_takes_its_place_on_the_links():
    stage = seeded(Stage().trained("a"), updates=2)
    (order,) = of(Replicate, commit(stage, "a", 1))
    network = stage.state.context.network
    assert network.reservation(("net", "replica", order.transfer)) is not None
    stage.tell(ended(order.transfer, TransferEnd.RECEIVED, by="r"))
    assert network.reservation(("net", "replica", order.transfer)) is None


def test_members_of_a_window_are_told_to_the_replica_in_the_order_of_commits():
    stage = seeded(Stage().trained("a"), updates=4)
    commit(stage, "a", 1, 0)
    (expect,) = of(Expect, commit(stage, "a", 2, 1))
    nothing = ModelVersion(0, 0)
    assert expect.members == (Expected(update("a", 0), nothing, 0), Expected(update("a", 1), nothing, 0))


def test_a_primary_that_began_anew_at_the_version_of_the_log_is_followed_in_a_new_term():
    stage = seeded(Stage().trained("a"), updates=100)
    stage.left("s")
    stage.server(incarnation=2)
    found = stage.tell(holds(0, epoch=2))
    assert of(Seed, found)[0].term == TERM + 2


@pytest.mark.parametrize("version", [0, 3])
def test_a_server_that_begins_a_model_is_asked_for_a_seed_once_it_has_weights(version):
    stage = Stage().trained("a", version=version)
    assert of(Seed, stage.replica(updates=100))
    stage.silent("s")
    assert not of(Seed, stage.server(incarnation=2))
    found = stage.weights(0, epoch=2)
    assert [seed.term for seed in of(Seed, found)] == [TERM + 2]
    assert of(Logged, stage.tell(committed(update("a"), 1, epoch=2)))


def test_a_server_that_begins_a_model_keeps_to_no_bound_of_a_replica_that_followed_another():
    stage = seeded(Stage().trained("a"), updates=100)
    stage.silent("r")
    stage.silent("s")
    assert not of(Followed, stage.server(incarnation=2))
