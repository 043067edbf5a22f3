"""A model that is cut whose servers all go on from checkpoints of one older version: lost pushes are answered alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.model.specs import Method
from mlfabric.protocol import (
    Committed,
    Drop,
    DropReason,
    Expect,
    ModelVersion,
    Prepare,
    Resolve,
    Send,
    Serve,
    TransferEnd,
    UpdateId,
    Void,
    WorkerHolds,
)
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.state import DaemonState
from tests.scheduler.shard_stage import (
    CUT,
    PARTS,
    ShardStage,
    conclude,
    ended,
    part,
    part_holds,
    part_push,
    prepare,
    prepared,
    refused,
    spec_of,
    unit,
)
from tests.scheduler.stage import of

METHODS = [Method.ASYNCHRONOUS, Method.SYNCHRONOUS, Method.STALE_SYNCHRONOUS]
OLD = 192
MADE = Committed(version=ModelVersion(1, 255), tau=0)

FIRST = (ModelVersion(1, 0),)


def resolved(told):
    return [(i.update, i.outcome) for i in of(Resolve, told)]


def resumes(stage: ShardStage, shard: int, version: int = OLD, incarnation: int = 2, epoch: int = 2):
    """Let a new process of a server go on from a checkpoint."""
    spec = stage.whole.parts[shard].pushes.spec
    told = stage.server(f"s{shard}", incarnation=incarnation, held=(spec,))
    holds = replace(
        part_holds(shard, version), spec=spec, version=ModelVersion(epoch, version), epoch_base=version, earlier=FIRST
    )
    return told + stage.ask(holds)


def rolls_back(stage: ShardStage, version: int = OLD):
    """Let both servers die, and go on from checkpoints of one version."""
    for shard in range(2):
        stage.silent(f"s{shard}")
    return [told for shard in range(2) for told in resumes(stage, shard, version)]


def half_committed(method: Method | None = None) -> ShardStage:
    """Return a stage at which only the first server's commit of ``a``'s push to version 255 is known."""
    stage = ShardStage().begin("a", version=254, spec=CUT if method is None else spec_of(method))
    stage.pushes_all("a", computed_from=254)
    stage.prepares()
    stage.commits(("a", 0), version=255, parts=(0,))
    return stage


def served_at(told) -> list[ModelVersion | None]:
    return [i.version for i in of(Serve, told)]


@pytest.mark.parametrize("gets_before", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_push_that_one_server_committed_before_all_are_rolled_back_is_answered_as_committed(method, gets_before):
    stage = half_committed(method)
    assert not of(Serve, stage.gets("a", after=0) if gets_before else [])
    told = rolls_back(stage)
    assert resolved(told) == [(part("a", 0, 1), MADE)]
    assert served_at(told if gets_before else stage.gets("a", after=0)) == [ModelVersion(2, OLD)] * 2


def test_nothing_is_taken_for_lost_while_parts_are_torn():
    stage = half_committed()
    stage.silent("s1")
    assert not resolved(resumes(stage, 1))
    assert "torn" in stage.whole.torn
    stage.silent("s0")
    assert resolved(resumes(stage, 0)) == [(part("a", 0, 1), MADE)]


def test_a_lost_push_is_over_once_the_server_has_let_go_of_what_it_expected():
    stage = half_committed()
    told = rolls_back(stage)
    assert [(i.to, i.transfer) for i in of(Void, told)] == [("s1", part("a", 0, 1))]
    stage.ask(ended(1, part("a", 0, 1), TransferEnd.VOIDED))
    assert not stage.whole.open
    assert stage.whole.tables[1].settled.get(part("a", 0, 1)) == MADE


def test_a_part_whose_server_resumed_just_before_a_unit_makes_it_under_its_own_epoch():
    stage = half_committed()
    stage.silent("s1")
    resumes(stage, 1, 254)
    told = stage.arrives("a", parts=(1,))
    assert [(i.to, i.version) for i in of(Prepare, told)] == [("s1", ModelVersion(2, 255))]
    stage.ask(prepared(1))
    stage.commits(("a", 0), version=255, parts=(1,), epoch=2)
    assert not stage.whole.open
    assert served_at(stage.gets("a", after=0)) == [ModelVersion(2, 255)] * 2


@pytest.mark.parametrize("method", METHODS)
def test_a_lost_part_that_was_sent_again_is_dropped_only_when_its_worker_knows_that_it_was_committed(method):
    stage = half_committed(method)
    stage.silent("s1")
    resumes(stage, 1)
    assert not of(Drop, stage.arrives("a", parts=(1,)))
    stage.silent("s0")
    told = resumes(stage, 0)
    assert resolved(told) == [(part("a", 0, 1), MADE)]
    assert not of(Drop, told)
    assert len(of(Serve, stage.gets("a", after=0))) == 2
    told = []
    for shard in range(2):
        told += stage.ask(replace(part_push("a", 1, shard, OLD), resolved_below=2))
    assert [(i.to, i.update, i.cause) for i in of(Drop, told)] == [("s1", part("a", 0, 1), DropReason.ROLLED_BACK)]
    stage.ask(ended(1, part("a", 0, 1), TransferEnd.DISCARDED, DropReason.ROLLED_BACK))
    assert [push.counter for push in stage.whole.open] == [1]
    assert not stage.state.models["net.shard1"].dropped


def test_a_lost_part_of_a_worker_that_is_gone_is_dropped_at_its_server():
    stage = half_committed()
    stage.silent("s1")
    resumes(stage, 1)
    stage.arrives("a", parts=(1,))
    stage.silent("s0")
    resumes(stage, 0)
    assert not of(Drop, stage.silent("a"))
    told = stage.worker("a", incarnation=2, spec=CUT)
    assert [(i.to, i.update, i.cause) for i in of(Drop, told)] == [("s1", part("a", 0, 1), DropReason.ROLLED_BACK)]
    stage.ask(ended(1, part("a", 0, 1), TransferEnd.DISCARDED, DropReason.ROLLED_BACK))
    assert not stage.whole.open


def test_what_servers_were_told_to_commit_counts_as_committed_though_none_of_them_said_so():
    stage = ShardStage().begin("a", version=254)
    stage.pushes_all("a", computed_from=253)
    assert stage.prepares() == [conclude(0), conclude(1)]
    told = rolls_back(stage)
    made = Committed(version=ModelVersion(1, 255), tau=1)
    assert resolved(told) == [(part("a", 0, shard), made) for shard in range(2)]
    assert len(of(Serve, stage.gets("a", after=0))) == 2


def test_what_servers_were_told_to_commit_and_still_hold_is_committed_after_all():
    stage = ShardStage().begin("a", version=254)
    stage.pushes_all("a", computed_from=254)
    stage.prepares()
    told = []
    for shard in range(2):
        stage.silent(f"s{shard}")
        stage.server(f"s{shard}", held=(PARTS[shard],))
        told += stage.ask(part_holds(shard, 254, received=(part("a", 0, shard),)))
    assert not resolved(told)
    assert told[-2:] == [prepare(s, ("a", 0), version=255, number=2) for s in range(2)]


def test_a_push_that_no_server_was_to_commit_is_sent_anew_to_all_and_refused_alike():
    stage = ShardStage().begin("a", version=254)
    stage.pushes_all("a", computed_from=254)
    stage.prepares(parts=(0,))
    told = rolls_back(stage)
    assert not resolved(told)
    assert {i.update for i in of(Send, told)} == {part("a", 0, 0), part("a", 0, 1)}
    stage.arrives("a")
    told = stage.ask(refused(0, part("a", 0, 0), cause=DropReason.ROLLED_BACK, number=2))
    assert {(i.to, i.cause) for i in of(Drop, told)} == {(f"s{s}", DropReason.ROLLED_BACK) for s in range(2)}


def test_a_push_of_a_version_that_was_lost_is_dropped_though_no_iteration_takes_it():
    stage = ShardStage(term=2)
    specs = [replace(spec, method=Method.SYNCHRONOUS, tau_max=None) for spec in PARTS]
    for shard, spec in enumerate(specs):
        stage.server(f"s{shard}", held=(spec,))
    for worker in "ab":
        stage.worker(worker, spec=spec_of(Method.SYNCHRONOUS))
    for shard, spec in enumerate(specs):
        stage.tell(replace(part_holds(shard, 254, received=(part("a", 0, shard),)), spec=spec))
    assert not stage.asks("a", computed_from=254)
    assert {i.update for i in of(Send, rolls_back(stage))} == {part("a", 0, s) for s in range(2)}
    told = stage.arrives("a")
    assert {(i.to, i.update, i.cause) for i in of(Drop, told)} == {
        (f"s{shard}", part("a", 0, shard), DropReason.ROLLED_BACK) for shard in range(2)
    }


def test_a_worker_that_was_away_meanwhile_is_told_when_it_comes_back():
    stage = ShardStage().begin("a", "b", version=253)
    stage.whole_way("a", version=254)
    stage.silent("a")
    rolls_back(stage)
    stage.worker("a", spec=CUT)
    told = stage.says("a", part_push("a", 0, 1, 253))
    assert resolved(told) == [(part("a", 0, 1), Committed(version=ModelVersion(1, 254), tau=0))]
    assert not stage.whole.open


def test_a_new_scheduler_answers_for_what_only_one_server_told_it_of():
    stage = ShardStage(term=2)
    for shard in range(2):
        stage.server(f"s{shard}", held=(PARTS[shard],))
    stage.tell(part_holds(0, 255, ("a", 0, 255)))
    stage.tell(part_holds(1, OLD))
    assert stage.whole.torn
    stage.worker("a", spec=CUT)
    stage.says("a", part_push("a", 0, 1, 254))
    stage.silent("s0")
    assert resolved(resumes(stage, 0)) == [(part("a", 0, 1), MADE)]


def test_what_a_new_process_of_a_worker_pushed_is_not_forgotten_with_what_the_former_left_behind():
    stage = ShardStage().begin("a")
    stage.pushes_all("a")
    stage.silent("a")
    stage.worker("a", incarnation=2, spec=CUT)
    for shard in range(2):
        stage.ask(replace(part_push("a", 0, shard), update=part("a", 0, shard, incarnation=2)))
    stage.arrives("a", incarnation=2)
    for incarnation in (1, 2):
        stage.prepares(incarnation)
        stage.commits(("a", 0), version=incarnation, tau=incarnation - 1, incarnation=incarnation)
    settled = stage.whole.tables[0].settled
    assert part("a", 0, 0, incarnation=1) not in settled
    assert part("a", 0, 0, incarnation=2) in settled


def test_a_get_is_held_back_by_one_clock_though_those_of_the_parts_differ():
    stage = ShardStage().begin("a", "b", spec=spec_of(Method.STALE_SYNCHRONOUS))
    first, second = (pushes.clocks for pushes in stage.whole.tables)
    for clocks, ahead, behind in ((first, "a", "b"), (second, "b", "a")):
        clocks.hear(ahead, 5)
        clocks.hear(behind, 4)
    assert not of(Serve, stage.gets("a"))
    assert len(of(Serve, stage.gets("b"))) == 2


def test_other_workers_go_on_after_a_push_was_lost():
    stage = ShardStage().begin("a", "b", version=254)
    stage.pushes_all("a", computed_from=254)
    stage.prepares()
    stage.commits(("a", 0), version=255, parts=(0,))
    rolls_back(stage)
    told = stage.pushes_all("b", computed_from=OLD)
    assert [i.version.number for i in of(Prepare, told)] == [OLD + 1] * 2


def test_a_part_that_went_back_behind_what_its_server_had_said_to_be_committed_is_torn():
    stage = half_committed()
    stage.silent("s0")
    resumes(stage, 0, 253)
    stage.commits(("a", 0), version=255, parts=(1,))
    assert "torn" in stage.whole.torn
    stage.silent("s0", 2)
    resumes(stage, 0, 254, incarnation=3)
    assert "torn" in stage.whole.torn
    assert not stage.ask(prepared(0))


def holds_of_half_committed(computed_from: int) -> WorkerHolds:
    """Return what a worker says to a new scheduler whose push it knows to be committed at the first server only."""
    daemon = DaemonState("a", shards=2)
    for shard in range(2):
        daemon.handle(part_push("a", 0, shard, computed_from), 0)
    daemon.handle(act.OutcomeReceived(update=part("a", 0, 0), outcome=MADE), 0)
    daemon.handle(act.TermBegan(term=2), 0)
    return daemon.holds()


def gone_back(version: int = OLD, received: tuple[UpdateId, ...] = ()) -> ShardStage:
    """Return a new scheduler, whose servers have all gone on from checkpoints; the first one has received something."""
    stage = ShardStage(term=2)
    for shard in range(2):
        stage.server(f"s{shard}", held=(PARTS[shard],))
        holds = part_holds(shard, version, received=() if shard else received)
        stage.tell(replace(holds, version=ModelVersion(2, version), epoch_base=version, earlier=FIRST))
    stage.worker("a", spec=CUT)
    return stage


def test_a_push_of_which_only_its_worker_knows_that_a_part_was_committed_is_refused_alike_at_all_parts():
    stage = gone_back()
    told = stage.ask(holds_of_half_committed(254))
    assert {i.update for i in of(Send, told)} == {part("a", 0, 0), part("a", 0, 1)}
    assert len(of(Prepare, stage.arrives("a"))) == 2
    refusal = refused(0, part("a", 0, 0), cause=DropReason.ROLLED_BACK)
    told = stage.ask(replace(refusal, unit=unit(epoch=2)))
    assert {(i.to, i.update, i.cause) for i in of(Drop, told)} == {
        (f"s{shard}", part("a", 0, shard), DropReason.ROLLED_BACK) for shard in range(2)
    }
    assert not of(Serve, stage.gets("a", after=0))
    told = stage.ends("a", 0, TransferEnd.DISCARDED, DropReason.ROLLED_BACK)
    assert served_at(told) == [ModelVersion(2, OLD)] * 2
    assert not stage.whole.open


def test_a_push_whose_commits_were_all_lost_is_committed_once_more_if_what_it_was_computed_from_was_not():
    stage = gone_back(254)
    stage.ask(holds_of_half_committed(254))
    stage.arrives("a")
    assert stage.prepares(epoch=2) == [conclude(shard, epoch=2) for shard in range(2)]


def test_a_part_that_counts_as_lost_is_answered_however_often_it_is_asked_for_and_never_sent():
    stage = half_committed()
    rolls_back(stage)
    for _ in range(2):
        for shard in range(2):
            told = stage.ask(part_push("a", 0, shard, 254))
            assert resolved(told) == [(part("a", 0, shard), MADE)]
            assert not of((Send, Expect), told)


def test_what_is_left_at_a_server_of_a_push_that_its_worker_does_not_hold_any_more_is_dropped_there():
    left = part("a", 0, 0)
    stage = gone_back(received=(left,))
    told = stage.says("a")
    assert [(i.to, i.update, i.cause) for i in of(Drop, told) if i.to != "a"] == [("s0", left, DropReason.ROLLED_BACK)]
    stage.ask(ended(0, left, TransferEnd.DISCARDED, DropReason.ROLLED_BACK))
    assert not stage.whole.open


def test_what_is_left_of_a_push_that_its_worker_holds_is_not_dropped():
    stage = gone_back(received=(part("a", 0, 0),))
    told = stage.ask(holds_of_half_committed(254))
    assert not of(Drop, told)
    assert part("a", 0, 1) in {i.update for i in of(Send, told)}


def test_a_get_does_not_wait_for_a_push_of_which_one_part_is_asked_for_late():
    stage = gone_back()
    stage.ask(part_push("a", 0, 1, 254))
    assert served_at(stage.gets("a", after=0)) == [ModelVersion(2, OLD)] * 2
