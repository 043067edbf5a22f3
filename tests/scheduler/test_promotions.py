"""When a replica is told to take its primary's place, who is fenced off, what is lost; step by step."""

from __future__ import annotations

from typing import Any

import pytest

from mlfabric.model.specs import Role, Term
from mlfabric.protocol import (
    AppliedIds,
    Commit,
    Committed,
    Drop,
    Expect,
    GroupOf,
    Instruction,
    Keep,
    Logged,
    Lost,
    MemberJoined,
    ModelVersion,
    NewServer,
    Promote,
    Refuse,
    RefuseReason,
    Resolve,
    Seed,
    Send,
    Tick,
    TransferEnd,
    Unfollowed,
    Void,
    Welcome,
)
from mlfabric.scheduler.followers.promotions import LEAST_PATIENCE_NS
from mlfabric.scheduler.records import MemberState
from tests.scheduler.stage import SPEC, Stage, committed, ended, holds, member, of, push, update
from tests.scheduler.test_replicas import commit, reported, seeded

PATIENCE_MS = LEAST_PATIENCE_NS // 10**6


def followed(*workers: str, version: int = 3, updates: int = 4) -> Stage:
    """Return a fabric whose replica has that version."""
    return seeded(Stage().trained(*workers, version=version), version=version, updates=updates)


@pytest.fixture
def stage() -> Stage:
    """Return one with a worker, a primary and a replica that follows it."""
    return followed("a")


def lose_primary(stage: Stage) -> list[Instruction]:
    """Let the primary fall silent for so long that its replica is told."""
    stage.silent("s")
    stage.wait(PATIENCE_MS)
    return stage.tick()


def claim(stage: Stage, server_epoch: int = 2, incarnation: int = 7, promoted: str = "r") -> list[Instruction]:
    joins = member("s", Role.SERVER, incarnation, host="h-r", address="r:1")
    event = MemberJoined(
        member=joins, held=(SPEC,), server_epochs=(server_epoch,), promoted=promoted, succeeds=promoted
    )
    return stage.tell(event)


def serves(stage: Stage, number: int, epoch: int = 2, **fields: Any) -> list[Instruction]:
    """Let the new server say what it holds."""
    earlier = (ModelVersion(1, 0),)
    return stage.tell(holds(number, epoch=epoch, epoch_base=number, earlier=earlier, **fields))


def back(stage: Stage, incarnation: int = 1, server_epoch: int = 1) -> list[Instruction]:
    joins = member("s", Role.SERVER, incarnation, address="s:1")
    return stage.tell(MemberJoined(member=joins, held=(SPEC,), server_epochs=(server_epoch,)))


def under_a_new_scheduler() -> Stage:
    """Return one at which a replica is that has the model."""
    stage = Stage(term=2)
    stage.replica(is_seeded=True, updates=4)
    stage.tell(reported(9))
    return stage


def refusals(found: list[Instruction]) -> list[RefuseReason]:
    return [i.cause for i in of(Refuse, found)]


def test_a_replica_is_told_to_take_the_place_of_a_primary_that_does_not_come_back_in_time(stage):
    assert not of(Promote, stage.silent("s"))
    stage.wait(PATIENCE_MS - 1)
    assert not stage.tick()
    stage.wait(1)
    assert of(Promote, stage.tick()) == [Promote(to="r", server="s", server_epoch=2, foretold=(), reason="")]
    assert not of(Promote, stage.tell(Tick()))


def test_a_replica_of_a_primary_that_began_anew_since_does_not_take_its_place(stage):
    stage.silent("s")
    stage.tell(MemberJoined(member=member("s", Role.SERVER, 2, address="s:1", seen=Term(1, 0))))
    stage.weights(0, epoch=2)
    stage.silent("s", 2)
    stage.wait(10 * PATIENCE_MS)
    assert not of(Promote, stage.tell(Tick()))


def test_a_primary_that_is_stopped_or_cut_off_is_replaced_and_fenced_off_when_it_wakes_up(stage):
    assert not of(Promote, stage.lost("s"))
    stage.wait(PATIENCE_MS)
    assert of(Promote, stage.tick())
    assert refusals(back(stage)) == [RefuseReason.NOT_YET]
    claim(stage)
    serves(stage, 3)
    assert not stage.lost("s")
    assert refusals(back(stage)) == [RefuseReason.NAME_TAKEN]


def test_a_primary_whose_process_has_ended_is_not_waited_for(stage):
    stage.silent("s")
    assert of(Promote, stage.lost("s", has_ended=True))


@pytest.mark.parametrize("goes", [Stage.silent, Stage.lost])
def test_a_primary_that_is_back_before_its_replica_is_told_is_not_replaced(stage, goes):
    goes(stage, "s")
    stage.wait(PATIENCE_MS - 1)
    assert of(Welcome, back(stage))
    stage.wait(10 * PATIENCE_MS)
    assert not of(Promote, stage.tick())


