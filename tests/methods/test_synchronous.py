"""Synchronous iterations at the scheduler: who is waited for, what is planned together, who has missed it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlfabric.model.specs import Method
from mlfabric.protocol import (
    AppliedIds,
    Commit,
    CommitsReported,
    Drop,
    DropReason,
    Expect,
    Fetch,
    InitialReceived,
    MemberLeft,
    MemberLost,
    MemberSilent,
    ModelVersion,
    Resolve,
    Send,
    TransferEnd,
    UpdateId,
    Void,
    WorkerHolds,
)
from tests.scheduler.stage import SPEC, Stage, ended, get, holds, initial, push, update

SYNCHRONOUS = replace(SPEC, method=Method.SYNCHRONOUS, tau_max=None)


@pytest.fixture
def stage():
    stage = Stage(silence_ns=10**9).trained("a", "b", "c", spec=SYNCHRONOUS)
    yield stage
    stage.state.validate()


def iteration(number: int, *names: UpdateId) -> CommitsReported:
    commits = tuple(
        Commit(update=name, version=ModelVersion(1, number), tau=0, lr=0.1, step_norm=1.0) for name in names
    )
    return CommitsReported(server="s", model="net", commits=commits)


def sends(instructions):
    return [i.to for i in instructions if isinstance(i, Send)]


def expects(instructions):
    return [i for i in instructions if isinstance(i, Expect)]


def under_way(stage: Stage, *workers: str, counter: int = 0, version: int = 0) -> list[Any]:
    out = []
    for worker in workers:
        out += stage.ask(push(worker, counter, version))
    return out


def test_nobody_waits_for_a_part_whose_worker_knows_by_now_what_became_of_it():
    stage = Stage().trained("a", spec=SYNCHRONOUS)
    stage.ask(push("a"))
    stage.tell(ended(update("a"), TransferEnd.BROKEN))
    stage.tell(ended(update("a"), TransferEnd.VOIDED))
    assert stage.pushes.iteration is not None
    assert sends(stage.ask(push("a", 1, resolved_below=1))) == ["a"]


def test_nothing_is_planned_before_every_worker_has_an_update(stage):
    assert under_way(stage, "a", "b") == []
    assert stage.state.next_wakeup_ns(stage.now_ns) is None
    assert sorted(sends(under_way(stage, "c"))) == ["a", "b", "c"]


def test_an_iteration_has_one_seq_as_many_parts_as_transfers_and_no_delay(stage):
    found = expects(under_way(stage, "a", "b", "c"))
    assert len({e.seq for e in found}) == 1
    assert [(e.parts, e.tau_max) for e in found] == [(3, 0)] * 3


def test_an_iteration_makes_one_version_and_the_next_waits_for_all_again(stage):
    under_way(stage, "a", "b", "c")
    stage.tell(iteration(1, update("a"), update("b"), update("c")))
    assert stage.pushes.version == ModelVersion(1, 1)
    assert under_way(stage, "a", "b", counter=1, version=1) == []
    assert len(sends(under_way(stage, "c", counter=1, version=1))) == 3


def test_a_worker_may_be_an_iteration_ahead_of_what_the_scheduler_has_heard(stage):
    under_way(stage, "a", "b", "c")
    assert under_way(stage, "a", "b", "c", counter=1, version=1) == []
    told = stage.ask(iteration(1, update("a"), update("b"), update("c")))
    assert sorted(sends(told)) == ["a", "b", "c"]


def test_an_update_of_an_old_version_is_turned_away_in_words(stage):
    under_way(stage, "a", "b", "c")
    stage.tell(iteration(1, update("a"), update("b"), update("c")))
    told = stage.state.handle(push("a", 1, 0), stage.now_ns)
    assert [(i.to, i.cause) for i in told] == [("a", DropReason.DEADLINE_PAST)]
    assert "computed from version 0" in told[0].reason
    assert "at version 1" in told[0].reason


def test_an_update_that_waited_while_its_iteration_was_made_is_turned_away(stage):
    under_way(stage, "a", "b", "c")
    assert under_way(stage, "a", counter=1) == []
    told = stage.ask(iteration(1, update("a"), update("b"), update("c")))
    assert [(i.to, i.update, i.cause) for i in told] == [("a", update("a", 1), DropReason.DEADLINE_PAST)]


def comes_with_nothing(stage: Stage):
    """Let another process of the server come, which has nothing of the model."""
    stage.tell(MemberSilent(name="s", incarnation=1))
    return stage.server(incarnation=2) + stage.tick()


def turned_away(told):
    return [(i.update, i.cause) for i in told if isinstance(i, Drop)]


def test_an_update_that_waits_while_its_version_is_lost_is_turned_away(stage):
    under_way(stage, "a", "b")
    told = comes_with_nothing(stage)
    assert turned_away(told) == [(update(name), DropReason.ROLLED_BACK) for name in ("a", "b")]


def test_an_update_that_an_iteration_lacks_is_turned_away_once_its_version_is_lost(stage):
    under_way(stage, "a", "b", "c")
    stage.tell(MemberSilent(name="a", incarnation=1))
    stage.worker("a", spec=SYNCHRONOUS)
    assert stage.ask(push("a")) == []  # the server has not let go of it yet
    assert turned_away(comes_with_nothing(stage)) == []
    told = stage.ask(ended(update("a"), TransferEnd.VOIDED))
    assert turned_away(told) == [(update("a"), DropReason.ROLLED_BACK)]
    assert {e.parts for e in expects(told)} == {2}
    assert sends(stage.ask(initial("a", 1))) == ["a"]
    assert sends(stage.ask(InitialReceived(server="s", model="net", version=ModelVersion(2, 0)))) == []


def test_an_update_of_a_version_that_was_lost_is_turned_away(stage):
    stage.tell(holds(version=3, spec=SYNCHRONOUS))
    lost = replace(push("a"), computed_from=ModelVersion(0, 7))
    told = stage.tell(lost)
    assert [(i.cause) for i in told if isinstance(i, Drop)] == [DropReason.ROLLED_BACK]


def test_one_update_of_a_worker_goes_into_an_iteration(stage):
    under_way(stage, "a", "b")
    assert under_way(stage, "b", counter=1) == []
    assert sorted(sends(under_way(stage, "c"))) == ["a", "b", "c"]
    assert update("b", 1) in stage.pushes.waiting


def test_a_silent_worker_is_waited_for_until_it_counts_as_left(stage):
    under_way(stage, "a", "b")
    assert stage.ask(MemberSilent(name="c", incarnation=1)) == []
    stage.wait(999)
    assert stage.tick() == []
    stage.wait(1)
    assert sorted(sends(stage.tick())) == ["a", "b"]


LOST = MemberLost(name="c", incarnation=1, detail="its process is stopped")


@pytest.mark.parametrize(
    "events",
    [[LOST], [MemberSilent(name="c", incarnation=1), LOST], [MemberLeft(name="c", incarnation=1)]],
    ids=["does not answer", "nor after its stream broke", "leaves"],
)
def test_a_worker_that_does_not_answer_any_more_or_leaves_is_not_waited_for(stage, events):
    under_way(stage, "a", "b")
    *before, last = events
    for event in before:
        assert stage.ask(event) == []
    assert sorted(sends(stage.ask(last))) == ["a", "b"]


def test_a_worker_that_was_lost_takes_part_again_when_it_is_back(stage):
    under_way(stage, "a", "b")
    stage.ask(LOST)
    stage.worker("c", spec=SYNCHRONOUS)
    stage.tell(iteration(1, update("a"), update("b")))
    assert under_way(stage, "a", "b", counter=1, version=1) == []
    assert sorted(sends(under_way(stage, "c", version=1))) == ["a", "b", "c"]


def test_a_worker_that_joins_is_waited_for_in_the_next_iteration(stage):
    under_way(stage, "a", "b", "c")
    stage.worker("d", spec=SYNCHRONOUS)
    stage.tell(iteration(1, update("a"), update("b"), update("c")))
    assert under_way(stage, "a", "b", "c", counter=1, version=1) == []
    assert len(sends(under_way(stage, "d", version=1))) == 4


def test_who_joins_in_the_middle_of_an_iteration_is_given_the_model_that_it_makes(stage):
    under_way(stage, "a", "b", "c")
    stage.worker("d", spec=SYNCHRONOUS)
    assert stage.ask(get("d")) == []
    assert stage.state.models["net"].gets.held_back("d") == [
        "the iteration of version 0 is under way without this worker"
    ]
    told = stage.ask(iteration(1, update("a"), update("b"), update("c")))
    assert [i.to for i in told if isinstance(i, Fetch)] == ["d"]


def test_who_takes_part_in_an_iteration_is_told_where_to_get_what_follows_little_before_it_is_over(stage):
    under_way(stage, "a", "b", "c")
    assert stage.ask(get("b", after=update("b"))) == []
    stage.wait(24 - 2)  # three updates of 8 ms each, one after the other
    assert [i.to for i in stage.tick() if isinstance(i, Fetch)] == ["b"]


def test_an_iteration_goes_on_without_a_worker_that_dies_in_it(stage):
    under_way(stage, "a", "b", "c")
    told = stage.tell(MemberSilent(name="c", incarnation=1))
    assert [i.transfer for i in told if isinstance(i, Void)] == [update("c")]
    told = stage.tell(ended(update("c"), TransferEnd.VOIDED))
    assert {(e.transfer, e.parts) for e in expects(told)} == {(update("a"), 2), (update("b"), 2)}


def test_an_update_that_broke_on_its_way_is_sent_again_in_the_same_iteration(stage):
    (first, *_) = expects(under_way(stage, "a", "b", "c"))
    stage.tell(ended(update("c"), TransferEnd.BROKEN))
    stage.tell(ended(update("c"), TransferEnd.VOIDED))
    told = under_way(stage, "c")
    assert sends(told) == ["c"]
    assert [(e.transfer, e.seq, e.parts) for e in expects(told)] == [(update("c"), first.seq, 3)]


def rolled_back(stage: Stage, *gone: str) -> list[Any]:
    """Let the connections of some break in an iteration of version 1, and the server resume from version 0."""
    for worker in gone:
        stage.tell(ended(update(worker), TransferEnd.BROKEN))
        stage.tell(ended(update(worker), TransferEnd.VOIDED))
    resumed = replace(holds(version=0, spec=SYNCHRONOUS), version=ModelVersion(2, 0), epoch_base=0)
    return stage.tell(resumed)


def test_an_iteration_does_not_wait_for_an_update_that_is_turned_away():
    stage = Stage().trained("a", "b", "c", version=1, spec=SYNCHRONOUS)
    under_way(stage, "a", "b", "c", version=1)
    assert {e.parts for e in expects(rolled_back(stage, "c"))} == {3}
    told = under_way(stage, "c", version=1)
    assert [i.cause for i in told if isinstance(i, Drop)] == [DropReason.ROLLED_BACK]
    assert {(e.transfer, e.parts) for e in expects(told)} == {(update("a"), 2), (update("b"), 2)}


def test_an_iteration_whose_last_update_is_turned_away_holds_no_get_back():
    stage = Stage().trained("a", version=1, spec=SYNCHRONOUS)
    under_way(stage, "a", version=1)
    stage.tell(get("a", after=update("a")))
    rolled_back(stage, "a")
    told = under_way(stage, "a", version=1)
    assert [i.cause for i in told if isinstance(i, Drop)] == [DropReason.ROLLED_BACK]
    assert [i.to for i in told if isinstance(i, Fetch)] == ["a"]


def test_a_worker_that_comes_back_in_time_takes_part(stage):
    under_way(stage, "a", "b")
    stage.tell(push("c"))
    stage.tell(MemberSilent(name="c", incarnation=1))
    assert stage.tick() == []
    stage.worker("c", spec=SYNCHRONOUS)
    told = stage.ask(WorkerHolds(worker="c", pushes=(push("c"),), gets=()))
    assert sorted(sends(told)) == ["a", "b", "c"]


def test_a_late_transfer_of_an_iteration_wakes_nobody_up(stage):
    under_way(stage, "a", "b", "c")
    stage.wait(10_000)
    assert stage.state.next_wakeup_ns(stage.now_ns) is None


def test_a_worker_of_another_slack_or_method_is_refused(stage):
    for spec in (SPEC, replace(SPEC, method=Method.STALE_SYNCHRONOUS, tau_max=None, slack=1)):
        (refused,) = stage.worker("d", spec=spec)
        assert refused.cause.name == "OPTIONS_DIFFER"


def restarted(*applied: str) -> Stage:
    """Return a stage whose scheduler begins anew: the server is back, and knows updates of these workers."""
    stage = Stage(term=2, silence_ns=10**9)
    stage.server(held=(SYNCHRONOUS,))
    known = tuple(
        AppliedIds(worker=worker, incarnation=1, low=0, recent=((0, ModelVersion(1, 1), 0),)) for worker in applied
    )
    stage.tell(holds(version=1, spec=SYNCHRONOUS, applied=known))
    return stage


def test_a_new_scheduler_waits_for_the_workers_that_the_server_knows():
    stage = restarted("a", "b")
    stage.worker("a", spec=SYNCHRONOUS)
    assert under_way(stage, "a", counter=1, version=1) == []
    stage.wait(500)
    stage.worker("b", spec=SYNCHRONOUS)
    assert sorted(sends(under_way(stage, "b", counter=1, version=1))) == ["a", "b"]
    assert stage.state.next_wakeup_ns(stage.now_ns) is None


def test_a_new_scheduler_does_not_wait_for_ever_for_workers_that_do_not_come_back():
    stage = restarted("a", "b")
    stage.worker("a", spec=SYNCHRONOUS)
    assert under_way(stage, "a", counter=1, version=1) == []
    stage.wait(999)
    assert stage.tick() == []
    stage.wait(1)
    assert sends(stage.tick()) == ["a"]


def test_an_iteration_from_before_this_scheduler_is_left_to_the_server():
    stage = Stage(term=2)
    stage.state.context.numbers.last_server_epoch = 0
    stage.trained("a", "b", spec=SYNCHRONOUS)
    under_way(stage, "a")
    stage.tell(holds(version=0, spec=SYNCHRONOUS, received=(update("a"), update("b"))))
    assert under_way(stage, "a", "b") == []
    told = stage.ask(iteration(1, update("a"), update("b")))
    assert sorted(i.to for i in told if isinstance(i, Resolve)) == ["a", "b"]


def test_an_update_from_the_future_that_came_before_the_server_is_turned_away_once_that_has_said_where_it_is():
    stage = Stage()
    stage.server(held=(SYNCHRONOUS,))
    stage.worker("a", spec=SYNCHRONOUS)
    stage.ask(push("a", computed_from=1007))
    told = stage.tell(holds(7, spec=SYNCHRONOUS)) + stage.tick()
    assert [(drop.to, drop.cause) for drop in told if isinstance(drop, Drop)] == [("a", DropReason.FUTURE_VERSION)]
