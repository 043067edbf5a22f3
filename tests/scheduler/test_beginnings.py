"""A model that is cut where servers begin with nothing: all its steps were made since the last beginning, or none."""

from __future__ import annotations

from dataclasses import replace

from mlfabric.model.specs import Method
from mlfabric.protocol import (
    Committed,
    Drop,
    DropReason,
    HostModel,
    Initialise,
    ModelVersion,
    Resolve,
    ServerHolds,
    TransferEnd,
    UpdateKind,
    Welcome,
)
from tests.scheduler.shard_stage import CUT, PARTS, ShardStage, ended, part, part_holds, part_push, spec_of
from tests.scheduler.stage import of


def begins(stage: ShardStage, shard: int, incarnation: int = 2):
    """Let a process of a server join that has nothing."""
    return stage.server(f"s{shard}", incarnation=incarnation)


def says(shard: int, version: tuple[int, int], base: int, *earlier: tuple[int, int]) -> ServerHolds:
    """Return what a server says of its part: its version, and at which versions epochs began."""
    began = tuple(ModelVersion(*one) for one in earlier)
    holds: ServerHolds = replace(part_holds(shard, 0), version=ModelVersion(*version), epoch_base=base, earlier=began)
    return holds


def hear(*holds: ServerHolds) -> ShardStage:
    """Return a scheduler that begins anew, and has heard what servers hold."""
    stage = ShardStage(term=5)
    stage.state.context.numbers.last_server_epoch = 8
    for shard, one in enumerate(holds):
        stage.server(f"s{shard}", held=(PARTS[shard],))
        stage.tell(one)
    return stage


def begun_anew(number: int = 3) -> ShardStage:
    """Return a model of which one server has begun anew after some steps."""
    stage = ShardStage().begin("a", version=number)
    stage.silent("s0")
    begins(stage, 0)
    return stage


def test_a_part_with_steps_is_torn_from_one_that_began_with_nothing_until_it_does_too():
    stage = begun_anew()
    assert stage.whole.torn
    assert not stage.whole.wants_weights
    stage.silent("s1")
    told = begins(stage, 1)
    assert not stage.whole.torn
    assert of(Initialise, told)
    assert stage.whole.version == ModelVersion(3, 0)


def test_a_server_that_begins_with_nothing_is_named_an_epoch_above_those_of_all_parts():
    stage = hear(says(0, (7, 3), 3, (1, 0)), says(1, (2, 3), 3, (1, 0)))
    stage.silent("s1")
    assert [host.epoch for host in of(HostModel, begins(stage, 1))] == [11]


def test_one_step_of_a_former_model_is_not_made_good_at_a_part_that_has_begun_anew():
    stage = hear(says(0, (4, 1), 0), says(1, (5, 0), 0))
    assert stage.whole.torn
    assert stage.whole.unit is None


def test_one_step_is_made_good_where_the_part_that_made_it_had_begun_last():
    stage = hear(says(0, (5, 1), 0), says(1, (4, 0), 0))
    assert stage.whole.is_of_one_beginning


def test_parts_that_took_the_epoch_of_the_last_beginning_over_before_their_first_step_are_of_it():
    stage = hear(says(0, (5, 3), 0, (4, 0)), says(1, (5, 3), 0))
    assert not stage.whole.torn
    stage = hear(says(0, (5, 3), 2, (4, 0)), says(1, (5, 3), 0))
    assert stage.whole.torn


def test_a_part_goes_on_counting_under_the_epoch_of_another_one_when_its_stream_breaks():
    stage = hear(says(0, (5, 3), 3, (1, 0)), says(1, (6, 3), 3, (1, 0)))
    assert stage.whole.version == ModelVersion(6, 3)
    stage.silent("s1")
    stage.server("s1", held=(PARTS[1],))  # which has not said yet what it holds
    stage.tell(says(0, (5, 3), 3, (1, 0)))
    assert stage.whole.tables[0].version == ModelVersion(6, 3)