def test_where_members_take_long_to_come_back_a_primary_is_waited_for_longer(stage):
    stage.silent("a")
    stage.wait(PATIENCE_MS)
    stage.worker("a")
    stage.silent("s")
    stage.wait(2 * PATIENCE_MS - 1)
    assert not stage.tick()
    stage.wait(1)
    assert of(Promote, stage.tick())


def test_a_primary_that_said_good_bye_is_not_replaced(stage):
    stage.left("s")
    stage.wait(10 * PATIENCE_MS)
    assert not of(Promote, stage.tell(Tick()))


def test_a_replica_that_has_no_model_yet_is_not_told():
    stage = Stage().trained("a", version=3)
    stage.replica(updates=4)
    stage.silent("s")
    stage.wait(10 * PATIENCE_MS)
    assert not of(Promote, stage.tell(Tick()))


def test_a_second_process_of_the_primarys_name_means_that_the_first_is_dead_and_waits_for_the_replica(stage):
    stage.silent("s")
    found = stage.tell(MemberJoined(member=member("s", Role.SERVER, 2, address="s:1")))
    assert refusals(found) == [RefuseReason.NOT_YET]
    assert of(Promote, found)


def test_a_replica_that_is_admitted_as_the_server_is_one_no_longer_and_workers_hear_of_it():
    stage = followed("a", "b")
    lose_primary(stage)
    found = claim(stage)
    assert of(Welcome, found)
    assert [(k.to, k.receiver) for k in of(Keep, found)] == [("a", ""), ("b", "")]
    assert stage.state.context.members["r"].state is MemberState.LEFT
    told = [NewServer(to=name, model="net", server_epoch=2, reason="") for name in ("a", "b")]
    assert of(NewServer, serves(stage, 3)) == told
    assert stage.pushes.version == (2, 3)


def test_who_takes_a_place_and_does_not_hear_that_it_was_admitted_asks_again(stage):
    lose_primary(stage)
    claim(stage)
    stage.silent("s", 7)
    assert refusals(claim(stage)) == []


def test_nothing_planned_at_the_old_server_survives_and_what_is_asked_for_again_goes_to_the_new_one(stage):
    stage.ask(push("a", 0, computed_from=3))
    lose_primary(stage)
    claim(stage)
    assert not stage.pushes.planned
    serves(stage, 3)
    found = stage.ask(push("a", 0, computed_from=3))
    assert [(i.receiver, i.address) for i in of(Send, found)] == [("s", "r:1")]
    assert [i.to for i in of(Expect, found)] == ["s"]


def test_what_was_committed_after_the_version_that_is_gone_on_from_is_lost_and_counted(stage):
    commit(stage, "a", 4, 0)
    commit(stage, "a", 5, 1)
    stage.tell(reported(4))
    lose_primary(stage)
    claim(stage)
    serves(stage, 4)
    assert stage.pushes.lost == 1
    (resolved,) = of(Resolve, stage.ask(push("a", 1, computed_from=4)))
    assert isinstance(resolved.outcome, Lost)
    (resolved,) = of(Resolve, stage.ask(push("a", 0, computed_from=3)))
    assert resolved.outcome == Committed(version=ModelVersion(1, 4), tau=0)


def test_what_was_computed_on_a_lost_version_is_dropped_before_it_travels(stage):
    commit(stage, "a", 4)
    lose_primary(stage)
    claim(stage)
    serves(stage, 3)
    (drop,) = of(Drop, stage.ask(push("a", 1, computed_from=4)))
    assert drop.cause.name == "ROLLED_BACK"


def test_what_the_replica_holds_and_the_primary_may_have_committed_is_foretold():
    stage = followed("a", updates=0)
    stage.ask(push("a", 0, computed_from=3))
    stage.tell(ended(update("a", 0), TransferEnd.RECEIVED, by="r"))
    (order,) = of(Promote, lose_primary(stage))
    commit = Commit(update=update("a", 0), version=ModelVersion(1, 4), tau=0, lr=SPEC.rule.lr_at(3, 0), step_norm=0.0)
    assert order.foretold == (GroupOf("net", (commit,)),)
    assert not order.known


def test_what_the_primary_told_of_and_the_replica_did_not_report_is_told_to_it(stage):
    commit(stage, "a", 4, 0)
    commit(stage, "a", 5, 1)
    stage.tell(reported(4))
    (order,) = of(Promote, lose_primary(stage))
    assert [(g.model, [c.version for c in g.commits]) for g in order.known] == [("net", [(1, 5)])]


