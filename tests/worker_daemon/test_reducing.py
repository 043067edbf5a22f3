"""A worker's open AllReduces: exact lists of actions."""

from __future__ import annotations

from dataclasses import replace

from mlfabric.protocol import (
    CancelReduce,
    LinkProbed,
    Peer,
    Probe,
    Reduce,
    ReduceFailed,
    ReduceId,
    ReduceOp,
    ReduceRequested,
    ReduceSettled,
    RoundArrived,
    RoundBroken,
    RoundId,
    RoundKept,
    RoundSlow,
    WorkerHolds,
)
from mlfabric.worker_daemon import round_actions as act
from mlfabric.worker_daemon.actions import Request
from tests.worker_daemon.stage import Stage

FIRST, SECOND = RoundId(1, 1), RoundId(1, 2)


def reduce_id(counter: int = 0) -> ReduceId:
    return ReduceId("a", 1, counter)


def request(counter: int = 0, **fields) -> ReduceRequested:
    return ReduceRequested(
        reduce=reduce_id(counter), model="net", size_bytes=4, dtype="float32", op=ReduceOp.SUM, **fields
    )


def plan(round_id: RoundId, counter: int = 0) -> Reduce:
    return Reduce(
        to="a", reduce=reduce_id(counter), round=round_id, workers=3, parts=(), size_bytes=4, dtype="float32", reason=""
    )


def asking(*counters: int) -> Stage:
    """Return a daemon that has asked for these AllReduces."""
    stage = Stage()
    for counter in counters:
        stage.tell(act.ReduceCalled(request=request(counter, together=2)))
    return stage


def arrived(*counters: int) -> Stage:
    """Return a daemon that has asked for these, with the result of the first attempt."""
    stage = asking(*counters)
    stage.tell(plan(FIRST), act.AttemptEnded(round=FIRST))
    return stage


def settled(round_id: RoundId = FIRST, counter: int = 0) -> ReduceSettled:
    return ReduceSettled(to="a", reduce=reduce_id(counter), round=round_id, workers=3, reason="")


def test_what_the_worker_hands_over_is_asked_for_carried_out_reported_and_finished() -> None:
    stage = Stage()
    assert stage.tell(act.ReduceCalled(request=request())) == [Request(event=request())]
    assert stage.tell(plan(FIRST)) == [act.StartAttempt(plan=plan(FIRST))]
    arrived = RoundArrived(worker="a", model="net", round=FIRST)
    measured = replace(arrived, up_bps=7, down_bps=9)
    ended = act.AttemptEnded(round=FIRST, up_bps=7, down_bps=9)
    assert stage.tell(ended) == [Request(event=measured)]
    assert stage.tell(settled()) == [act.FinishReduce(plan=plan(FIRST), workers=3)]
    assert stage.tell(settled()) == []


def test_of_how_many_a_result_is_says_its_plan_for_a_new_scheduler_does_not_know_it() -> None:
    stage = arrived(0)
    assert stage.tell(replace(settled(), workers=0)) == [act.FinishReduce(plan=plan(FIRST), workers=3)]


def test_what_is_asked_for_afterwards_says_what_was_settled_and_how_many_took_part() -> None:
    stage = arrived(0)
    stage.tell(settled())
    asked = Request(event=request(1, together=3, settled=FIRST))
    assert stage.tell(act.ReduceCalled(request=request(1))) == [asked]


def test_an_attempt_told_twice_is_made_once_and_a_newer_one_takes_its_place() -> None:
    stage = asking(0)
    stage.tell(plan(SECOND))
    assert stage.tell(plan(SECOND)) == []
    assert stage.tell(plan(FIRST)) == []
    newer = RoundId(2, 1)
    assert stage.tell(plan(newer)) == [
        act.StopAttempt(round=SECOND),
        act.StartAttempt(plan=plan(newer)),
    ]
    assert stage.tell(act.AttemptEnded(round=SECOND)) == []


