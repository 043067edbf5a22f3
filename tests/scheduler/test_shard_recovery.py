"""A model that is cut after somebody was away: given up, rolled forward, or torn; step by step."""

from __future__ import annotations

from dataclasses import replace

from mlfabric.protocol import (
    CancelServe,
    Conclude,
    Drop,
    DropReason,
    Expect,
    HostModel,
    InitialReceived,
    ModelVersion,
    Prepare,
    Send,
    Serve,
    Tick,
    WorkerHolds,
)
from tests.scheduler.shard_stage import (
    CUT,
    PARTS,
    ShardStage,
    conclude,
    part,
    part_holds,
    part_push,
    prepare,
    prepared,
    refused,
)
from tests.scheduler.stage import of


def new_scheduler(*holds) -> ShardStage:
    """Return the second scheduler, to which the servers come back."""
    stage = ShardStage(term=2)
    for shard in range(2):
        stage.server(f"s{shard}", held=(PARTS[shard],))
    for said in holds:
        stage.tell(said)
    return stage


def back(stage: ShardStage, shard: int, *args, **fields):
    """Let a server's stream break, and let it come back with what it holds."""
    stage.silent(f"s{shard}")
    stage.server(f"s{shard}", held=(PARTS[shard],))
    return stage.ask(part_holds(shard, *args, **fields))


def test_a_unit_that_is_not_decided_is_given_up_when_a_server_comes_back_and_begun_anew():
    stage = ShardStage().begin("a")
    stage.pushes_all("a")
    stage.prepares(parts=(0,))
    told = back(stage, 1, 0, received=(part("a", 0, 1),))
    assert told[0] == conclude(0, commit=False)
    assert told[-2:] == [prepare(0, ("a", 0), number=2), prepare(1, ("a", 0), number=2)]


def test_a_part_whose_server_missed_its_model_lets_the_others_count_as_before():
    stage = ShardStage().placed()
    stage.worker("a", spec=CUT)
    stage.tell(InitialReceived(server="s0", model="net.shard0", version=ModelVersion(1, 0)))
    stage.silent("s1")
    assert [i.epoch for i in of(HostModel, stage.server("s1"))] == [2]
    assert stage.whole.version == ModelVersion(2, 0)


def test_a_server_that_says_twice_what_it_holds_is_told_that_the_unit_between_is_given_up():
    stage = ShardStage().begin("a")
    stage.pushes_all("a")
    told = stage.ask(part_holds(1, 0, received=(part("a", 0, 1),)))
    assert of(Conclude, told) == [conclude(0, commit=False), conclude(1, commit=False)]
    assert told[-2:] == [prepare(0, ("a", 0), number=2), prepare(1, ("a", 0), number=2)]


def test_a_decided_unit_that_a_server_has_not_committed_is_rolled_forward_there():
    stage = ShardStage().begin("a", "b")
    stage.pushes_all("a")
    stage.prepares()
    stage.commits(("a", 0), parts=(0,))
    told = back(stage, 1, 0, received=(part("a", 0, 1),))
    assert told[-1] == prepare(1, ("a", 0))
    assert [(i.to, i.transfer) for i in of(Expect, told)] == [("s1", part("a", 0, 1))]
    assert stage.ask(prepared(1)) == [conclude(1)]
    stage.commits(("a", 0), parts=(1,))
    assert stage.whole.unit is None
    assert stage.whole.version.number == 1


def test_a_decided_unit_is_over_if_the_server_that_came_back_has_committed_it():
    stage = ShardStage().begin("a")
    stage.pushes_all("a")
    stage.prepares()
    stage.commits(("a", 0), parts=(0,))
    back(stage, 1, 1, ("a", 0, 1))
    assert stage.whole.unit is None
    assert not stage.whole.open


def test_a_new_scheduler_waits_until_all_servers_have_said_what_they_hold():
    stage = ShardStage(term=2)
    stage.server("s0", held=(PARTS[0],))
    stage.tell(part_holds(0, 1, ("a", 0, 1)))
    stage.server("s1", held=(PARTS[1],))
    stage.worker("a", spec=CUT)
    assert not of(Send, stage.asks("a", 1, 1))
    stage.tell(part_holds(1, 1, ("a", 0, 1)))
    assert len(of(Send, stage.tick())) == 2


def test_a_new_scheduler_rolls_forward_what_one_server_has_not_committed():
    stage = new_scheduler(part_holds(0, 1, ("a", 0, 1)))
    told = stage.ask(part_holds(1, 0, received=(part("a", 0, 1),)))
    assert told == [prepare(1, ("a", 0), epoch=2)]
    assert stage.ask(prepared(1, epoch=2)) == [conclude(1, epoch=2)]