def test_what_was_committed_and_is_made_once_more_is_not_counted_as_lost(stage):
    commit(stage, "a", 4, 0)
    commit(stage, "a", 5, 1)
    lose_primary(stage)
    claim(stage)
    again = AppliedIds(worker="a", incarnation=1, low=0, recent=((0, ModelVersion(2, 4), 0),))
    stage.tell(holds(4, epoch=2, epoch_base=3, earlier=(ModelVersion(1, 0),), applied=(again,)))
    assert stage.pushes.lost == 1
    (resolved,) = of(Resolve, stage.ask(push("a", 0, computed_from=3)))
    assert resolved.outcome == Committed(version=ModelVersion(2, 4), tau=0)


def test_an_old_primary_waits_while_its_replica_takes_its_place_and_is_refused_for_good_afterwards(stage):
    lose_primary(stage)
    assert refusals(back(stage)) == [RefuseReason.NOT_YET]
    claim(stage)
    assert refusals(back(stage)) == [RefuseReason.NAME_TAKEN]
    serves(stage, 3)
    stage.silent("s", 7)
    assert refusals(back(stage)) == [RefuseReason.SUPERSEDED]


def test_a_replica_that_dies_before_it_is_the_server_lets_the_primary_back(stage):
    lose_primary(stage)
    stage.left("r")
    assert of(Welcome, back(stage))
    assert refusals(claim(stage)) == [RefuseReason.SUPERSEDED]


def test_nobody_takes_a_place_untold(stage):
    stage.silent("s")
    assert refusals(claim(stage)) == [RefuseReason.SUPERSEDED]
    stage.wait(PATIENCE_MS)
    stage.tick()
    assert refusals(claim(stage, server_epoch=5)) == [RefuseReason.SUPERSEDED]
    assert refusals(claim(stage, promoted="other")) == [RefuseReason.SUPERSEDED]


def test_a_replica_that_comes_back_is_told_once_more(stage):
    lose_primary(stage)
    stage.silent("r")
    found = stage.replica(is_seeded=True, updates=4)
    assert [p.server_epoch for p in of(Promote, found)] == [2]


@pytest.mark.parametrize("commits_since", [False, True])
def test_a_replica_that_counted_as_left_says_what_it_holds_and_is_told_what_was_committed_before_and_since(
    commits_since,
):
    stage = followed("a", updates=0)
    stage.ask(push("a", 0, computed_from=3, samples=((0, 8),)))
    stage.tell(ended(update("a", 0), TransferEnd.RECEIVED, by="r"))
    stage.tell(reported(3, update("a", 0)))
    report = committed(update("a", 0), 4, samples=((0, 8),))
    if not commits_since:
        stage.tell(report)
        assert of(Promote, lose_primary(stage))
    stage.silent("r")
    stage.wait(10_000)
    stage.tick()
    assert stage.state.context.members["r"].state is MemberState.LEFT
    if commits_since:
        stage.tell(report)
        lose_primary(stage)
    stage.wait(PATIENCE_MS)
    assert not of(Promote, stage.replica(is_seeded=True, updates=0))
    (order,) = of(Promote, stage.tell(reported(3, update("a", 0))))
    assert order.known == (GroupOf("net", report.commits),)
    assert [c.samples for g in order.foretold for c in g.commits] == [((0, 8),)]


def test_an_old_primary_does_not_come_before_a_server_of_a_later_epoch_that_has_not_said_yet_what_it_holds():
    stage = Stage(term=7)
    stage.server(incarnation=9, held=(SPEC,), server_epochs=(5,), succeeds="r")
    comes = MemberJoined(member=member("s", Role.SERVER, 2), held=(SPEC,), server_epochs=(4,), succeeds="q")
    assert refusals(stage.tell(comes)) == [RefuseReason.NAME_TAKEN]
    stage.silent("s", 9)
    assert refusals(stage.tell(comes)) == [RefuseReason.SUPERSEDED]


def test_under_a_new_scheduler_a_replica_that_has_a_model_takes_the_place_of_a_server_that_never_comes():
    stage = Stage(term=2)
    assert refusals(stage.replica(updates=4)) == [RefuseReason.NOT_YET]
    assert of(Welcome, stage.replica(is_seeded=True, updates=4))
    stage.tell(reported(9))
    stage.wait(PATIENCE_MS)
    assert [p.server_epoch for p in of(Promote, stage.tick())] == [2]
    claim(stage)
    serves(stage, 9)
    assert stage.pushes.version == (2, 9)


def test_under_a_new_scheduler_a_process_that_was_never_admitted_waits_for_the_replica_of_its_name():
    stage = under_a_new_scheduler()
    found = back(stage, incarnation=5, server_epoch=2)
    assert refusals(found) == [RefuseReason.NOT_YET]
    assert of(Promote, found)


