"""When a model ends: with its job, unless it is kept; and who may go on with what a former job has left."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mlfabric.model.specs import Method, Role, Term
from mlfabric.protocol import (
    Following,
    FreeModel,
    HostModel,
    JobClaim,
    JobHeld,
    JobReleased,
    MemberJoined,
    ModelFreed,
    ModelRemoved,
    ModelVersion,
    Promote,
    Refuse,
    RefuseReason,
    ReplicaReported,
    Resume,
    Tick,
    Welcome,
)
from tests.scheduler.stage import SPEC, Stage, holds, member, of

SECOND_NS = 1_000_000_000
NAME = SPEC.name


@pytest.fixture
def stage() -> Stage:
    """Return one with a server."""
    stage = Stage()
    stage.server()
    return stage


def join(stage: Stage, worker: str, job: str = "", incarnation: int = 1, spec=SPEC, **claim):
    """Let a worker join for a job; give the answer."""
    claim = {"resume": Resume.ASK, **claim}
    joins = member(worker, Role.WORKER, incarnation)
    event = MemberJoined(member=joins, spec=spec, holds_initial=True, job=JobClaim(job=job, **claim))
    return of((Welcome, Refuse), stage.state.handle(event, stage.now_ns))[0]


def leave(stage: Stage, worker: str, incarnation: int = 1) -> list[str]:
    """Let a worker leave; give the models that are freed by that."""
    told = stage.left(worker, incarnation)
    return [order.model for order in of(FreeModel, told)]


def lose(stage: Stage, worker: str) -> None:
    """Let a worker be silent until it counts as left."""
    stage.silent(worker)
    stage.now_ns += 20 * SECOND_NS
    stage.tell(Tick())


def is_there(stage: Stage) -> bool:
    return NAME in stage.state.models


def test_a_model_ends_when_the_last_of_a_job_without_identity_has_left() -> None:
    stage = Stage().trained("a", "b")
    assert leave(stage, "a") == []
    assert leave(stage, "b") == [NAME]
    assert join(stage, "c").cause is RefuseReason.NOT_YET
    stage.tell(ModelFreed(member="s", model=NAME, epoch=1))
    assert not is_there(stage)
    assert isinstance(join(stage, "c"), Welcome)


def test_the_next_model_of_a_name_begins_under_a_later_epoch() -> None:
    stage = Stage().trained("a", version=7)
    leave(stage, "a")
    stage.tell(ModelFreed(member="s", model=NAME, epoch=1))
    told = stage.tell(MemberJoined(member=member("b", Role.WORKER, 1), spec=SPEC, holds_initial=True))
    assert [order.epoch for order in of(HostModel, told)] == [2]


def test_a_late_worker_of_a_job_with_so_many_workers_finds_the_model(stage: Stage) -> None:
    join(stage, "a", workers=2)
    assert leave(stage, "a") == []
    assert isinstance(join(stage, "b", workers=2), Welcome)
    assert leave(stage, "b") == [NAME]


def test_a_job_that_is_held_keeps_its_model_until_it_is_released(stage: Stage) -> None:
    stage.tell(JobHeld(job="#1"))
    join(stage, "a", "#1")
    assert leave(stage, "a") == []
    assert isinstance(join(stage, "a", "#1", incarnation=2), Welcome)
    assert leave(stage, "a", 2) == []
    assert of(FreeModel, stage.tell(JobReleased(job="#1")))


def test_a_worker_that_is_lost_has_not_left(stage: Stage) -> None:
    join(stage, "a", "#1", workers=2)
    join(stage, "b", "#1", workers=2)
    lose(stage, "a")
    assert leave(stage, "b") == []
    assert isinstance(join(stage, "a", "#1", incarnation=2, workers=2), Welcome)
    assert leave(stage, "a", 2) == [NAME]


def test_another_job_is_refused_while_one_trains_the_model_and_told_how_to_go_on(stage: Stage) -> None:
    join(stage, "a", "#1")
    for resume in Resume:
        answer = join(stage, "b", "#2", resume=resume)
        assert answer.cause is RefuseReason.OTHER_JOB
        assert "MLFABRIC_JOB" in answer.reason
    answer = join(stage, "a", "#2", incarnation=2)
    assert answer.cause is RefuseReason.NAME_TAKEN
    assert "mlfabric run --job" in answer.reason


@pytest.mark.parametrize(("resume", "answer"), [(Resume.ASK, Refuse), (Resume.GO_ON, Welcome)])
def test_what_is_kept_is_gone_on_with_if_somebody_says_so(stage: Stage, resume: Resume, answer: type) -> None:
    join(stage, "a", "#1", keep=True)
    assert leave(stage, "a") == []
    assert isinstance(join(stage, "a", "#2", incarnation=2, resume=resume), answer)


def test_what_is_kept_goes_when_a_job_begins_anew(stage: Stage) -> None:
    join(stage, "a", "#1", keep=True)
    leave(stage, "a")
    assert join(stage, "b", "#2", resume=Resume.ANEW).cause is RefuseReason.NOT_YET
    stage.tell(ModelFreed(member="s", model=NAME, epoch=1))
    assert isinstance(join(stage, "b", "#2", resume=Resume.ANEW), Welcome)
    assert isinstance(join(stage, "c", "#2", resume=Resume.ANEW), Welcome)


def test_a_model_at_a_server_with_checkpoints_is_kept() -> None:
    stage = Stage()
    stage.tell(MemberJoined(member=member("s", Role.SERVER, 1, address="s:1"), keeps=True))
    join(stage, "a")
    assert leave(stage, "a") == []
    assert stage.state.endings.stay_of(NAME).kept


def test_a_server_that_came_back_meanwhile_is_told_once_more() -> None:
    stage = Stage().trained("a")
    leave(stage, "a")
    stage.silent("s")
    assert [order.to for order in of(FreeModel, stage.server(held=(SPEC,)))] == ["s"]
    assert stage.tell(holds(0)) == []
    assert is_there(stage)
    stage.tell(ModelFreed(member="s", model=NAME, epoch=1))
    assert not is_there(stage)


def test_a_server_that_comes_back_without_the_model_has_freed_it() -> None:
    stage = Stage().trained("a")
    leave(stage, "a")
    stage.silent("s")
    stage.server()
    assert not is_there(stage)


def test_nobody_waits_for_a_server_that_counts_as_left() -> None:
    stage = Stage().trained("a")
    leave(stage, "a")
    lose(stage, "s")
    assert not is_there(stage)


def test_a_server_that_was_away_while_its_model_ended_is_told_when_it_is_back() -> None:
    stage = Stage().trained("a")
    leave(stage, "a")
    lose(stage, "s")
    assert not is_there(stage)
    told = of((FreeModel, Welcome), stage.server(held=(SPEC,)))
    assert [type(order) for order in told] == [Welcome, FreeModel]
    assert stage.tell(holds(3)) == []
    assert not is_there(stage)


def test_a_model_of_the_same_name_that_began_later_is_not_freed_by_a_late_word() -> None:
    stage = Stage().trained("a")
    leave(stage, "a")
    stage.tell(ModelFreed(member="s", model=NAME, epoch=1))
    assert isinstance(join(stage, "b"), Welcome)
    assert of(FreeModel, stage.server(held=(SPEC,), server_epochs=(2,))) == []
    leave(stage, "b")
    stage.tell(ModelFreed(member="s", model=NAME, epoch=1))
    assert is_there(stage)
    stage.tell(ModelFreed(member="s", model=NAME, epoch=stage.state.context.numbers.last_server_epoch))
    assert not is_there(stage)


def test_a_replica_that_was_away_while_a_model_ended_frees_it_and_takes_nobodys_place() -> None:
    stage = Stage().trained("a")
    replica = replace(member("r", Role.REPLICA, 1, address="r:1"))
    follows = Following(server="s", norm=math.inf, updates=8, is_seeded=True)
    stage.tell(MemberJoined(member=replica, follows=follows))
    stage.tell(ReplicaReported(replica="r", model=NAME, term=1, version=ModelVersion(1, 0), held=()))
    lose(stage, "r")
    leave(stage, "a")
    stage.tell(ModelFreed(member="s", model=NAME, epoch=1))
    stage.tell(MemberJoined(member=replica, follows=follows))
    told = stage.tell(ReplicaReported(replica="r", model=NAME, term=1, version=ModelVersion(1, 0), held=()))
    assert [(order.to, order.epoch) for order in of(FreeModel, told)] == [("r", 1)]
    stage.silent("s")
    stage.now_ns += 20 * SECOND_NS
    assert of(Promote, stage.tell(Tick())) == []


def test_a_lost_worker_does_not_take_a_model_back_from_the_job_that_goes_on_with_it(stage: Stage) -> None:
    join(stage, "a", "#1")
    join(stage, "b", "#1")
    lose(stage, "b")
    leave(stage, "a")
    assert isinstance(join(stage, "c", "#2", resume=Resume.GO_ON), Welcome)
    assert join(stage, "b", "#1", resume=Resume.GO_ON).cause is RefuseReason.OTHER_JOB
    assert isinstance(join(stage, "d", "#2", resume=Resume.GO_ON), Welcome)


def test_workers_of_before_a_new_scheduler_are_waited_for() -> None:
    stage = Stage(term=2)
    stage.tell(
        MemberJoined(
            member=member("s", Role.SERVER, 1, address="s:1", seen=Term(1, 0)), held=(SPEC,), server_epochs=(1,)
        )
    )
    stage.tell(holds(3))
    assert join(stage, "b", "#1").cause is RefuseReason.NOT_YET
    assert isinstance(join(stage, "a", "#1", resume=Resume.GO_ON), Welcome)
    assert isinstance(join(stage, "b", "#1"), Welcome)
    assert leave(stage, "a") == []
    assert leave(stage, "b") == []
    stage.now_ns += 20 * SECOND_NS
    assert of(FreeModel, stage.tell(Tick()))


def test_a_model_that_came_from_checkpoints_is_of_a_former_job() -> None:
    stage = Stage()
    stage.server(held=(SPEC,))
    stage.tell(holds(3))
    assert "at version 3" in join(stage, "a").reason
    assert isinstance(join(stage, "a", resume=Resume.GO_ON), Welcome)


def test_a_model_that_is_trained_cannot_be_removed_and_one_that_is_not_can(stage: Stage) -> None:
    join(stage, "a", keep=True)
    assert "a train it" in str(stage.state.endings.removal_refusal(NAME))
    assert stage.tell(ModelRemoved(model=NAME)) == []
    leave(stage, "a")
    assert stage.state.endings.removal_refusal(NAME) is None
    assert of(FreeModel, stage.tell(ModelRemoved(model=NAME)))
    assert "there is no model 'other'" in str(stage.state.endings.removal_refusal("other"))


def test_nothing_is_left_of_a_job_that_reduced_among_its_workers(stage: Stage) -> None:
    spec = replace(SPEC, method=Method.ALL_REDUCE, tau_max=None)
    join(stage, "a", spec=spec)
    leave(stage, "a")
    assert isinstance(join(stage, "a", incarnation=2), Welcome)


def test_names_of_jobs_that_go_on_are_given_to_no_other(stage: Stage) -> None:
    lifetimes = stage.state.lifetimes
    assert lifetimes.free_name("train") == ""
    stage.tell(JobHeld(job="#1"))
    assert lifetimes.free_name("train") == "train"
    stage.tell(JobHeld(job="train#2"))
    assert lifetimes.free_name("train") == "train-2"
    stage.tell(JobReleased(job="#1"))
    assert lifetimes.free_name("train") == ""
    join(stage, "a")
    assert lifetimes.free_name("train") == "train-2"