def test_a_part_of_a_half_committed_push_that_is_lost_is_sent_again_before_anything_else():
    stage = new_scheduler(part_holds(0, 1, ("a", 0, 1)), part_holds(1, 0))
    stage.worker("a", spec=CUT)
    requests = (part_push("a", 0, 1), part_push("a", 0, 0))
    told = stage.ask(WorkerHolds(worker="a", pushes=requests, gets=()))
    assert [i.update for i in of(Send, told)] == [part("a", 0, 1)]
    assert not stage.whole.torn
    assert stage.arrives("a", parts=(1,))[-1] == prepare(1, ("a", 0), epoch=2)


def test_a_push_that_is_complete_everywhere_is_committed_by_a_new_scheduler_without_its_worker():
    received = [(part("a", 0, shard),) for shard in range(2)]
    stage = new_scheduler(part_holds(0, 0, received=received[0]))
    told = stage.ask(part_holds(1, 0, received=received[1]))
    assert told == [prepare(0, ("a", 0), epoch=2), prepare(1, ("a", 0), epoch=2)]


def test_a_gradient_that_is_found_at_a_server_without_weights_is_dropped_when_it_is_refused_there():
    found = part_holds(0, 0, received=(part("a", 0, 0),))
    stage = new_scheduler(*(replace(holds, initialised=False) for holds in (found, part_holds(1, 0))))
    stage.worker("a", spec=CUT)
    stage.asks("a")
    stage.part_weights(0)
    stage.arrives("a")
    no = refused(0, part("a", 0, 0), cause=DropReason.ROLLED_BACK)
    told = stage.ask(replace(no, unit=prepared(0, epoch=2).unit))
    assert {drop.cause for drop in of(Drop, told)} == {DropReason.ROLLED_BACK}


def test_a_push_that_is_complete_at_some_parts_is_dropped_if_its_worker_does_not_come_back():
    stage = new_scheduler(part_holds(0, 0, received=(part("a", 0, 0),)))
    assert not stage.ask(part_holds(1, 0))
    due_ns = stage.state.next_wakeup_ns(stage.now_ns)
    assert due_ns == stage.now_ns + stage.state.context.config.silence_ns
    stage.now_ns = due_ns
    told = stage.tell(Tick())
    assert [(i.to, i.cause) for i in of(Drop, told)] == [("s0", DropReason.WORKER_GONE)]


def test_servers_that_are_more_than_one_version_apart_are_torn_and_nothing_is_done():
    stage = new_scheduler(part_holds(0, 5, ("a", 4, 5)))
    stage.worker("a", spec=CUT)
    stage.ask(part_holds(1, 3, ("a", 2, 3)))
    assert stage.whole.torn.startswith("net is torn: part 0 at s0 at version 5, part 1 at s1 at version 3")
    assert "stop all servers" in stage.whole.waits_for
    assert not of((Send, Serve), stage.asks("a", 5, 5) + stage.gets("a"))


def test_a_model_is_torn_while_the_worker_is_gone_that_has_what_one_server_lacks():
    stage = ShardStage().begin("a", "b")
    stage.pushes_all("a")
    stage.prepares()
    stage.commits(("a", 0), parts=(0,))
    stage.left("a")
    back(stage, 1, 0)
    assert "torn" in stage.whole.torn
    assert not of((Send, Serve), stage.asks("b") + stage.gets("b"))


def test_servers_that_all_come_back_at_one_version_are_torn_no_longer():
    stage = new_scheduler(part_holds(0, 5), part_holds(1, 3))
    assert stage.whole.torn
    stage.worker("a", spec=CUT)
    back(stage, 0, 3)
    assert not stage.whole.torn
    assert len(of(Serve, stage.gets("a"))) == 2


def test_a_server_that_comes_back_without_weights_tears_the_model():
    stage = ShardStage().begin("a")
    stage.whole_way("a")
    stage.left("s1")
    stage.server("s1", incarnation=2)
    assert "part 1 at s1 without weights" in stage.whole.torn


def test_what_a_server_that_came_back_was_serving_is_asked_for_again():
    stage = ShardStage().begin("a")
    stage.gets("a")
    told = back(stage, 1, 0)
    assert [i.to for i in of(CancelServe, told)] == ["s1"]
    assert len(of(Serve, stage.gets("a"))) == 2


def test_the_next_unit_waits_for_a_server_that_is_away():
    stage = ShardStage().begin("a", "b")
    stage.pushes_all("a")
    stage.prepares()
    stage.silent("s1")
    stage.asks("b")
    assert not of((Prepare, Send), stage.commits(("a", 0)))