def test_under_a_new_scheduler_a_primary_that_was_admitted_by_the_former_one_is_let_in():
    stage = under_a_new_scheduler()
    joins = member("s", Role.SERVER, 1, address="s:1", seen=Term(1, 0))
    assert of(Welcome, stage.tell(MemberJoined(member=joins, held=(SPEC,), server_epochs=(1,))))


@pytest.mark.parametrize("is_late", [False, True])
def test_under_a_new_scheduler_a_replica_is_told_what_was_committed_and_its_worker_asks_for_no_more(is_late):
    stage = Stage(term=2)
    back(stage)
    initial = AppliedIds(worker="b", incarnation=1, low=0, recent=((0, ModelVersion(1, 0), 0),))
    applied = AppliedIds(worker="a", incarnation=1, low=0, recent=((0, ModelVersion(1, 4), 0),))
    stage.tell(holds(4, applied=(initial, applied), replica="r"))
    stage.worker("a")
    stage.says("a", push("a", 1, computed_from=4, resolved_below=1))
    if is_late:
        stage.wait(10_000)
        assert of(Unfollowed, stage.tick())
    stage.replica(is_seeded=True, updates=0)
    stage.tell(reported(3, update("a", 0)))
    (order,) = of(Promote, lose_primary(stage))
    assert [(c.update, c.version) for g in order.foretold for c in g.commits] == [(update("a", 0), (1, 4))]


def test_a_server_of_a_greater_epoch_displaces_an_older_one_that_a_new_scheduler_heard_of_first():
    stage = Stage(term=2)
    back(stage)
    stage.tell(holds(30))
    stage.worker("a")
    stage.ask(push("a", 0, computed_from=20))
    joins = member("s", Role.SERVER, 7, host="h-r", address="r:1")
    assert refusals(stage.tell(MemberJoined(member=joins, held=(SPEC,), server_epochs=(2,)))) == [
        RefuseReason.NAME_TAKEN
    ]
    found = stage.tell(MemberJoined(member=joins, held=(SPEC,), server_epochs=(2,), succeeds="r"))
    assert of(Welcome, found)
    assert not stage.pushes.planned
    assert [i.to for i in of(NewServer, serves(stage, 25))] == ["a"]
    assert refusals(back(stage)) == [RefuseReason.NAME_TAKEN]


def test_so_does_a_replica_of_the_server_that_took_the_place_of_the_one_that_is_here():
    stage = Stage(term=2)
    back(stage)
    stage.tell(holds(30))
    stage.replica(is_seeded=True, updates=4)
    found = stage.tell(reported(25, epoch=2))
    assert [p.server_epoch for p in of(Promote, found)] == [3]
    assert of(Welcome, claim(stage, server_epoch=3))
    stage.worker("a")
    earlier = (ModelVersion(1, 0), ModelVersion(2, 20))
    stage.tell(holds(25, epoch=3, epoch_base=25, earlier=earlier))
    assert stage.pushes.lost == 10
    (drop,) = of(Drop, stage.ask(push("a", 0, computed_from=21)))
    assert drop.cause.name == "ROLLED_BACK"


def test_who_joins_later_is_told_the_server_epoch(stage):
    lose_primary(stage)
    claim(stage)
    (welcome,) = of(Welcome, stage.worker("b"))
    assert welcome.server_epoch == 0  # it is told when the new server has said what it holds
    serves(stage, 3)
    (welcome,) = of(Welcome, stage.worker("c"))
    assert welcome.server_epoch == 2


def test_the_next_replica_of_the_new_server_is_told_in_its_turn(stage):
    lose_primary(stage)
    claim(stage)
    serves(stage, 3)
    stage.replica(incarnation=2, address="r:2", updates=4)
    stage.tell(reported(3, epoch=2, term=stage.state.models["net"].replication.term))
    stage.silent("s", 7)
    stage.wait(PATIENCE_MS)
    assert [p.server_epoch for p in of(Promote, stage.tick())] == [3]


def test_the_log_of_the_next_replica_begins_where_the_new_server_does_though_it_joins_before_that_is_known():
    stage = followed("a", updates=0)
    commit(stage, "a", 4, 0)
    lose_primary(stage)
    claim(stage)
    stage.replica(incarnation=2, address="r:2", updates=0)
    (seed,) = of(Seed, serves(stage, 3))
    stage.tell(reported(3, epoch=2, term=seed.term))
    stage.ask(push("a", 1, computed_from=3))
    stage.tell(ended(update("a", 1), TransferEnd.RECEIVED, by="r"))
    again = committed(update("a", 1), 4, epoch=2)
    found = stage.tell(again)
    assert [logged.commits for logged in of(Logged, found)] == [again.commits]
    assert not of(Void, found)
