"""Scheduler and server begin anew with nothing, and workers come that know of versions of before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.protocol import (
    STEPS_KEPT,
    AppliedIds,
    Commit,
    CommitsReported,
    Committed,
    Drop,
    DropReason,
    HostModel,
    InitialReceived,
    Lost,
    MemberJoined,
    MemberSilent,
    ModelVersion,
    Refuse,
    RefuseReason,
    Serve,
    Welcome,
)
from mlfabric.scheduler.known_epochs import MOST_RENEWALS, most_epoch
from mlfabric.scheduler.limits import Limits
from mlfabric.specs import MAX_EPOCH, Role, Term
from tests.scheduler.shard_stage import CUT, ShardStage, part_push
from tests.scheduler.stage import SPEC, Stage, committed, get, holds, member, push, update

SILENCE_MS = 10_000


def kinds(told, kind):
    return [i for i in told if isinstance(i, kind)]


def named(told):
    """Return the epochs that servers are named."""
    return [i.epoch for i in kinds(told, HostModel)]


def comes(stage, name, knows, *, spec=SPEC, **fields):
    """Let a worker come that knows of a server epoch, or of a version."""
    known = knows if isinstance(knows, ModelVersion) else ModelVersion(knows, 0)
    return stage.worker(name, spec=spec, known=known, **fields)


@pytest.fixture
def stage():
    """A scheduler that has begun anew, and a server that has nothing."""
    stage = Stage(epoch=7)
    stage.server()
    yield stage
    stage.state.validate()


def trains(stage, epoch, *names):
    """Let the server have weights, and commit one update of each worker."""
    stage.tell(InitialReceived(server="s", model="net", version=ModelVersion(epoch, 0)))
    for number, name in enumerate(names, 1):
        done = update(name, names[: number - 1].count(name))
        stage.ask(replace(push(name, done.counter), computed_from=ModelVersion(epoch, number - 1)))
        commit = Commit(update=done, version=ModelVersion(epoch, number), tau=0, lr=0.1, step_norm=1.0)
        stage.tell(CommitsReported(server="s", model="net", commits=(commit,)))


def test_a_model_begins_above_what_the_worker_that_brings_it_knows_of(stage):
    told = comes(stage, "a", 5)
    assert named(told) == [6]
    assert [w.server_epoch for w in kinds(told, Welcome)] == [6]
    assert stage.pushes.version == ModelVersion(6, 0)


def test_a_model_begins_above_what_a_worker_knows_of_that_came_before_the_server():
    stage = Stage(epoch=7)
    (answer,) = comes(stage, "a", ModelVersion(5, 1))
    assert isinstance(answer, Refuse)
    assert answer.cause is RefuseReason.NOT_YET
    stage.server()
    assert named(comes(stage, "b", 1)) == [6]


def test_of_who_waits_for_servers_of_ever_more_models_the_last_are_remembered():
    stage = Stage(epoch=7, limits=Limits(models=2))
    for name in ("one", "two", "three", "two", "four"):
        comes(stage, "a", 5, spec=replace(SPEC, name=name))
    stage.server()
    assert named(comes(stage, "b", 0, spec=replace(SPEC, name="three"))) == [1]
    assert named(comes(stage, "c", 0, spec=replace(SPEC, name="two"))) == [6]


def test_names_of_models_that_there_are_not_take_the_place_of_none_that_there_is():
    stage = Stage(epoch=7, limits=Limits(models=2))
    stage.server()
    comes(stage, "a", 5)
    for name in ("one", "two", "three"):
        comes(stage, "b", 5, spec=replace(SPEC, name=name, server="nobody"))
    assert named(comes(stage, "c", 6)) == [7]


def test_a_model_that_nobody_knows_of_begins_under_the_first_epoch(stage):
    assert named(comes(stage, "a", 0)) == [1]


def test_what_was_computed_under_a_former_scheduler_is_rolled_back(stage):
    comes(stage, "a", 5)
    trains(stage, 6)
    (drop,) = kinds(stage.ask(replace(push("a", 1), computed_from=ModelVersion(5, 0))), Drop)
    assert drop.cause is DropReason.ROLLED_BACK


@pytest.mark.parametrize("knows", [1, 5])
def test_a_server_goes_on_above_what_a_worker_knows_of_that_comes_later(stage, knows):
    comes(stage, "new", 0)
    trains(stage, 1, "new")
    told = comes(stage, "a", knows)
    assert named(told) == [knows + 1]
    assert [w.server_epoch for w in kinds(told, Welcome)] == [knows + 1]


def test_nothing_is_lost_when_a_server_goes_on_under_a_later_epoch(stage):
    comes(stage, "new", 0)
    trains(stage, 1, "new")
    comes(stage, "a", 5)
    again = AppliedIds(worker="new", incarnation=1, low=0, recent=((0, ModelVersion(6, 1), 0),))
    began = replace(holds(1), version=ModelVersion(6, 1), epoch_base=STEPS_KEPT, applied=(again,))
    assert named(stage.tell(began)) == []
    assert stage.pushes.version == ModelVersion(6, 1)
    assert stage.pushes.lost == 0
    assert stage.pushes.settled.get(update("new")) == Committed(version=ModelVersion(6, 1), tau=0)
    (drop,) = kinds(stage.ask(replace(push("new", 1), computed_from=ModelVersion(1, 1))), Drop)
    assert drop.cause is DropReason.ROLLED_BACK


def test_a_server_that_did_not_hear_under_which_epoch_to_go_on_hears_it_again(stage):
    comes(stage, "new", 0)
    trains(stage, 1)
    comes(stage, "a", 5)
    stage.tell(MemberSilent(name="s", incarnation=1))
    stage.server(held=(SPEC,), server_epochs=(1,))
    assert named(stage.tell(holds(0))) == [6]
    assert stage.pushes.version == ModelVersion(1, 0)


def test_who_knows_of_no_more_than_there_is_changes_nothing(stage):
    comes(stage, "a", 5)
    trains(stage, 6)
    assert named(comes(stage, "b", 4)) == named(comes(stage, "c", 5)) == []


def test_a_worker_that_this_scheduler_admitted_may_know_of_the_present_epoch(stage):
    comes(stage, "a", 0)
    trains(stage, 1)
    assert named(comes(stage, "a", 1, seen=Term(7, 0))) == []
    assert named(comes(stage, "a", 1, seen=Term(6, 0))) == [2]


def test_a_process_of_a_server_that_comes_with_nothing_begins_above_what_workers_know_of(stage):
    comes(stage, "a", 5)
    stage.tell(MemberSilent(name="s", incarnation=1))
    assert named(comes(stage, "b", 9)) == [10]  # the process that is away may come to hear of it, and serve under it
    assert named(stage.server(incarnation=2)) == [11]


# Servers that begin anew, or resume, while they are to be told of a later epoch


def knows_of_another(stage):
    """Let a worker come that knows of versions of a former model, while the server that has ten of its own is away."""
    comes(stage, "new", 0)
    trains(stage, 1, *["new"] * 10)
    stage.tell(MemberSilent(name="s", incarnation=1))
    assert named(comes(stage, "b", ModelVersion(1, 5))) == [2]


def resumes(stage, epoch, kept):
    """Let another process go on from a checkpoint of the first epoch; return what it is told."""
    stage.server(incarnation=2, held=(SPEC,), server_epochs=(epoch,))
    return stage.tell(replace(holds(kept, epoch_base=kept), version=ModelVersion(epoch, kept)))


def is_rolled_back(stage, worker, *version):
    told = stage.ask(replace(push(worker, 99), computed_from=ModelVersion(*version)))
    return [drop.cause for drop in kinds(told, Drop)] == [DropReason.ROLLED_BACK]


def test_the_epoch_under_which_a_server_resumes_is_not_taken_for_the_one_that_was_named(stage):
    knows_of_another(stage)
    assert named(resumes(stage, epoch=2, kept=8)) == [3]
    assert stage.pushes.lost == 2
    assert isinstance(stage.pushes.settled.get(update("new", 7)), Committed)
    assert isinstance(stage.pushes.settled.get(update("new", 8)), Lost)
    began = replace(holds(8, epoch_base=STEPS_KEPT), version=ModelVersion(3, 8), earlier=(ModelVersion(2, 8),))
    assert named(stage.tell(began)) == []
    assert stage.pushes.lost == 2
    assert is_rolled_back(stage, "b", 1, 5)


def test_so_it_is_for_one_that_resumes_under_a_later_epoch_from_before_the_one_that_was_named(stage):
    knows_of_another(stage)
    assert named(resumes(stage, epoch=7, kept=8)) == [8]


def test_a_server_that_resumes_from_after_the_epoch_that_was_named_is_told_of_no_other_and_has_lost_nothing(stage):
    knows_of_another(stage)
    stage.server(incarnation=2, held=(SPEC,), server_epochs=(3,))
    resumed = replace(holds(10, epoch_base=10), version=ModelVersion(3, 10), earlier=(ModelVersion(2, STEPS_KEPT),))
    assert named(stage.tell(resumed)) == []
    assert stage.pushes.lost == 0
    assert is_rolled_back(stage, "b", 1, 5)


def test_a_worker_that_comes_after_a_server_has_resumed_may_mean_another_model_by_its_former_epoch(stage):
    comes(stage, "new", 0)
    trains(stage, 1, *["new"] * 10)
    resumes(stage, epoch=2, kept=8)
    assert named(comes(stage, "b", ModelVersion(1, 5))) == [3]


def test_what_a_server_has_lost_is_counted_at_once_however_much_it_says_that_is(stage):
    stage.tell(holds(2**60))
    resumes(stage, epoch=2, kept=8)
    assert stage.pushes.lost == 2**60 - 8


def test_a_server_that_begins_anew_does_not_do_so_under_the_epoch_that_its_former_process_was_named(stage):
    knows_of_another(stage)
    assert named(stage.server(incarnation=2)) == [3]
    assert stage.pushes.version == ModelVersion(3, 0)
    assert stage.pushes.lost == 10
    assert is_rolled_back(stage, "b", 1, 5)


def test_a_server_that_begins_with_nothing_does_not_do_so_under_the_epoch_that_its_former_process_came_with(stage):
    comes(stage, "a", 0)
    trains(stage, 1, "a")
    stage.tell(MemberSilent(name="s", incarnation=1))
    stage.server(incarnation=2, held=(SPEC,), server_epochs=(2,))
    stage.tell(MemberSilent(name="s", incarnation=2))  # it has not told that it goes on from version (2, 1)
    assert named(stage.server(incarnation=3)) == [3]


def test_what_a_process_served_under_the_epoch_that_it_was_named_and_could_not_tell_of_is_lost_with_it(stage):
    comes(stage, "new", 0)
    trains(stage, 1, *["new"] * 10)
    assert named(comes(stage, "b", ModelVersion(1, 5))) == [2]
    stage.tell(MemberSilent(name="s", incarnation=1))  # it served (2, 10)
    stage.server(incarnation=2)
    stage.tell(InitialReceived(server="s", model="net", version=ModelVersion(3, 0)))
    assert is_rolled_back(stage, "b", 2, 10)


# Servers that bring a model


def test_workers_may_know_of_the_epoch_of_a_server_that_brings_its_model():
    stage = Stage(epoch=7)
    stage.server(held=(SPEC,), server_epochs=(3,))
    stage.tell(replace(holds(4), version=ModelVersion(3, 4)))
    assert named(comes(stage, "a", 3)) == []
    stage.wait(SILENCE_MS)
    assert named(stage.tick()) == []


def test_who_took_the_place_of_a_server_that_knows_less_than_workers_has_time_to_come_back():
    stage = Stage(epoch=7)
    stage.server(held=(SPEC,), server_epochs=(3,))
    stage.tell(replace(holds(4), version=ModelVersion(3, 4)))
    assert named(comes(stage, "a", 5)) == []
    stage.wait(SILENCE_MS - 1)
    assert named(stage.tick()) == []
    stage.wait(1)
    assert named(stage.tick()) == [6]


def test_a_server_that_brings_a_model_of_the_epoch_that_workers_know_of_and_has_less_of_it_goes_on_above_it():
    stage = Stage(epoch=7)
    stage.server(held=(SPEC,), server_epochs=(3,))
    stage.tell(replace(holds(4), version=ModelVersion(3, 4)))
    assert named(comes(stage, "a", ModelVersion(3, 4))) == named(comes(stage, "b", ModelVersion(3, 5))) == []
    stage.wait(SILENCE_MS)
    assert named(stage.tick()) == [4]


def test_what_was_committed_and_not_told_yet_is_no_more_than_there_is():
    stage = Stage(epoch=7)
    stage.server(held=(SPEC,), server_epochs=(1,))
    stage.tell(holds(4))
    comes(stage, "a", ModelVersion(1, 5))
    stage.tell(committed(update("a"), 5))
    stage.wait(SILENCE_MS)
    assert named(stage.tick()) == []


def test_nothing_is_decided_before_a_server_has_said_what_it_holds():
    stage = Stage(epoch=7)
    stage.server(held=(SPEC,), server_epochs=(3,))
    comes(stage, "a", ModelVersion(3, 4))
    stage.wait(SILENCE_MS)
    assert named(stage.tick()) == []
    assert named(stage.tell(replace(holds(4), version=ModelVersion(3, 4)))) == []


def test_a_server_that_took_the_place_of_one_and_is_back_goes_on_as_it_is():
    stage = Stage(epoch=7)
    stage.server(held=(SPEC,), server_epochs=(3,))
    stage.tell(replace(holds(4), version=ModelVersion(3, 4)))
    comes(stage, "a", 5)
    stage.server(incarnation=2, held=(SPEC,), server_epochs=(5,), succeeds="r")
    stage.tell(replace(holds(4), version=ModelVersion(5, 4)))
    stage.wait(SILENCE_MS)
    assert named(stage.tick()) == []
    assert stage.pushes.version == ModelVersion(5, 4)


# What a worker comes to know of late, and what it may say


def test_a_worker_that_waits_for_an_epoch_that_it_came_to_know_of_late_gets_one_above_it(stage):
    comes(stage, "a", 0)
    trains(stage, 1)
    wanted = replace(get("a"), min_version=ModelVersion(4, 0))
    assert named(stage.ask(wanted)) == [5]
    assert named(stage.ask(wanted)) == []
    assert named(stage.ask(replace(get("a", 1), min_version=ModelVersion(1, 9)))) == []


def refusal(stage, name, knows):
    event = MemberJoined(member=member(name, Role.WORKER), spec=SPEC, known=ModelVersion(knows, 0))
    (answer,) = stage.state.handle(event, stage.now_ns)
    assert isinstance(answer, Refuse)
    return answer.cause, answer.reason


def test_what_a_worker_may_know_of_is_bounded(stage):
    comes(stage, "a", 0)
    trains(stage, 1)
    most = most_epoch(7)
    cause, words = refusal(stage, "b", most + 1)
    assert cause is RefuseReason.OUT_OF_RANGE
    assert f"up to {most}" in words
    assert stage.state.refusal(replace(get("a"), min_version=ModelVersion(most, 0))) is None
    cause, words = stage.state.refusal(replace(get("a"), min_version=ModelVersion(most + 1, 0)))
    assert cause is RefuseReason.OUT_OF_RANGE
    assert f"up to {most}" in words
    assert named(comes(stage, "c", most)) == [most + 1]


NOW_MS = 1_790_000_000_000


def lied_to():
    """Return a scheduler that named the greatest epoch that it may, for what a liar said that was not admitted."""
    stage = Stage(epoch=NOW_MS)
    (answer,) = comes(stage, "liar", most_epoch(NOW_MS))
    assert isinstance(answer, Refuse)
    stage.server()
    assert named(comes(stage, "a", 0)) == [most_epoch(NOW_MS) + 1]
    trains(stage, most_epoch(NOW_MS) + 1)
    return stage


def test_who_knows_of_what_was_named_for_a_liar_is_believed():
    stage, epoch = lied_to(), most_epoch(NOW_MS) + 1
    known = ModelVersion(epoch, 3)
    assert kinds(comes(stage, "a", known, seen=Term(NOW_MS, 0)), Welcome)
    assert stage.state.refusal(replace(get("a"), min_version=known)) is None
    told = comes(stage, "b", known)
    assert named(told) == [epoch + 1]
    assert kinds(told, Welcome)


def test_who_knows_of_what_was_named_for_a_liar_is_believed_by_a_later_scheduler():
    epoch, later_ms = most_epoch(NOW_MS) + 1, NOW_MS + 10_000
    stage = Stage(epoch=later_ms)
    stage.server()
    told = comes(stage, "a", ModelVersion(epoch, 3), seen=Term(NOW_MS, 0))
    assert named(told) == [epoch + 1]
    assert kinds(told, Welcome)


def test_every_epoch_that_is_believed_and_those_after_it_can_be_told():
    assert most_epoch(MAX_EPOCH) + 2**30 < 2**32


def test_workers_cannot_have_later_and_later_epochs_begun(stage):
    comes(stage, "honest", 0)
    trains(stage, 1)
    for number in range(MOST_RENEWALS):
        assert named(comes(stage, f"liar-{number}", 10 * (number + 1))) == [10 * (number + 1) + 1]
    cause, words = refusal(stage, "liar", 10_000)
    assert cause is RefuseReason.OUT_OF_RANGE
    assert "'net' began a later one 16 times" in words
    wanted = replace(get("honest"), min_version=ModelVersion(10_000, 0))
    cause, words = stage.state.refusal(wanted)
    assert cause is RefuseReason.OUT_OF_RANGE
    assert "'net' began a later one 16 times" in words
    assert stage.state.refusal(replace(wanted, min_version=ModelVersion(10 * MOST_RENEWALS + 1, 9))) is None
    assert named(stage.ask(wanted)) == []
    assert kinds(comes(stage, "other", 3), Welcome)


# Models that are cut


def cut():
    stage = ShardStage(epoch=7)
    for server in ("s0", "s1"):
        stage.server(server)
    return stage


def cut_and_begun():
    """Return a model that is cut and to which a worker has given weights."""
    stage = cut()
    comes(stage, "new", 0, spec=CUT)
    for shard in range(2):
        at = ModelVersion(1, 0)
        stage.tell(InitialReceived(server=f"s{shard}", model=f"net.shard{shard}", version=at))
    return stage


def test_all_parts_of_a_model_begin_above_what_workers_know_of():
    stage = cut()
    assert named(comes(stage, "a", 5, spec=CUT)) == [6, 6]
    assert stage.whole.version == ModelVersion(6, 0)


def test_all_parts_count_as_of_an_epoch_above_what_a_worker_knows_of_that_comes_later():
    stage = cut_and_begun()
    told = comes(stage, "a", 5, spec=CUT)
    assert named(told) == [6, 6]
    assert [w.server_epoch for w in kinds(told, Welcome)] == [6]
    stage.ask(replace(get("a", 0), model="net.shard0"))
    served = kinds(stage.ask(replace(get("a", 1), model="net.shard1")), Serve)
    assert [serve.version for serve in served] == [ModelVersion(6, 0)] * 2


def test_a_push_from_a_version_of_before_is_rolled_back_at_all_parts():
    stage = cut_and_begun()
    comes(stage, "a", 5, spec=CUT)
    told = []
    for shard in range(2):
        told += stage.ask(replace(part_push("a", 0, shard, 0), computed_from=ModelVersion(5, 0)))
    assert [(drop.to, drop.cause) for drop in kinds(told, Drop)] == [("a", DropReason.ROLLED_BACK)] * 2
