"""A sum that is offered before its turn does not keep the link from updates that the plan puts before it."""

from __future__ import annotations

from mlfabric.protocol import SumId
from tests.server.stage import Stage, expect, expect_sum, grant, member, offer, update

A, B, C = update("a"), update("b"), update("c")
SUM = SumId(1, 0)


def test_an_update_is_granted_while_a_later_sum_trickles_in():
    stage = Stage()
    stage.tell(expect(A, 1))
    stage.tell(expect_sum(SUM, 2, member(B), member(C), after=(A,)))
    stage.tell(offer(SUM, 1))

    assert stage.tell(offer(A, 2)) == [grant(A, 2)]


def test_a_sum_still_waits_for_the_updates_before_it_that_run():
    stage = Stage()
    stage.tell(expect(A, 1))
    stage.tell(expect_sum(SUM, 2, member(B), member(C), after=(A,)))
    stage.tell(offer(A, 2))

    assert stage.tell(offer(SUM, 1)) == []
