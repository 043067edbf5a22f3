"""How sums end: what tears them, that nothing is planned twice meanwhile, and who comes back with what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.protocol import (
    CancelSum,
    Committed,
    Drop,
    DropReason,
    Expect,
    MemberLeft,
    MemberLost,
    MemberSilent,
    ModelVersion,
    PeerLost,
    Resolve,
    Send,
    Sum,
    SumId,
    TransferEnd,
)
from mlfabric.scheduler.records import OVERDUE_SLACK_NS, TornBy
from tests.scheduler.stage import GIGABIT, Stage, committed, committed_together, ended, holds, of, push, seq, update
from tests.scheduler.test_sums import ALL, SUM, WIDE, cancel, directly, narrow, torn, void

pytestmark = pytest.mark.usefixtures("compiled_planner")


@pytest.fixture
def stage():
    """Return one at which three updates are on their way in a sum."""
    stage = narrow("a", "b", "c")
    stage.ask_all(*map(push, "abc"))
    yield stage
    stage.state.validate()


def tear(stage: Stage) -> None:
    """Let the sum be given up, and the server let go of it."""
    stage.tell(ended(SUM, TransferEnd.TORN, by="g"))
    stage.tell(ended(SUM, TransferEnd.VOIDED))


def test_the_commits_of_a_sum_settle_all_members_and_free_all_links(stage):
    assert stage.tell(committed_together(*ALL, number=3)) == []
    assert not stage.pushes.planned
    assert not len(stage.pushes.sums)
    assert stage.state.models["net"].delays == {0: 1, 1: 1, 2: 1}
    network = stage.state.context.network
    assert all(network.busy_until(link, stage.now_ns) == stage.now_ns for link in network.links)


def test_an_input_that_arrived_frees_its_links(stage):
    held = ("net", "push", update("a"))
    assert stage.state.context.network.reservation(held) is not None
    assert stage.tell(ended(update("a"), TransferEnd.RECEIVED, by="g")) == []
    assert stage.state.context.network.reservation(held) is None
    assert not stage.pushes.planned[update("a")].received


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (ended(SUM, TransferEnd.TORN, by="g"), TornBy.AGGREGATOR),
        (ended(SUM, TransferEnd.BROKEN), TornBy.BROKEN),
        (MemberSilent(name="a", incarnation=1), TornBy.WORKER_GONE),
        (MemberLeft(name="b", incarnation=1), TornBy.WORKER_GONE),
        (MemberLost(name="a", incarnation=1, detail="its process is stopped"), TornBy.WORKER_GONE),
        (MemberSilent(name="g", incarnation=1), TornBy.AGGREGATOR_GONE),
        (MemberLeft(name="g", incarnation=1), TornBy.AGGREGATOR_GONE),
        (MemberLost(name="g", incarnation=1, detail="its process is stopped"), TornBy.AGGREGATOR_GONE),
    ],
)
def test_what_tears_a_sum_voids_all_of_it_and_nothing_is_planned_before_the_server_has_answered(stage, event, reason):
    told = [i for i in stage.tell(event) if not isinstance(i, PeerLost)]
    gone = reason is TornBy.AGGREGATOR_GONE
    assert told == [void(SUM), *([] if gone else [cancel()])]
    assert torn(stage) == {reason: 1}
    assert stage.ask(push("c")) == []
    stage.wait(1000)
    assert stage.tick() == []
    stage.tell(ended(SUM, TransferEnd.VOIDED))
    assert directly(stage.tick()) == [update("c")]


def test_members_of_a_torn_sum_go_by_themselves_the_next_time_and_later_updates_are_summed_again(stage):
    tear(stage)
    assert not stage.pushes.planned
    assert directly(stage.ask_all(*map(push, "abc"))) == list(ALL)
    for number, name in enumerate(ALL, start=1):
        stage.tell(committed(name, number))
    for worker in "abc":
        stage.tell(push(worker, 1, 3))
    stage.wait(1000)
    assert len(of(Sum, stage.tick())) == 1
    assert not stage.pushes.apart


def test_a_voided_sum_that_was_complete_is_committed_and_its_workers_are_told(stage):
    stage.tell(ended(SUM, TransferEnd.TORN, by="g"))
    assert stage.ask(push("a")) == []
    outcome = Committed(version=ModelVersion(1, 1), tau=0)
    told = stage.tell(committed_together(*ALL, number=3))
    assert told == [Resolve(to="a", update=update("a"), outcome=outcome, reason="")]
    assert not stage.pushes.planned
    assert not stage.pushes.waiting


def test_a_worker_that_asks_again_while_its_sum_is_on_its_way_waits_for_the_outcome(stage):
    assert stage.ask(push("b")) == []
    assert update("b") in stage.pushes.waiting
    told = stage.tell(committed_together(*ALL, number=3))
    assert [(i.update, i.outcome.tau) for i in of(Resolve, told)] == [(update("b"), 1)]


def test_a_worker_that_asked_before_the_sum_was_torn_is_planned_as_soon_as_the_server_let_go(stage):
    stage.ask(push("b"))
    stage.tell(ended(SUM, TransferEnd.TORN, by="g"))
    assert stage.tick() == []
    stage.tell(ended(SUM, TransferEnd.VOIDED))
    assert directly(stage.tick()) == [update("b")]


def test_a_sum_that_the_server_refused_is_cancelled_and_planned_anew(stage):
    assert stage.tell(ended(SUM, TransferEnd.VOIDED, detail="above the bound")) == [cancel()]
    assert torn(stage) == {TornBy.REFUSED: 1}
    assert stage.tell(ended(SUM, TransferEnd.TORN, by="g")) == []
    assert directly(stage.ask_all(*map(push, "abc"))) == list(ALL)


def test_a_sum_that_is_torn_twice_is_voided_once(stage):
    stage.tell(ended(SUM, TransferEnd.TORN, by="g"))
    assert stage.tell(ended(SUM, TransferEnd.BROKEN)) == []
    assert torn(stage) == {TornBy.AGGREGATOR: 1}


def test_an_update_that_is_not_finite_tears_its_sum_and_is_dropped(stage):
    told = stage.tell(ended(update("b"), TransferEnd.DISCARDED, DropReason.NOT_FINITE, by="g"))
    assert told == [void(SUM), cancel()]
    assert stage.state.context.members["b"].tally.dropped == {DropReason.NOT_FINITE.value: 1}
    assert stage.tell(ended(SUM, TransferEnd.TORN, by="g")) == []
    stage.tell(ended(SUM, TransferEnd.VOIDED))
    assert directly(stage.ask_all(*map(push, "ac"))) == [update("a"), update("c")]
    assert of(Resolve, stage.ask(push("b")))[0].outcome.cause is DropReason.NOT_FINITE


def test_what_an_aggregator_says_of_an_update_that_goes_to_the_server_meanwhile_is_too_late(stage):
    tear(stage)
    stage.ask_all(*map(push, "abc"))
    assert stage.tell(ended(update("a"), TransferEnd.RECEIVED, by="g")) == []
    assert stage.tell(ended(update("a"), TransferEnd.DISCARDED, DropReason.NOT_FINITE, by="g")) == []
    assert not stage.pushes.planned[update("a")].received


def test_a_sum_that_is_complete_at_the_server_stays_whoever_goes(stage):
    stage.tell(ended(SUM, TransferEnd.RECEIVED))
    assert stage.tell(ended(SUM, TransferEnd.TORN, by="g")) == []
    assert stage.silent("g") == []
    assert stage.silent("a") == []
    stage.tell(committed_together(*ALL, number=3))
    assert not stage.pushes.planned


def test_a_sum_is_given_up_when_it_is_overdue(stage):
    (found,) = stage.pushes.sums
    due_ns = found.root.profile.end_ns + found.patience_ns
    assert stage.state.next_wakeup_ns(stage.now_ns) == due_ns
    stage.now_ns = due_ns
    assert stage.tick() == [void(SUM), cancel()]
    assert torn(stage) == {TornBy.OVERDUE: 1}
    assert stage.state.next_wakeup_ns(stage.now_ns) is None


@pytest.mark.parametrize(("workers", "aggregators", "count"), [("abc", ("g",), 2), ("abcd", ("g", "k"), 3)])
def test_each_hop_of_a_sum_is_given_its_patience(workers, aggregators, count):
    stage = narrow(*workers, aggregators=aggregators)
    stage.ask_all(*map(push, workers))
    (found,) = stage.pushes.sums
    start_ns = min(p.profile.start_ns for p in stage.pushes.planned.values() if p.profile is not None)
    assert found.patience_ns == count * max((found.root.profile.end_ns - start_ns) // 2, OVERDUE_SLACK_NS)


def behind_a_late_update() -> Stage:
    """Plan an update by itself and a sum behind it."""
    stage = narrow("a", "b", "c", "d")
    stage.ask(push("a"))
    for worker in "bcd":
        stage.tell(push(worker))
    stage.wait(100)
    assert [e.seq for e in of(Expect, stage.tick())] == [seq(2)]
    return stage


def test_an_overdue_update_lets_a_sum_behind_it_go_first():
    stage = behind_a_late_update()
    stage.now_ns = stage.pushes.planned[update("a")].overdue_ns() or 0
    (again,) = of(Expect, stage.tick())
    assert (again.transfer, again.seq) == (update("a"), seq(3))


def test_a_sum_is_not_overdue_while_something_before_it_is_out_and_gets_its_time_after_it():
    stage = behind_a_late_update()
    (found,) = stage.pushes.sums
    span_ns = found.root.profile.end_ns - found.root.profile.start_ns
    assert stage.state.next_wakeup_ns(stage.now_ns) == stage.pushes.planned[update("a")].overdue_ns()
    stage.wait(500)
    stage.tell(ended(update("a"), TransferEnd.RECEIVED))
    assert stage.state.next_wakeup_ns(stage.now_ns) == stage.now_ns + span_ns + found.patience_ns


# Members that come and go


def test_an_aggregator_that_comes_back_is_told_what_it_may_have_missed_and_another_process_has_missed_nothing(stage):
    stage.silent("g")
    assert of(CancelSum, stage.aggregator("g")) == [cancel()]
    assert of(CancelSum, stage.aggregator("g")) == [cancel()]  # its stream broke unnoticed
    other = narrow("a", "b", "c")
    other.ask_all(*map(push, "abc"))
    other.left("g")
    assert of(CancelSum, other.aggregator("g", incarnation=2)) == []


def test_a_server_that_comes_back_without_a_sum_has_it_planned_anew(stage):
    stage.server(down_bps=GIGABIT // 10, held=(WIDE,))
    assert stage.tell(holds(0, spec=WIDE)) == [void(SUM), cancel()]
    assert torn(stage) == {TornBy.SERVER_BACK: 1}
    stage.tell(ended(SUM, TransferEnd.VOIDED))
    assert directly(stage.ask_all(*map(push, "abc"))) == list(ALL)


def test_a_server_that_comes_back_with_a_complete_sum_commits_it(stage):
    stage.server(down_bps=GIGABIT // 10, held=(WIDE,))
    assert stage.tell(holds(0, spec=WIDE, received=ALL)) == []
    assert all(p.received for p in stage.pushes.planned.values())
    stage.tell(committed_together(*ALL, number=3))
    assert not stage.pushes.planned


def test_a_new_scheduler_adopts_the_members_of_a_complete_sum():
    stage = Stage(term=2)
    for name in "abc":
        stage.server(held=(WIDE,)) if name == "a" else None
        stage.worker(name, spec=WIDE)
    stage.tell(holds(0, spec=WIDE, received=ALL))
    (again,) = of(Send, stage.ask(push("a")))
    assert again.receiver == "s"
    assert stage.tell(ended(update("a"), TransferEnd.VOIDED, detail="it is there within a sum")) == []
    told = stage.tell(committed_together(*ALL, number=3))
    assert [i.update for i in of(Resolve, told)] == [update("a")]
    assert not stage.pushes.planned


def test_a_new_scheduler_plans_anew_what_it_adopted_of_a_sum_that_the_server_refused():
    stage = Stage(term=2)
    stage.server(held=(WIDE,))
    stage.worker("a", spec=WIDE)
    stage.tell(holds(0, spec=WIDE, received=(update("a"),)))
    assert stage.tell(ended(SumId(1, 7), TransferEnd.VOIDED, detail="above the bound")) == []
    assert stage.tell(ended(update("a"), TransferEnd.BROKEN, detail="above the bound")) == [void(update("a"))]
    stage.tell(ended(update("a"), TransferEnd.VOIDED))
    assert directly(stage.ask(push("a"))) == [update("a")]


def test_a_sum_whose_member_was_settled_by_itself_is_given_up(stage):
    assert stage.tell(committed(update("b"), 1)) == [void(SUM), cancel()]
    stage.tell(ended(SUM, TransferEnd.VOIDED))
    assert directly(stage.ask_all(*map(push, "ac"))) == [update("a"), update("c")]


def test_a_member_that_is_too_old_once_its_sum_was_torn_is_dropped():
    stage = narrow("a", "b", "c", spec=replace(WIDE, tau_max=2))
    stage.ask_all(*map(push, "abc"))
    tear(stage)
    stage.tell(committed(update("a", 1), 4))
    assert [d.update for d in of(Drop, stage.ask(push("b")))] == [update("b")]
