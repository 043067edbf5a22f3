"""What the scheduler makes of a model that is cut: units, drops, gets; step by step."""

from __future__ import annotations

from dataclasses import replace

from mlfabric.model.specs import Method
from mlfabric.protocol import (
    CancelServe,
    Drop,
    DropReason,
    Fetch,
    GetId,
    ModelVersion,
    Prepare,
    Refuse,
    RefuseReason,
    Send,
    Serve,
    Tick,
    TransferEnd,
    UpdateKind,
    Void,
    Welcome,
)
from mlfabric.scheduler.meter import Meter
from mlfabric.scheduler.status import describe
from mlfabric.telemetry import SchedulerMetrics
from tests.scheduler.shard_stage import (
    CUT,
    PARTS,
    ShardStage,
    conclude,
    ended,
    part,
    part_get,
    part_push,
    prepare,
    prepared,
    refused,
    spec_of,
)
from tests.scheduler.stage import of

# Placing


def test_a_worker_waits_until_there_is_a_server_for_every_part():
    stage = ShardStage()
    stage.server("s0")
    (answer,) = of(Refuse, stage.worker("a", spec=CUT))
    assert answer.cause is RefuseReason.NOT_YET
    assert not stage.state.wholes
    stage.server("s1")
    (welcome,) = of(Welcome, stage.worker("a", spec=CUT))
    assert welcome.server == "s0,s1"
    assert [stage.state.models[f"net.shard{i}"].pushes.server for i in range(2)] == ["s0", "s1"]


def test_a_worker_that_names_the_servers_waits_for_these():
    stage = ShardStage().placed()
    (answer,) = of(Refuse, stage.worker("a", spec=replace(CUT, server="s1,s7")))
    assert answer.cause is RefuseReason.NOT_YET
    stage.server("s7")
    (welcome,) = of(Welcome, stage.worker("a", spec=replace(CUT, server="s1,s7")))
    assert welcome.server == "s1,s7"


def test_parts_that_others_may_hold_are_not_placed_anew():
    stage = ShardStage(term=2)
    stage.server("s0", held=(PARTS[0],))
    stage.server("s2")
    (answer,) = of(Refuse, stage.worker("a", spec=CUT))
    assert answer.cause is RefuseReason.NOT_YET
    stage.server("s1", held=(PARTS[1],))
    assert of(Welcome, stage.worker("a", spec=CUT))


def test_a_model_is_not_cut_in_two_ways():
    stage = ShardStage().begin("a")
    (answer,) = of(Refuse, stage.worker("b", spec=replace(CUT, shards=1)))
    assert answer.cause is RefuseReason.OPTIONS_DIFFER
    stage.server("s2")
    (answer,) = of(Refuse, stage.worker("b", spec=replace(CUT, shards=3)))
    assert answer.cause is RefuseReason.OPTIONS_DIFFER


def test_initial_weights_are_asked_of_one_worker_for_all_parts():
    stage = ShardStage().placed()
    asked = [w.initialise for name in ("a", "b") for w in of(Welcome, stage.worker(name, spec=CUT))]
    assert asked == [True, False]
    told = stage.ask(part_push("a", 0, 0, kind=UpdateKind.INITIAL))
    assert [i.to for i in of(Send, told)] == ["a"]
    assert stage.whole.wants_weights


def test_nothing_is_planned_before_all_parts_have_weights():
    stage = ShardStage().placed()
    stage.worker("a", spec=CUT)
    assert not of(Send, stage.asks("a"))


# Units


def test_a_push_is_sent_once_all_of_it_is_asked_for():
    stage = ShardStage().begin("a")
    assert not of(Send, stage.asks("a", parts=(0,)))
    assert {i.receiver for i in of(Send, stage.asks("a", parts=(1,)))} == {"s0", "s1"}


