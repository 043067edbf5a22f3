"""What a worker keeps for a replica: copies, the window, what is sent; exact actions."""

from __future__ import annotations

from dataclasses import replace

from mlfabric.protocol import (
    Committed,
    Dropped,
    DropReason,
    Fold,
    Keep,
    ModelVersion,
    NotKept,
    PushRequested,
    Release,
    Replicate,
    SumId,
    Tick,
    TransferId,
    UpdateId,
)
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.keeping import FIRST_PAUSE_NS
from mlfabric.worker_daemon.state import DaemonState
from tests.bare import bare

W1, W2 = SumId(1, 1), SumId(1, 2)


def update(counter: int) -> UpdateId:
    return UpdateId("a", 1, counter)


def keep(term: int = 1, receiver: str = "r") -> Keep:
    return Keep(to="a", model="net", term=term, receiver=receiver, address="r:1", reason="")


def fold(counter: int, *lrs: float, term: int = 1) -> Fold:
    return Fold(
        to="a", model="net", term=term, update=update(counter), lrs=lrs or (0.1,), share=1.0, begins=True, reason=""
    )


def replicate(transfer: TransferId, term: int = 1) -> Replicate:
    return Replicate(to="a", model="net", term=term, transfer=transfer, ticket=b"t", rate_bps=0, reason="")


class Stage:
    """One daemon whose model has a replica."""

    def __init__(self) -> None:
        self.state = DaemonState("a")
        self.now_ns = 0
        self.tell(keep())

    def tell(self, event: act.DaemonEvent) -> list[act.Action]:
        actions = self.state.handle(event, self.now_ns)
        self.state.validate()
        return bare(actions)

    def push(self, counter: int) -> None:
        request = PushRequested(
            update=update(counter), model="net", size_bytes=8, computed_from=ModelVersion(1, 0), norm=1.0
        )
        self.tell(act.PushCalled(request=request))

    def commit(self, counter: int) -> list[act.Action]:
        outcome = Committed(version=ModelVersion(1, counter + 1), tau=0)
        return self.tell(act.OutcomeReceived(update=update(counter), outcome=outcome))

    def kept(self, *counters: int) -> Stage:
        for counter in counters:
            self.push(counter)
            self.commit(counter)
        return self


def copy(counter: int) -> act.KeepCopy:
    return act.KeepCopy(update=update(counter))


def start(plan: Replicate) -> act.StartReplicate:
    return act.StartReplicate(plan=plan, receiver="r", address="r:1")


def test_an_update_is_copied_before_its_handle_resolves():
    stage = Stage()
    stage.push(0)
    found = stage.commit(0)
    assert [type(a) for a in found] == [act.KeepCopy, act.Settle]


def test_without_a_replica_nothing_is_copied():
    stage = Stage()
    stage.tell(keep(receiver=""))
    stage.push(0)
    assert [type(a) for a in stage.commit(0)] == [act.Settle]


def test_what_is_not_committed_is_not_copied():
    stage = Stage()
    stage.push(0)
    dropped = Dropped(cause=DropReason.DELAY_BOUND)
    told = stage.tell(act.OutcomeReceived(update=update(0), outcome=dropped))
    assert [type(action) for action in told] == [act.Settle, act.Request]


def test_what_is_kept_is_folded_and_then_sent():
    stage = Stage().kept(0, 1)
    assert stage.tell(fold(0)) == [act.FoldCopy(update=update(0), lrs=(0.1,), share=1.0, begins=True)]
    assert stage.tell(fold(1, 0.1, 0.2)) == [act.FoldCopy(update=update(1), lrs=(0.1, 0.2), share=1.0, begins=True)]
    assert stage.tell(replicate(W1)) == [act.FreezeWindow(transfer=W1), start(replicate(W1))]
    assert stage.tell(act.ReplicaAnswered(transfer=W1, ticket=b"t")) == [act.EndReplicate(transfer=W1)]


def test_an_update_that_is_folded_before_its_outcome_came_is_copied_once():
    stage = Stage()
    stage.push(0)
    found = stage.tell(fold(0))
    assert found == [copy(0), act.FoldCopy(update=update(0), lrs=(0.1,), share=1.0, begins=True)]
    assert [type(a) for a in stage.commit(0)] == [act.Settle]


