"""What an aggregator does about the sums that it is told to make, as exact lists of actions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mlfabric.aggregator import actions as act
from mlfabric.protocol import Dropped, DropReason, TransferEnd
from tests.aggregator.stage import (
    SIZE,
    Stage,
    abandon,
    answer,
    broken,
    cancel,
    committed,
    give_up,
    grant,
    offer,
    offer_sum,
    order,
    outcomes,
    refuse,
    report,
    reserve,
    seal,
    sealed,
    sum_id,
    ticket,
    unusable,
    update,
)

A, B, C = update("wa"), update("wb"), update("wc")


def test_a_stored_sum_is_offered_and_sealed_when_all_its_inputs_are_sealed():
    stage = Stage()
    plan = order(1, A, B)

    assert stage.tell(plan) == []
    assert stage.tell(offer(A, 1)) == [reserve(plan), grant(1, 0, A, 1)]
    assert stage.tell(offer(B, 2)) == [grant(1, 1, B, 2)]
    assert stage.tell(sealed(A, 1)) == [report(A, TransferEnd.RECEIVED)]
    assert stage.tell(sealed(B, 2)) == [report(B, TransferEnd.RECEIVED), offer_sum(plan), seal(1)]
    assert stage.tell(act.SumSealed(sum=sum_id(1))) == [act.ForgetSum(plan=plan, reason="")]


def test_a_cut_through_sum_is_offered_when_its_first_input_is_here_and_sealed_after_the_last():
    stage = Stage()
    plan = order(1, A, B, cut_through=True)
    stage.tell(plan)

    assert stage.tell(offer(B, 2)) == [reserve(plan), offer_sum(plan), grant(1, 1, B, 2)]
    assert stage.tell(sealed(B, 2)) == [report(B, TransferEnd.RECEIVED)]
    stage.tell(offer(A, 1))
    assert stage.tell(sealed(A, 1)) == [report(A, TransferEnd.RECEIVED), seal(1)]


def test_each_input_learns_its_own_part_of_the_outcomes():
    stage = Stage()
    stage.tell(order(2, sum_id(1), C, members=(A, B, C)))
    stage.bring(sum_id(1), 1)
    stage.bring(C, 2)
    stage.tell(act.SumSealed(sum=sum_id(2)))
    stranger = update("stranger")
    told = [(A, committed(5)), (B, committed(6)), (C, committed(7)), (stranger, committed(8))]

    assert stage.tell(outcomes(2, *told)) == [answer(1, *told[:2]), answer(2, told[2])]
    assert not stage.state.sums.sums


def test_an_input_whose_outcome_did_not_come_is_refused():
    stage = Stage()
    stage.tell(order(1, A, B))
    stage.bring(A, 1)
    stage.bring(B, 2)
    stage.tell(act.SumSealed(sum=sum_id(1)))

    assert stage.tell(outcomes(1, (A, committed(1)))) == [answer(1, (A, committed(1))), refuse(2)]


def test_outcomes_that_come_before_the_sum_is_sent_end_it():
    stage = Stage()
    stage.tell(order(1, A, B, cut_through=True))
    stage.bring(A, 1)
    stage.tell(offer(B, 2))
    dropped = Dropped(cause=DropReason.WRONG_LAYOUT)

    told = outcomes(1, (A, dropped), (B, dropped))
    assert stage.tell(told) == [give_up(1), answer(1, (A, dropped)), abandon(2)]


def test_an_input_that_is_sealed_may_lose_its_connection():
    stage = Stage()
    stage.tell(order(1, A, B))
    stage.bring(A, 1)

    assert stage.tell(broken(A, 1)) == []
    assert offer_sum(order(1, A, B)) in stage.bring(B, 2)
    stage.tell(act.SumSealed(sum=sum_id(1)))
    assert stage.tell(outcomes(1, (A, committed(1)), (B, committed(2)))) == [answer(2, (B, committed(2)))]


def test_another_sum_that_is_not_finite_only_tears():
    stage = Stage()
    stage.tell(order(2, sum_id(1), C, members=(A, B, C)), offer(sum_id(1), 1))

    assert stage.tell(unusable(sum_id(1), 1)) == [
        give_up(2),
        abandon(1),
        report(sum_id(2), TransferEnd.TORN, "sum 1: w has NaN or Inf"),
    ]


def test_a_new_scheduler_voids_every_sum():
    stage = Stage()
    stage.tell(act.TermBegan(term=1), order(1, A), order(2, B), offer(B, 2))

    assert stage.tell(act.TermBegan(term=1)) == []
    assert stage.tell(act.TermBegan(term=2)) == [give_up(2), abandon(2)]
    assert not stage.state.sums.sums


def test_an_offer_that_overtook_the_order_waits_for_it():
    stage = Stage()
    plan = order(1, A)

    assert stage.tell(offer(A, 1)) == []
    assert stage.tell(plan) == [reserve(plan), grant(1, 0, A, 1)]


def test_one_who_comes_after_the_end_is_refused_at_once():
    stage = Stage()
    stage.tell(order(1, A, B), offer(A, 1), broken(A, 1))

    assert stage.tell(offer(B, 2)) == [refuse(2)]


def test_an_update_that_is_never_offered_tears_the_sum():
    stage = Stage()
    stage.tell(order(1, A, B))
    stage.bring(A, 1)

    assert stage.tick(9.9) == []
    assert stage.tick(0.2) == [
        give_up(1),
        refuse(1),
        report(sum_id(1), TransferEnd.TORN, "wb#0: it was never offered"),
    ]


def test_another_aggregators_sum_may_take_as_long_as_it_takes():
    stage = Stage()
    stage.tell(order(2, sum_id(1), C, members=(A, C)))
    stage.bring(C, 1)

    assert stage.state.next_wakeup_ns() is None
    assert stage.tick(60) == []


def test_an_offer_on_another_connection_takes_the_place_of_the_first():
    stage = Stage()
    stage.tell(order(1, A, B, after={B: (A,)}), offer(A, 1), offer(B, 2))

    assert stage.tell(offer(B, 3)) == [abandon(2)]
    assert stage.tell(broken(B, 2)) == []
    assert grant(1, 1, B, 3) in stage.tell(sealed(A, 1))


def test_an_input_that_is_offered_anew_while_it_is_received_tears_the_sum():
    stage = Stage()
    stage.tell(order(1, A, B), offer(A, 1))

    assert stage.tell(offer(A, 2)) == [
        refuse(2),
        give_up(1),
        abandon(1),
        report(sum_id(1), TransferEnd.TORN, "wa#0: offered anew while it was received"),
    ]


def test_a_sealed_input_that_is_offered_anew_is_answered_there():
    stage = Stage()
    stage.tell(order(1, A, B))
    stage.bring(A, 1)

    assert stage.tell(offer(A, 4)) == [abandon(1)]
    stage.bring(B, 2)
    stage.tell(act.SumSealed(sum=sum_id(1)))
    assert answer(4, (A, committed(1))) in stage.tell(outcomes(1, (A, committed(1)), (B, committed(2))))


def test_a_sum_that_is_ordered_again_stays_as_it_is():
    stage = Stage()
    stage.tell(order(1, A, B))
    stage.bring(A, 1)

    assert stage.tell(order(1, A, B, receiver="another")) == []
    assert offer_sum(order(1, A, B)) in stage.bring(B, 2)


@pytest.mark.parametrize(
    ("plan", "detail"),
    [
        (replace(order(1, A), model="strange"), "model 'strange' is not known here"),
        (order(1, A, A), "an input is named twice"),
        (
            replace(order(1, A), inputs=(replace(order(1, A).inputs[0], size_bytes=16),)),
            f"wa#0 of 16 bytes cannot go into it; wanted {SIZE}",
        ),
        (
            replace(order(1, A), inputs=(replace(order(1, A).inputs[0], second=math.nan),)),
            "a coefficient of an input is no number",
        ),
        (order(1, B), "wb#0 goes into sum 9 already"),
    ],
)
def test_a_sum_that_cannot_be_made_is_reported_torn_at_once_and_changes_nothing(plan, detail):
    stage = Stage()
    stage.tell(order(9, B))

    assert stage.tell(plan) == [report(sum_id(1), TransferEnd.TORN, detail, model=plan.model)]
    assert list(stage.state.sums.sums) == [sum_id(9)]


def test_words_about_unknown_sums_and_inputs_change_nothing():
    stage = Stage()
    events: list[act.AggregatorEvent] = [
        sealed(A, 1),
        unusable(A, 1),
        outcomes(1, (A, committed(1))),
        act.SumSealed(sum=sum_id(1)),
        act.SumFailed(sum=sum_id(1), detail=""),
        cancel(1),
    ]

    assert [stage.tell(event) for event in events] == [[]] * len(events)


def test_a_ticket_admits_only_the_transfer_that_it_was_made_for():
    stage = Stage()
    stage.tell(order(1, A, B))

    assert stage.tell(offer(B, 1, ticket=ticket(A))) == []


# Which inputs may come, and which sums get memory


def test_inputs_wait_for_those_that_the_plan_ends_before_them_even_in_other_sums():
    stage = Stage()
    stage.tell(order(1, A, B, after={B: (A,)}), order(2, C, after={C: (B,)}), offer(A, 1))

    assert stage.tell(offer(C, 3)) == [reserve(order(2, C, after={C: (B,)}))]
    assert stage.tell(offer(B, 2)) == []
    assert grant(1, 1, B, 2) in stage.tell(sealed(A, 1))
    assert grant(2, 0, C, 3) in stage.tell(sealed(B, 2))


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
    stage.tell(order(1, A), order(2, B), offer(A, 1), offer(B, 2))

    assert reserve(order(2, B)) in stage.tell(broken(A, 1))