def test_a_push_is_prepared_once_all_of_it_is_there_and_concluded_once_all_have_prepared_it():
    stage = ShardStage().begin("a")
    stage.asks("a")
    assert not stage.arrives("a", parts=(1,))
    assert stage.arrives("a", parts=(0,)) == [prepare(0, ("a", 0)), prepare(1, ("a", 0))]
    assert not stage.prepares(parts=(1,))
    assert stage.prepares(parts=(0,)) == [conclude(0), conclude(1)]


def test_the_next_unit_begins_when_all_parts_have_committed():
    stage = ShardStage().begin("a", "b")
    stage.pushes_all("a")
    stage.pushes_all("b")
    stage.prepares()
    assert not of(Prepare, stage.commits(("a", 0), parts=(0,)))
    told = stage.commits(("a", 0), parts=(1,))
    assert told == [prepare(0, ("b", 0), version=2, number=2), prepare(1, ("b", 0), version=2, number=2)]


def test_units_are_in_the_order_in_which_pushes_became_complete():
    stage = ShardStage().begin("a", "b", "c")
    stage.pushes_all("a")
    for name in ("b", "c"):
        stage.asks(name)
    for _ in range(2):  # each server has room for its part of c's at another time
        due_ns = stage.state.next_wakeup_ns(stage.now_ns)
        assert due_ns is not None
        stage.now_ns = due_ns
        stage.tick()
    stage.arrives("b", parts=(0,))
    stage.arrives("c")
    stage.arrives("b", parts=(1,))
    stage.prepares()
    told = stage.commits(("a", 0))
    assert of(Prepare, told)[0].transfers == (part("c", 0, 0),)


def test_who_cannot_wait_goes_first():
    spec = replace(CUT, tau_max=1)
    stage = ShardStage().begin("a", "b", "c", spec=spec)
    stage.whole_way("a")
    stage.pushes_all("b", 0, 1)
    stage.asks("a", 1, 1)
    stage.asks("c", 0, 1)
    stage.arrives("a", 1)
    stage.arrives("c", 0)
    stage.prepares(2)
    told = stage.commits(("b", 0), version=2)
    assert of(Prepare, told)[0].transfers == (part("a", 1, 0),)


def test_a_push_that_has_become_too_old_is_dropped_at_all_parts():
    stage = ShardStage().begin("a", "b", spec=replace(CUT, tau_max=1))
    stage.asks("a")
    for number in range(2):
        stage.asks("b", number, number)
        stage.wait(100)
        stage.tick()
        stage.arrives("b", number)
        stage.prepares(number + 1)
        stage.commits(("b", number), version=number + 1)
    told = stage.arrives("a")
    assert not of(Prepare, told)
    assert [(i.to, i.cause) for i in of(Drop, told)] == [(f"s{i}", DropReason.DELAY_BOUND) for i in range(2)]


# Drops


def test_a_refusal_at_one_part_gives_the_unit_up_and_drops_the_culprit_everywhere():
    stage = ShardStage().begin("a")
    stage.pushes_all("a")
    stage.prepares(parts=(0,))
    told = stage.ask(refused(1, part("a", 0, 1), cause=DropReason.NOT_FINITE))
    assert told[0] == conclude(0, commit=False)
    assert [(i.to, i.cause) for i in of(Drop, told)] == [(f"s{i}", DropReason.NOT_FINITE) for i in range(2)]
    stage.ends("a", 0, TransferEnd.DISCARDED, DropReason.NOT_FINITE)
    assert not stage.whole.open
    assert stage.state.context.members["a"].tally.dropped[DropReason.NOT_FINITE.value] == 1


def test_a_refusal_without_a_culprit_is_tried_again_after_a_pause():
    stage = ShardStage().begin("a")
    stage.pushes_all("a")
    told = stage.ask(refused(1))
    assert told == [conclude(0, commit=False)]
    assert stage.state.next_wakeup_ns(stage.now_ns) == stage.now_ns + 100_000_000
    stage.wait(100)
    assert stage.tell(Tick()) == [prepare(0, ("a", 0), number=2), prepare(1, ("a", 0), number=2)]