def test_an_update_goes_to_the_replica_by_itself_before_it_is_committed():
    stage = Stage()
    stage.push(0)
    assert stage.tell(replicate(update(0))) == [copy(0), start(replicate(update(0)))]
    assert [type(a) for a in stage.commit(0)] == [act.Settle]
    assert stage.tell(act.ReplicaAnswered(transfer=update(0), ticket=b"t"))


def test_what_is_dropped_is_not_sent_any_more():
    stage = Stage()
    stage.push(0)
    stage.tell(replicate(update(0)))
    outcome = Dropped(cause=DropReason.DELAY_BOUND)
    found = stage.tell(act.OutcomeReceived(update=update(0), outcome=outcome))
    assert act.EndReplicate(transfer=update(0)) in found


def test_what_breaks_is_sent_again_after_a_pause():
    stage = Stage().kept(0)
    stage.tell(fold(0))
    stage.tell(replicate(W1))
    stage.tell(act.ReplicaBroken(transfer=W1, ticket=b"t"))
    assert stage.tell(Tick()) == []
    assert stage.state.next_wakeup_ns() == FIRST_PAUSE_NS
    stage.now_ns = FIRST_PAUSE_NS
    assert stage.tell(Tick()) == [start(replicate(W1))]


def test_what_is_not_here_is_a_hole():
    stage = Stage()
    hole = NotKept(member="a", model="net", term=1, detail="a#7 is not here any more")
    assert stage.tell(fold(7)) == [act.Request(event=hole), act.DropWindow()]
    stage.tell(keep())
    assert stage.tell(replicate(update(7))) == [act.Request(event=hole), act.DropWindow()]


def test_after_a_hole_no_window_is_sent_that_others_believe_to_be_whole():
    stage = Stage().kept(0)
    stage.tell(fold(0))
    stage.tell(fold(7))
    assert stage.tell(replicate(W1)) == []


def test_an_order_that_comes_twice_is_carried_out_once():
    stage = Stage()
    stage.push(0)
    assert stage.tell(fold(0))
    assert stage.tell(fold(0)) == []
    assert stage.tell(replicate(W1))
    stage.tell(act.ReplicaAnswered(transfer=W1, ticket=b"t"))
    assert stage.tell(replicate(W1)) == []


def test_what_the_replica_has_is_sent_no_more_though_its_answer_was_lost():
    stage = Stage().kept(0)
    stage.tell(fold(0))
    stage.tell(replicate(W1))
    release = Release(to="a", model="net", term=1, updates=(update(0),), reason="")
    assert stage.tell(release) == [act.EndReplicate(transfer=W1)]


def test_what_the_seed_has_in_it_is_released():
    stage = Stage().kept(0, 1)
    release = Release(to="a", model="net", term=1, updates=(update(0),), reason="")
    assert stage.tell(release) == [act.DropCopies(updates=(update(0),))]
    assert stage.tell(fold(1))


def test_a_new_term_begins_with_nothing():
    stage = Stage().kept(0, 1)
    stage.tell(fold(0))
    stage.tell(replicate(W1))
    assert stage.tell(keep(term=2)) == [
        act.EndReplicate(transfer=W1),
        act.DropCopies(updates=(update(1),)),
        act.DropWindow(),
    ]
    assert stage.tell(replicate(W2)) == []
    assert stage.tell(act.ReplicaAnswered(transfer=W1, ticket=b"t")) == []


def test_what_an_earlier_term_orders_is_nothing():
    stage = Stage().kept(0)
    stage.tell(keep(term=2))
    stage.kept(1)
    assert stage.tell(fold(1, term=1)) == []


def test_a_new_scheduler_knows_nothing_of_what_was_kept():
    stage = Stage().kept(0)
    found = stage.tell(act.EpochBegan(epoch=9))
    assert act.DropCopies(updates=(update(0),)) in found


def test_another_ticket_for_what_is_being_sent_begins_it_anew():
    stage = Stage()
    stage.push(0)
    stage.tell(replicate(update(0)))
    assert stage.tell(replicate(update(0))) == []
    anew = replace(replicate(update(0)), ticket=b"u")
    assert stage.tell(anew) == [start(anew)]
    stage.tell(act.ReplicaBroken(transfer=update(0), ticket=b"t"))
    assert stage.state.next_wakeup_ns() is None