def test_what_was_computed_before_the_last_beginning_is_dropped_at_all_parts_at_once():
    stage = ShardStage().begin("a", version=3)
    stage.asks("a", computed_from=3)
    stage.arrives("a", parts=(1,))
    stage.silent("s0")
    told = begins(stage, 0)
    told += stage.ask(ended(0, part("a", 0, 0), TransferEnd.VOIDED))
    drops = [(drop.to, drop.update, drop.cause) for drop in of(Drop, told)]
    assert drops == [
        ("s1", part("a", 0, 1), DropReason.ROLLED_BACK),
        ("a", part("a", 0, 0), DropReason.ROLLED_BACK),
    ]


def test_a_part_of_a_push_that_was_committed_elsewhere_is_not_turned_away_as_too_late():
    spec = spec_of(Method.SYNCHRONOUS)
    stage = ShardStage(term=5)
    stage.server("s0", held=(spec.of_shard(0),))
    stage.tell(replace(part_holds(0, 43, ("a", 0, 43)), spec=spec.of_shard(0)))
    stage.silent("s0")
    begins(stage, 0)
    stage.server("s1")
    stage.worker("a", spec=spec)
    stage.part_weights()
    told = stage.asks("a", computed_from=42, parts=(1,))
    assert not of(Drop, told)
    assert [answer.outcome for answer in of(Resolve, told)] == [Committed(version=ModelVersion(1, 43), tau=0)]


def test_a_part_that_is_placed_later_than_the_others_begins_above_them():
    stage = ShardStage(term=5)
    stage.server("s0", held=(PARTS[0],))
    stage.tell(says(0, (4, 0), 0))
    stage.server("s1")
    assert [host.epoch for host in of(HostModel, stage.worker("a", spec=CUT))] == [6]


def test_a_part_without_weights_that_has_something_of_a_former_model_waits_for_no_other_server():
    stage = ShardStage(term=5)
    stage.server("s0", held=(PARTS[0],))
    stage.tell(replace(says(0, (8, 0), 0), initialised=False, received=(part("b", 0, 0),)))
    stage.server("s1")
    assert of(Welcome, stage.worker("a", spec=CUT))


def test_initial_weights_that_were_taken_are_planned_again_where_they_were_lost():
    stage = ShardStage().placed()
    stage.worker("a", spec=CUT)
    request = part_push("a", 0, 0, kind=UpdateKind.INITIAL)
    stage.ask(request)
    stage.arrives("a", parts=(0,))
    stage.commits(("a", 0), version=0, parts=(0,))
    stage.silent("s0")
    begins(stage, 0)
    stage.ask(request)
    assert part("a", 0, 0) in stage.whole.parts[0].pushes.planned


def test_an_iteration_of_a_model_that_is_gone_takes_nothing_in():
    stage = ShardStage().begin("a", version=3, spec=spec_of(Method.SYNCHRONOUS))
    stage.asks("a", computed_from=3)
    assert all(pushes.iteration is not None for pushes in stage.whole.tables)
    for shard in range(2):
        stage.silent(f"s{shard}")
        begins(stage, shard)
    assert all(pushes.iteration is None for pushes in stage.whole.tables)


def test_a_push_that_was_committed_before_and_is_asked_for_while_another_commits_is_answered_after_that():
    stage = ShardStage(term=5)
    stage.server("s0", held=(PARTS[0],))
    stage.tell(part_holds(0, 43, ("a", 0, 43)))
    stage.silent("s0")
    begins(stage, 0)
    stage.server("s1")
    stage.worker("b", spec=CUT)
    stage.part_weights()
    now = stage.whole.version
    for shard in range(2):
        stage.ask(replace(part_push("b", 0, shard), computed_from=now))
    stage.arrives("b")
    assert stage.whole.unit is not None
    stage.worker("a", spec=CUT)
    stage.asks("a", computed_from=42)
    told = stage.prepares(epoch=5) + stage.commits(("b", 0), epoch=now.epoch)
    resolved = [(told.update, told.outcome) for told in of(Resolve, told)]
    assert (part("a", 0, 1), Committed(version=ModelVersion(1, 43), tau=0)) in resolved


def test_parts_that_all_began_under_the_first_epoch_are_of_one_beginning():
    stage = hear(says(0, (1, 2), 0), says(1, (1, 2), 0))
    assert not stage.whole.torn