def test_that_an_attempt_is_slow_is_reported_while_it_goes_on() -> None:
    stage, slow = asking(0), act.AttemptSlow(round=FIRST, left_ns=7, usual_ns=3)
    stage.tell(plan(FIRST))
    told = Request(event=RoundSlow(worker="a", model="net", round=FIRST, left_ns=7, usual_ns=3))
    assert stage.tell(slow) == stage.tell(slow) == [told]
    stage.tell(act.AttemptEnded(round=FIRST, detail="reset"))
    assert stage.tell(slow) == []


def test_an_attempt_that_broke_is_reported_and_one_that_is_cancelled_is_stopped() -> None:
    stage = asking(0)
    stage.tell(plan(FIRST))
    broken = RoundBroken(worker="a", model="net", round=FIRST, detail="reset")
    assert stage.tell(act.AttemptEnded(round=FIRST, detail="reset")) == [Request(event=broken)]
    stage.tell(plan(SECOND))
    cancel = CancelReduce(to="a", round=SECOND, reason="")
    assert stage.tell(cancel) == [act.StopAttempt(round=SECOND)]
    assert stage.tell(cancel) == []


def test_what_is_kept_of_an_attempt_is_said_once_it_is_known() -> None:
    stage = asking(0)
    stage.tell(plan(FIRST))
    stop = stage.tell(CancelReduce(to="a", round=FIRST, keep=True, reason=""))
    assert stop == [act.StopAttempt(round=FIRST, keep=True)]
    assert stage.tell(CancelReduce(to="a", round=FIRST, keep=True, reason="")) == stop  # or it has broken meanwhile
    assert stage.tell(CancelReduce(to="a", round=FIRST, reason="")) == []
    said = RoundKept(worker="a", model="net", round=FIRST, kept=((0, 4),))
    assert stage.tell(act.AttemptKept(plan=plan(FIRST), kept=((0, 4),))) == [Request(event=said)]


def test_a_result_that_is_here_is_announced_to_a_new_scheduler_and_void_once_it_is_planned_anew() -> None:
    stage = arrived(0, 1)
    assert stage.state.holds() == WorkerHolds(
        worker="a", pushes=(), gets=(), reduces=(request(0, together=3, arrived=FIRST), request(1, together=2))
    )
    stage.tell(plan(SECOND))
    assert stage.state.holds().reduces[0] == request(0, together=2)


def test_a_failure_stops_the_attempt_and_leaves_the_others_open() -> None:
    stage = asking(0, 1)
    stage.tell(plan(FIRST))
    failed = ReduceFailed(to="a", reduce=reduce_id(), reason="")
    assert stage.tell(failed) == [
        act.StopAttempt(round=FIRST),
        act.FailReduce(reduce=reduce_id(), reason=""),
    ]
    assert list(stage.state.reducing.open) == [reduce_id(1)]


def test_a_settled_round_whose_result_is_not_here_fails() -> None:
    stage = asking(0)
    stage.tell(plan(SECOND))
    actions = stage.tell(settled())
    assert actions == [act.StopAttempt(round=SECOND), act.FailReduce(reduce=reduce_id(), reason="")]


def test_probes_are_sent_as_told_and_each_that_came_is_reported() -> None:
    stage, peer = Stage(), Peer("v", "v:1", bytes(16))
    probe = Probe(
        to="a", model="net", round=FIRST, size_bytes=9, targets=(peer,), sources=(peer,), slot_ns=1, reason=""
    )
    assert stage.tell(probe) == [act.StartProbes(plan=probe)]
    probed = LinkProbed(worker="a", model="net", round=FIRST, source="v", bps=5)
    ended = act.ProbeEnded(model="net", round=FIRST, source="v", bps=5)
    assert stage.tell(ended) == [Request(event=probed)]


def test_probes_leave_an_attempt_under_way_alone() -> None:
    stage = asking(0)
    stage.tell(plan(FIRST))
    probe = Probe(to="a", model="net", round=FIRST, size_bytes=9, targets=(), sources=(), slot_ns=1, reason="")
    assert stage.tell(probe) == [act.StartProbes(plan=probe)]
    assert stage.tell(act.AttemptEnded(round=FIRST)) == [
        Request(event=RoundArrived(worker="a", model="net", round=FIRST))
    ]
