"""What a worker keeps for a replica: copies, the window, what is sent; exact actions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.protocol import (
    Fold,
    Keep,
    NotKept,
    Release,
    Replicate,
    SumId,
    Tick,
    TransferId,
)
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.state import FIRST_PAUSE_NS
from tests.worker_daemon.stage import DONE, LATE, Stage, answered, update

W1, W2 = SumId(1, 1), SumId(1, 2)


def keep(term: int = 1, receiver: str = "r") -> Keep:
    return Keep(to="a", model="net", term=term, receiver=receiver, address="r:1", reason="")


def fold(counter: int, *lrs: float, term: int = 1) -> Fold:
    return Fold(
        to="a", model="net", term=term, update=update(counter), lrs=lrs or (0.1,), share=1.0, begins=True, reason=""
    )


def replicate(transfer: TransferId, term: int = 1) -> Replicate:
    return Replicate(to="a", model="net", term=term, transfer=transfer, ticket=b"t", rate_bps=0, reason="")


def kept(*counters: int) -> Stage:
    """Return a daemon whose model has a replica, and that keeps these updates for it."""
    stage = Stage()
    stage.tell(keep())
    for counter in counters:
        stage.push(counter)
        commit(stage, counter)
    return stage


def commit(stage: Stage, counter: int) -> list[act.Action]:
    return stage.tell(answered(counter, DONE))


def copy(counter: int) -> act.KeepCopy:
    return act.KeepCopy(update=update(counter))


def start(plan: Replicate) -> act.StartReplicate:
    return act.StartReplicate(plan=plan, receiver="r", address="r:1")


@pytest.mark.parametrize(
    ("receiver", "outcome", "actions"),
    [
        ("r", DONE, [act.KeepCopy, act.Settle]),
        ("r", LATE, [act.Settle, act.Request]),
        ("", DONE, [act.Settle]),
    ],
    ids=["committed", "dropped", "without a replica"],
)
def test_an_update_that_is_committed_is_copied_before_its_handle_resolves_if_there_is_a_replica(
    receiver, outcome, actions
):
    stage = kept()
    stage.tell(keep(receiver=receiver))
    stage.push(0)
    assert [type(action) for action in stage.tell(answered(0, outcome))] == actions


def test_what_is_kept_is_folded_and_then_sent():
    stage = kept(0, 1)
    assert stage.tell(fold(0)) == [act.FoldCopy(update=update(0), lrs=(0.1,), share=1.0, begins=True)]
    assert stage.tell(fold(1, 0.1, 0.2)) == [act.FoldCopy(update=update(1), lrs=(0.1, 0.2), share=1.0, begins=True)]
    assert stage.tell(replicate(W1)) == [act.FreezeWindow(transfer=W1), start(replicate(W1))]
    assert stage.tell(act.ReplicaAnswered(transfer=W1, ticket=b"t")) == [act.EndReplicate(transfer=W1)]


def test_an_update_that_is_folded_before_its_outcome_came_is_copied_once():
    stage = kept()
    stage.push(0)
    found = stage.tell(fold(0))
    assert found == [copy(0), act.FoldCopy(update=update(0), lrs=(0.1,), share=1.0, begins=True)]
    assert [type(a) for a in commit(stage, 0)] == [act.Settle]


def test_an_update_goes_to_the_replica_by_itself_before_it_is_committed():
    stage = kept()
    stage.push(0)
    assert stage.tell(replicate(update(0))) == [copy(0), start(replicate(update(0)))]
    assert [type(a) for a in commit(stage, 0)] == [act.Settle]
    assert stage.tell(act.ReplicaAnswered(transfer=update(0), ticket=b"t"))


def test_what_is_dropped_is_not_sent_any_more():
    stage = kept()
    stage.push(0)
    stage.tell(replicate(update(0)))
    found = stage.tell(answered(0, LATE))
    assert act.EndReplicate(transfer=update(0)) in found


def test_what_breaks_is_sent_again_after_a_pause():
    stage = kept(0)
    stage.tell(fold(0), replicate(W1), act.ReplicaBroken(transfer=W1, ticket=b"t"))
    assert stage.tell(Tick()) == []
    assert stage.state.next_wakeup_ns() == FIRST_PAUSE_NS
    stage.now_ns = FIRST_PAUSE_NS
    assert stage.tell(Tick()) == [start(replicate(W1))]


def test_what_is_not_here_is_a_hole():
    stage = kept()
    hole = NotKept(member="a", model="net", term=1, detail="a#7 is not here any more")
    assert stage.tell(fold(7)) == [act.Request(event=hole), act.DropWindow()]
    stage.tell(keep())
    assert stage.tell(replicate(update(7))) == [act.Request(event=hole), act.DropWindow()]


def test_after_a_hole_no_window_is_sent_that_others_believe_to_be_whole():
    stage = kept(0)
    stage.tell(fold(0), fold(7))
    assert stage.tell(replicate(W1)) == []


def test_an_order_that_comes_twice_is_carried_out_once():
    stage = kept()
    stage.push(0)
    assert stage.tell(fold(0))
    assert stage.tell(fold(0)) == []
    assert stage.tell(replicate(W1))
    stage.tell(act.ReplicaAnswered(transfer=W1, ticket=b"t"))
    assert stage.tell(replicate(W1)) == []


def test_what_the_replica_has_is_sent_no_more_though_its_answer_was_lost():
    stage = kept(0)
    stage.tell(fold(0), replicate(W1))
    release = Release(to="a", model="net", term=1, updates=(update(0),), reason="")
    assert stage.tell(release) == [act.EndReplicate(transfer=W1)]


def test_what_the_seed_has_in_it_is_released():
    stage = kept(0, 1)
    release = Release(to="a", model="net", term=1, updates=(update(0),), reason="")
    assert stage.tell(release) == [act.DropCopies(updates=(update(0),))]
    assert stage.tell(fold(1))


def test_a_new_term_begins_with_nothing():
    stage = kept(0, 1)
    stage.tell(fold(0), replicate(W1))
    assert stage.tell(keep(term=2)) == [
        act.EndReplicate(transfer=W1),
        act.DropCopies(updates=(update(1),)),
        act.DropWindow(),
    ]
    assert stage.tell(replicate(W2)) == []
    assert stage.tell(act.ReplicaAnswered(transfer=W1, ticket=b"t")) == []


def test_what_an_earlier_term_orders_is_nothing():
    stage = kept(0)
    stage.tell(keep(term=2))
    stage.push(1)
    commit(stage, 1)
    assert stage.tell(fold(1, term=1)) == []


def test_a_new_scheduler_knows_nothing_of_what_was_kept():
    stage = kept(0)
    found = stage.tell(act.TermBegan(term=9))
    assert act.DropCopies(updates=(update(0),)) in found


def test_another_ticket_for_what_is_being_sent_begins_it_anew():
    stage = kept()
    stage.push(0)
    stage.tell(replicate(update(0)))
    assert stage.tell(replicate(update(0))) == []
    anew = replace(replicate(update(0)), ticket=b"u")
    assert stage.tell(anew) == [start(anew)]
    stage.tell(act.ReplicaBroken(transfer=update(0), ticket=b"t"))
    assert stage.state.next_wakeup_ns() is None
