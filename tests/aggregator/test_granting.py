"""Which inputs may come, and which sums get memory, as exact lists of actions."""

from __future__ import annotations

from mlfabric.aggregator import actions as act
from tests.aggregator.stage import (
    Stage,
    broken,
    grant,
    offer,
    order,
    reserve,
    sealed,
    sum_id,
    update,
)

A, B, C = update("wa"), update("wb"), update("wc")


def test_inputs_wait_for_those_that_the_plan_ends_before_them_even_in_other_sums():
    stage = Stage()
    stage.tell(order(1, A, B, after={B: (A,)}))
    stage.tell(order(2, C, after={C: (B,)}))
    stage.tell(offer(A, 1))

    assert stage.tell(offer(C, 3)) == [reserve(order(2, C, after={C: (B,)}))]
    assert stage.tell(offer(B, 2)) == []
    assert grant(1, 1, B, 2) in stage.tell(sealed(A, 1))
    assert grant(2, 0, C, 3) in stage.tell(sealed(B, 2))


def test_one_that_is_late_to_offer_keeps_nobody_waiting():
    stage = Stage()
    stage.tell(order(1, A, B, after={B: (A,)}))

    assert grant(1, 1, B, 2) in stage.tell(offer(B, 2))


def test_another_sum_that_comes_early_does_not_hold_up_updates_that_the_plan_puts_before_it():
    stage = Stage()
    stage.tell(order(2, A, B, sum_id(1), members=(A, B, C), after={B: (A,), sum_id(1): (B,)}))
    stage.tell(offer(sum_id(1), 1))

    assert stage.tell(offer(A, 2)) == [grant(2, 0, A, 2)]
    assert stage.tell(offer(B, 3)) == []
    assert grant(2, 1, B, 3) in stage.tell(sealed(A, 2))


def test_another_sum_waits_for_updates_that_run_before_it():
    stage = Stage()
    stage.tell(order(2, A, sum_id(1), members=(A, B), after={sum_id(1): (A,)}))
    stage.tell(offer(A, 2))

    assert stage.tell(offer(sum_id(1), 1)) == []
    assert grant(2, 1, sum_id(1), 1) in stage.tell(sealed(A, 2))


def test_memory_goes_by_seq_and_the_lowest_sum_may_exceed_it():
    stage = Stage(budget_sums=1)
    second, first, third = order(5, A, seq=2), order(6, B, seq=1, images=2), order(7, C, seq=3)
    for plan in (second, first, third):
        stage.tell(plan)

    assert stage.tell(offer(A, 1)) == [reserve(second), grant(5, 0, A, 1)]
    assert stage.tell(offer(C, 3)) == []
    assert stage.tell(offer(B, 2)) == [reserve(first), grant(6, 0, B, 2)]
    stage.tell(sealed(A, 1))
    assert stage.tell(act.SumSealed(sum=sum_id(5))) == [act.ForgetSum(plan=second, reason="")]
    stage.tell(sealed(B, 2))
    assert stage.tell(act.SumSealed(sum=sum_id(6))) == [
        act.ForgetSum(plan=first, reason=""),
        reserve(third),
        grant(7, 0, C, 3),
    ]


def test_a_torn_sum_gives_its_memory_to_the_next():
    stage = Stage(budget_sums=1)
    stage.tell(order(1, A))
    stage.tell(order(2, B))
    stage.tell(offer(A, 1))
    stage.tell(offer(B, 2))

    assert reserve(order(2, B)) in stage.tell(broken(A, 1))
