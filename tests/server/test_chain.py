"""A chain: what a primary hands on, and how a replica uses what came so; exact actions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.protocol import (
    Followed,
    HostModel,
    ModelVersion,
    Replicate,
    ReplicationKind,
    SumId,
    Unfollowed,
    UpdateId,
    Void,
)
from mlfabric.server import actions as act
from mlfabric.server.replica_actions import Part
from mlfabric.server.replica_state import ReplicaState
from mlfabric.specs import Mode
from tests.server import test_replica as replicas
from tests.server.stage import SPEC, Stage, expect, offer, update

A0, B0 = update("a", 0), update("b", 0)
SUM = SumId(1, 7)


# The primary


def followed(*held: UpdateId) -> Followed:
    return Followed(
        to="s",
        model="net",
        replica="r",
        version=ModelVersion(1, 0),
        held=held,
        norm=0.0,
        updates=None,
        reason="",
    )


def hand_on(name: UpdateId | SumId) -> Replicate:
    return Replicate(to="s", model="net", term=1, transfer=name, ticket=b"t", rate_bps=0, reason="")


def gated() -> Stage:
    stage = Stage()
    stage.tell(act.SeedTaken(model="net", history_norm=0.0, weights_norm=0.0, steps=0))
    stage.tell(followed())
    return stage


def test_a_primary_hands_on_what_has_come_and_commits_it_once_the_replica_has_it():
    stage = gated()
    assert not [a for a in stage.bring(A0, 1) if isinstance(a, act.ApplyStep)]
    assert stage.tell(hand_on(A0)) == [act.HandOn(order=hand_on(A0), reason="")]
    assert [type(a) for a in stage.tell(followed(A0))] == [act.ApplyStep]


@pytest.mark.parametrize("name", [A0, SUM])
def test_what_has_not_come_is_not_handed_on(name: UpdateId | SumId):
    stage = gated()
    stage.tell(expect(A0, 1))
    stage.tell(offer(A0, 1))
    assert stage.tell(hand_on(name)) == []


def test_what_is_being_applied_is_not_handed_on():
    stage = Stage()
    stage.bring(A0, 1)
    assert stage.tell(hand_on(A0)) == []


def test_what_waited_is_committed_when_there_is_no_replica_any_more():
    stage = gated()
    stage.bring(A0, 1)
    found = stage.tell(Unfollowed(to="s", model="net", reason=""))
    assert [type(a) for a in found] == [act.ApplyStep]


# The replica


class Replica(replicas.Stage):
    """A replica in a chain."""

    def __init__(self, version: int = 0, **fields) -> None:
        self.spec = replace(SPEC, **fields)
        self.state = ReplicaState("r", ReplicationKind.CHAIN)
        self.now_ns = 0
        self.tell(HostModel(to="r", spec=self.spec, reason=""))
        self.seed(version)


def test_every_member_of_a_sum_that_is_here_is_held():
    stage = Replica()
    reports = replicas.reports(stage.bring(SUM, A0, B0))
    assert reports[-1].held == (A0, B0)


def test_what_comes_anew_takes_the_place_of_the_sum_that_it_was_in():
    stage = Replica()
    stage.bring(SUM, A0, B0)
    found = stage.tell(replicas.expect(A0, members=(A0,)))
    assert act.Forget(transfer=SUM, reason="") in found
    assert replicas.reports(found)[-1].held == ()


def test_a_sum_outlives_a_new_seed_that_does_not_have_it():
    stage = Replica()
    stage.bring(SUM, A0, B0)
    stage.seed(0, term=2, name=SumId(1, 9))
    assert SUM in stage.model.transfers


def test_a_sum_is_applied_as_the_steps_of_its_members():
    stage = Replica()
    stage.bring(SUM, A0, B0)
    (order,) = replicas.applied(stage.log(1, A0, B0))
    assert order.parts == (Part(transfer=SUM, place=2),)


def test_a_plain_sum_is_applied_with_the_share_of_each_of_its_members():
    stage = Replica(mode=Mode.SYNCHRONOUS)
    other = update("c", 0)
    stage.bring(SUM, A0, B0)
    stage.bring(other)
    (order,) = replicas.applied(stage.log(1, A0, B0, other, same_version=True))
    assert order.parts == (
        Part(transfer=SUM, place=1, share=1 / 3, sum_of=2),
        Part(transfer=other, place=1, share=1 / 3),
    )


def test_the_scheduler_voids_what_will_not_be_committed():
    stage = Replica()
    stage.bring(SUM, A0, B0)
    found = stage.tell(Void(to="r", model="net", transfer=SUM, reason=""))
    assert act.Forget(transfer=SUM, reason="") in found
