"""A server that is told to go on under a later epoch with what it has."""

from __future__ import annotations

from dataclasses import replace

from mlfabric.protocol import STEPS_KEPT, Committed, Dropped, DropReason, ModelVersion, ServerHolds
from mlfabric.server import actions as act
from tests.server.stage import Stage, expect, hosted, offer, serve, serving, update, want
from tests.server.stage import get as get_of


def later(epoch: int):
    return replace(hosted(), epoch=epoch)


def said(told) -> list[ServerHolds]:
    """Return what the server says it holds."""
    return [a.event for a in told if isinstance(a, act.Report) and isinstance(a.event, ServerHolds)]


def outcomes(told):
    return [outcome for a in told if isinstance(a, act.Answer) for _, outcome in a.outcomes]


def test_what_was_committed_counts_as_committed_under_the_later_epoch():
    stage = Stage(version=3)
    stage.bring(update("a"), 1, computed_from=3)
    stage.step(update("a"))
    (holds,) = said(stage.tell(later(6)))
    assert (holds.version, holds.epoch_base) == (ModelVersion(6, 4), STEPS_KEPT)
    assert [ids.recent for ids in holds.applied] == [((0, ModelVersion(6, 4), 0),)]


def test_what_was_computed_from_versions_before_is_rolled_back():
    stage = Stage(version=3)
    stage.tell(later(6))
    (dropped,) = outcomes(stage.bring(update("a"), 1, computed_from=3, epoch=5))
    assert isinstance(dropped, Dropped)
    assert dropped.cause is DropReason.ROLLED_BACK
    stage.bring(update("b"), 2, computed_from=3, epoch=6)
    assert outcomes(stage.step(update("b"))) == [Committed(version=ModelVersion(6, 4), tau=0)]


def test_what_is_being_applied_is_committed_first():
    stage = Stage(version=3)
    stage.bring(update("a"), 1, computed_from=3)
    assert said(stage.tell(later(6))) == []
    told = stage.step(update("a"))
    assert outcomes(told) == [Committed(version=ModelVersion(1, 4), tau=0)]
    assert [holds.version for holds in said(told)] == [ModelVersion(6, 4)]


def test_a_get_that_waits_for_the_later_epoch_is_served():
    stage = Stage(version=3)
    stage.tell(replace(serve(get_of("a")), min_version=ModelVersion(5, 9)))
    assert stage.tell(want(get_of("a"))) == []
    told = [a for a in stage.tell(later(6)) if isinstance(a, act.ServeModel)]
    assert told == [replace(serving(get_of("a"), 3), version=ModelVersion(6, 3))]


def test_an_epoch_that_is_not_later_changes_nothing():
    stage = Stage(version=3)
    stage.tell(later(6))
    assert stage.tell(later(6)) == stage.tell(later(2)) == []
    assert stage.model.version == ModelVersion(6, 3)


def test_a_server_without_weights_begins_with_those_that_come_under_the_later_epoch():
    stage = Stage(initialised=False)
    (holds,) = said(stage.tell(later(6)))
    assert holds.version == ModelVersion(6, 0)
    assert not holds.initialised
    assert not outcomes(stage.tell(expect(update("a"), 1)))
    assert not outcomes(stage.tell(offer(update("a"))))
