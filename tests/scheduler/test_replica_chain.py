"""What a primary is told to hand on to its replica in a chain, and what becomes of it; exact instructions."""

from __future__ import annotations

import pytest

from mlfabric.protocol import (
    Expect,
    Followed,
    Following,
    HeldBack,
    Instruction,
    MemberJoined,
    MemberLeft,
    MemberSilent,
    Release,
    Replicate,
    ReplicationKind,
    Seed,
    SumId,
    TransferEnd,
    UpdateId,
    Void,
)
from mlfabric.scheduler.replicas import Phase
from mlfabric.specs import Role
from tests.scheduler.stage import (
    SPEC,
    Stage,
    committed,
    committed_together,
    ended,
    holds,
    member,
    push,
    update,
)
from tests.scheduler.test_replicas import TERM, only, reported
from tests.scheduler.test_sums import ALL, ask_all, narrow

A, B = update("a"), update("b")


def join(stage: Stage) -> list[Instruction]:
    follows = Following(server="s", norm=0.0, kind=ReplicationKind.CHAIN)
    joins = member("r", Role.REPLICA, address="r:1")
    return stage.tell(MemberJoined(member=joins, follows=follows))


def chained(stage: Stage) -> Stage:
    join(stage)
    stage.tell(reported(0))
    assert stage.state.models["net"].replication.phase is Phase.FOLLOWING
    return stage


def arrive(stage: Stage, transfer: UpdateId | SumId, by: str = "s") -> list[Instruction]:
    return stage.tell(ended(transfer, TransferEnd.RECEIVED, by=by))


def handed_on(instructions: list[Instruction]) -> list[UpdateId | SumId]:
    orders = only(Replicate, instructions)
    assert all(order.to == "s" and order.term > TERM for order in orders)
    expects = {e.transfer: e.ticket for e in only(Expect, instructions) if e.to == "r"}
    assert all(expects[order.transfer] == order.ticket for order in orders)
    return [order.transfer for order in orders]


def test_the_primary_hands_on_what_has_come_and_workers_send_the_replica_nothing():
    stage = chained(Stage().trained("a"))
    assert not only(Replicate, stage.ask(push("a")))
    assert handed_on(arrive(stage, A)) == [A]
    assert not only(Replicate, stage.tell(reported(0)))


def test_its_worker_need_not_keep_what_the_replica_got():
    stage = chained(Stage().trained("a"))
    stage.ask(push("a"))
    arrive(stage, A)
    found = arrive(stage, A, by="r")
    assert only(Release, found) == [Release(to="a", model="net", term=TERM + 1, updates=(A,), reason="")]
    assert only(Followed, stage.tell(reported(0, A)))[0].held == (A,)


def test_what_came_early_is_handed_on_behind_what_is_committed_before_it():
    stage = chained(Stage().trained("a", "b"))
    ask_all(stage, "a", "b")
    first, second = stage.pushes.planned
    assert handed_on(arrive(stage, second)) == []
    assert handed_on(arrive(stage, first)) == [first, second]


def test_what_the_primary_waits_for_is_handed_on_whatever_is_planned_before_it():
    stage = chained(Stage().trained("a", "b"))
    ask_all(stage, "a", "b")
    _, second = stage.pushes.planned
    arrive(stage, second)
    told = HeldBack(server="s", model="net", transfers=(second,), alone=True, detail="")
    assert handed_on(stage.tell(told)) == [second]


def test_a_link_of_the_primary_is_reserved_until_the_replica_has_it():
    stage = chained(Stage().trained("a"))
    stage.ask(push("a"))
    up = stage.state.context.path("s", "r")[0]
    idle_ns = stage.state.context.network.busy_until(up, stage.now_ns)
    arrive(stage, A)
    assert stage.state.context.network.busy_until(up, stage.now_ns) > idle_ns
    arrive(stage, A, by="r")
    assert stage.state.context.network.busy_until(up, stage.now_ns) == idle_ns


def test_what_was_committed_before_the_primary_kept_to_the_bound_its_worker_sends():
    stage = chained(Stage().trained("a"))
    stage.ask(push("a"))
    arrive(stage, A)
    found = stage.tell(committed(A, 1))
    assert [v.transfer for v in only(Void, found) if v.to == "r"] == [A]
    assert [(order.to, order.transfer) for order in only(Replicate, found)] == [("a", A)]


def test_what_is_committed_while_the_seed_is_on_its_way_goes_by_itself_from_its_worker():
    stage = Stage().trained("a")
    join(stage)
    stage.ask(push("a"))
    stage.tell(committed(A, 1))
    found = stage.tell(reported(0))
    assert [(order.to, order.transfer) for order in only(Replicate, found)] == [("a", A)]


def test_a_worker_that_is_gone_does_not_concern_what_has_come():
    stage = chained(Stage().trained("a", "b"))
    stage.ask(push("a"))
    stage.tell(ended(A, TransferEnd.RECEIVED))
    found = stage.tell(MemberLeft(name="a", incarnation=1))
    assert not only(Void, found)
    assert not only(Seed, found)
    arrive(stage, A, by="r")
    assert not only(Seed, stage.tell(committed(A, 1)))


def test_a_primary_that_came_back_is_told_again_what_to_hand_on_and_what_the_replica_has():
    stage = chained(Stage().trained("a", "b"))
    ask_all(stage, "a", "b")
    first, second = stage.pushes.planned
    arrive(stage, first)
    arrive(stage, first, by="r")
    stage.tell(reported(0, first))
    (order,) = only(Replicate, arrive(stage, second))
    stage.tell(MemberSilent(name="s", incarnation=1))
    found = stage.server(held=(SPEC,))
    assert only(Replicate, found) == [order]
    assert only(Followed, found)[0].held == (first,)
    assert not only(Seed, stage.tell(holds(0, received=(first, second), replica="r")))


@pytest.mark.usefixtures("compiled_planner")
class TestSums:
    """What aggregators send the primary."""

    def sent(self) -> Stage:
        stage = narrow("a", "b", "c")
        chained(stage)
        ask_all(stage, "a", "b", "c")
        return stage

    def test_a_sum_is_handed_on_as_it_came(self):
        stage = self.sent()
        found = arrive(stage, SumId(1, 1))
        (order,) = only(Replicate, found)
        (expect,) = [e for e in only(Expect, found) if e.to == "r"]
        assert (order.to, order.transfer) == ("s", SumId(1, 1))
        assert tuple(m.update for m in expect.members) == ALL
        arrive(stage, SumId(1, 1), by="r")
        found = stage.tell(committed_together(*ALL, number=3))
        assert not only(Void, found)
        assert not only(Replicate, found)

    def test_one_that_the_primary_refuses_is_forgotten_and_its_members_are_handed_on_anew(self):
        stage = self.sent()
        arrive(stage, SumId(1, 1))
        arrive(stage, SumId(1, 1), by="r")
        stage.tell(reported(0, *ALL))
        found = stage.tell(ended(SumId(1, 1), TransferEnd.VOIDED))
        assert [v.transfer for v in only(Void, found) if v.to == "r"] == [SumId(1, 1)]
        assert only(Followed, found)[-1].held == ()
        assert only(Followed, stage.tell(reported(0, *ALL)))[-1].held == ()  # it was on its way
        ask_all(stage, "a")
        assert handed_on(arrive(stage, A)) == [A]