def test_what_a_worker_discards_is_dropped_at_the_other_parts():
    stage = ShardStage().begin("a")
    stage.asks("a")
    stage.arrives("a", parts=(1,))
    told = stage.ask(ended(0, part("a", 0, 0), TransferEnd.DISCARDED, DropReason.CHANGED, by="a"))
    assert [(i.to, i.update) for i in of(Drop, told)] == [("s1", part("a", 0, 1))]


def test_a_part_on_its_way_is_voided_before_its_worker_is_told_that_it_is_dropped():
    stage = ShardStage().begin("a")
    stage.asks("a")
    told = stage.ask(ended(1, part("a", 0, 1), TransferEnd.DISCARDED, DropReason.WRONG_LAYOUT))
    assert [i.to for i in of(Void, told)] == ["s0"]
    assert not of(Drop, told)
    told = stage.ask(ended(0, part("a", 0, 0), TransferEnd.VOIDED))
    assert [(i.to, i.update, i.cause) for i in of(Drop, told)] == [("a", part("a", 0, 0), DropReason.WRONG_LAYOUT)]


def test_what_a_worker_that_left_has_sent_in_part_is_dropped():
    stage = ShardStage().begin("a", "b")
    stage.asks("a")
    stage.arrives("a", parts=(1,))
    stage.silent("a")
    told = stage.left("a")
    assert [(i.to, i.cause) for i in of(Drop, told)] == [("s1", DropReason.WORKER_GONE)]


def test_what_a_worker_that_left_has_sent_whole_is_committed():
    stage = ShardStage().begin("a", "b")
    stage.pushes_all("b")
    stage.pushes_all("a")
    stage.left("a")
    stage.prepares()
    assert of(Prepare, stage.commits(("b", 0)))[0].transfers == (part("a", 0, 0),)


# Gets


def test_a_get_is_served_at_one_version_once_all_of_it_is_asked_for():
    stage = ShardStage().begin("a")
    stage.whole_way("a")
    assert not stage.gets("a", parts=(0,))
    told = stage.gets("a", parts=(1,))
    assert [(i.to, i.version) for i in of(Serve, told)] == [(f"s{i}", ModelVersion(1, 1)) for i in range(2)]
    assert {i.source for i in of(Fetch, told)} == {"s0", "s1"}


def test_a_get_waits_for_the_end_of_the_unit_that_is_open():
    stage = ShardStage().begin("a", "b")
    stage.pushes_all("a")
    assert not stage.gets("b")
    stage.prepares()
    assert not of(Serve, stage.commits(("a", 0), parts=(1,)))
    told = stage.commits(("a", 0), parts=(0,))
    assert [i.version for i in of(Serve, told)] == [ModelVersion(1, 1)] * 2


def test_gets_come_before_the_next_unit():
    stage = ShardStage().begin("a", "b", "c")
    stage.pushes_all("a")
    stage.pushes_all("b")
    stage.gets("c")
    stage.prepares()
    told = stage.commits(("a", 0))
    assert [type(i) for i in told] == [Serve, Fetch, Serve, Fetch, Prepare, Prepare]


def test_a_get_follows_its_own_push():
    stage = ShardStage().begin("a")
    stage.asks("a")
    assert not of(Serve, stage.gets("a", after=0))
    stage.arrives("a")
    stage.prepares()
    assert [i.version.number for i in of(Serve, stage.commits(("a", 0)))] == [1, 1]


def test_a_get_that_is_asked_for_again_begins_anew_for_all_parts():
    stage = ShardStage().begin("a")
    stage.gets("a")
    told = stage.ask(part_get("a", 0, 1))
    assert {i.to for i in of(CancelServe, told)} == {"s0", "s1"}
    assert not of(Serve, told)
    assert len(of(Serve, stage.ask(part_get("a", 0, 0)))) == 2


def test_a_get_is_over_when_all_parts_are_served():
    stage = ShardStage().begin("a")
    stage.gets("a")
    for shard in range(2):
        assert stage.whole.gets
        stage.ask(ended(shard, GetId("a", 1, shard), TransferEnd.SERVED))
    assert not stage.whole.gets


def test_half_a_get_is_forgotten_after_a_while():
    stage = ShardStage().begin("a")
    stage.gets("a", parts=(0,))
    stage.wait(31_000)
    stage.tell(Tick())
    assert not stage.whole.gets


# Methods


def test_an_iteration_has_the_same_pushes_at_all_parts():
    stage = ShardStage().begin("a", "b", spec=spec_of(Method.SYNCHRONOUS))
    assert not of(Send, stage.asks("a"))
    stage.asks("b", parts=(0,))
    stage.worker("c", spec=spec_of(Method.SYNCHRONOUS))
    assert not of(Send, stage.asks("b", parts=(1,)))
    assert len(of(Send, stage.asks("c"))) == 6
    for name in ("a", "b"):
        stage.arrives(name)
    told = stage.arrives("c")
    assert told == [prepare(i, ("a", 0), ("b", 0), ("c", 0)) for i in range(2)]


def test_who_joins_late_waits_for_the_iteration_and_takes_part_in_the_next():
    stage = ShardStage().begin("a", spec=spec_of(Method.SYNCHRONOUS))
    stage.asks("a")
    stage.worker("b", spec=spec_of(Method.SYNCHRONOUS))
    assert not stage.gets("b")
    assert "under way" in stage.whole.held_back("b")[0]
    stage.arrives("a")
    stage.prepares()
    assert [i.version.number for i in of(Serve, stage.commits(("a", 0)))] == [1, 1]


def test_the_first_iteration_waits_for_as_many_workers_as_the_model_says():
    pair = replace(spec_of(Method.SYNCHRONOUS), workers=2)
    stage = ShardStage().begin("a", spec=pair)
    assert not of(Send, stage.asks("a"))
    stage.worker("b", spec=pair)
    assert len(of(Serve, stage.gets("b"))) == 2
    assert len(of(Send, stage.asks("b"))) == 4
    stage.arrives("a")
    assert stage.arrives("b") == [prepare(i, ("a", 0), ("b", 0)) for i in range(2)]


def test_a_push_that_has_missed_its_iteration_is_dropped_at_all_parts():
    stage = ShardStage().begin("a", spec=spec_of(Method.SYNCHRONOUS))
    stage.asks("a")
    stage.worker("b", spec=spec_of(Method.SYNCHRONOUS))
    stage.asks("b")
    stage.arrives("a")
    stage.prepares()
    told = stage.commits(("a", 0)) + stage.tick()
    dropped = {(i.update, i.cause) for i in of(Drop, told)}
    assert dropped == {(part("b", 0, i), DropReason.DEADLINE_PAST) for i in range(2)}


def test_a_worker_too_far_ahead_is_given_no_part_of_the_model():
    stage = ShardStage().begin("a", "b", spec=spec_of(Method.STALE_SYNCHRONOUS))
    stage.whole_way("a")
    assert not stage.gets("a")
    assert stage.whole.held_back("a")


def test_no_step_is_made_with_slack_either_before_as_many_workers_have_joined_as_the_model_says():
    pair = replace(spec_of(Method.STALE_SYNCHRONOUS), workers=2)
    stage = ShardStage().begin("a", spec=pair)
    assert not of(Prepare, stage.pushes_all("a") + stage.tick())
    told = stage.worker("b", spec=pair)
    assert of(Prepare, told) == [prepare(i, ("a", 0)) for i in range(2)]


# Status


def test_the_status_has_a_row_for_each_part_and_says_what_is_waited_for():
    stage = ShardStage().begin("a")
    stage.pushes_all("a")
    stage.ask(prepared(0))
    status = describe(stage.state, Meter(SchedulerMetrics(), "0"), stage.now_ns)
    rows = {m.name: m for m in status.models}
    assert set(rows) == {"net.shard0", "net.shard1"}
    assert rows["net.shard0"].waits_for == "a#0 is being committed; s1 to answer"
    activity = {m.name: m.activity for m in status.members}
    assert activity["a"] == "sending"
    assert status.workers[0].model == "net"
