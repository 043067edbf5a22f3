"""A model's server epochs at a worker: what was under way, or waited, when a later one came, or another server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfabric.protocol import GetRequested, ModelVersion, NewServer, Tick, WorkerHolds
from mlfabric.worker_daemon import actions as act
from mlfabric.worker_daemon.state import FIRST_PAUSE_NS
from tests.worker_daemon.stage import DONE, LATE, Stage, answered, asks, fetch, get, get_id, push, send, settles

OLD, NEW = ModelVersion(1, 7), ModelVersion(2, 5)


def comes(counter: int, version: ModelVersion) -> act.ModelReceived:
    return act.ModelReceived(get=get_id(counter), version=version)


def newest(request: GetRequested) -> GetRequested:
    """Return a request that wants a model of the later epoch."""
    return replace(request, min_version=ModelVersion(NEW.epoch, 0))


def at_least(request: GetRequested, version: ModelVersion) -> GetRequested:
    return replace(request, min_version=version)


def brings(counter: int, version: ModelVersion) -> act.Deliver:
    return act.Deliver(get=get_id(counter), version=version)


@pytest.fixture
def stage():
    """A worker with two gets under way, the first of which follows a push."""
    stage = Stage()
    stage.push(0)
    stage.get(0, after=0)
    stage.get(1)
    stage.tell(fetch(0), fetch(1))
    return stage


def test_a_model_that_waited_while_one_of_a_later_epoch_came_is_fetched_again(stage):
    stage.tell(comes(0, OLD))
    assert stage.tell(comes(1, NEW)) == [brings(1, NEW)]
    again = newest(get(0, after=0))
    assert stage.tell(answered(0, DONE)) == [settles(0, DONE), asks(again)]
    stage.tell(fetch(0, b"2"))
    assert stage.tell(comes(0, NEW)) == [brings(0, NEW)]


def test_a_model_that_waited_while_one_of_a_later_epoch_came_is_fetched_by_a_plan_that_came_meanwhile(stage):
    stage.tell(comes(0, OLD), comes(1, NEW), fetch(0, b"2"))
    again = act.StartFetch(plan=fetch(0, b"2"))
    assert stage.tell(answered(0, DONE)) == [settles(0, DONE), again]


def test_a_model_that_waits_makes_those_that_come_later_be_of_its_epoch(stage):
    stage.tell(comes(0, NEW))
    assert stage.tell(comes(1, OLD)) == []
    stage.now_ns = FIRST_PAUSE_NS
    assert stage.tell(Tick()) == [asks(newest(get(1)))]
    stage.tell(fetch(1, b"2"))
    assert stage.tell(comes(1, NEW)) == [brings(1, NEW)]
    assert stage.tell(answered(0, DONE)) == [settles(0, DONE), brings(0, NEW)]


def test_a_worker_that_has_a_model_of_a_later_epoch_still_hears_when_it_is_admitted_that_all_is_sent_anew(stage):
    stage.tell(act.TermBegan(term=1, server_epoch=1), comes(1, NEW))
    assert stage.tell(act.TermBegan(term=1, server_epoch=2))[0] == act.StopTransfers()


def test_under_one_scheduler_a_model_may_be_of_before_what_the_worker_knows_of(stage):
    earlier = ModelVersion(NEW.epoch, NEW.number - 1)
    stage.tell(act.TermBegan(term=1, server_epoch=2), fetch(1, b"2"), comes(1, NEW))
    stage.get(2)
    stage.tell(fetch(2))
    assert stage.tell(comes(2, earlier)) == [brings(2, earlier)]


def test_what_waited_is_fetched_again_under_a_new_scheduler_too(stage):
    stage.tell(comes(0, OLD), comes(1, NEW), act.TermBegan(term=2))
    again = at_least(get(0, after=0), NEW._replace(number=0))
    assert stage.tell(answered(0, DONE)) == [settles(0, DONE), asks(again)]


def test_the_parts_of_a_cut_model_are_fetched_again_if_a_part_of_a_later_epoch_came_while_they_waited():
    stage = Stage(shards=2)
    stage.push(0, 1)
    stage.get(0, 1, after=0)
    stage.get(2, 3)
    stage.tell(*(fetch(counter) for counter in range(4)))
    stage.tell(comes(0, OLD), comes(1, OLD), comes(2, NEW), answered(0, LATE))
    told = stage.tell(answered(1, LATE))
    again = [asks(newest(get(part, after=part, shards=2))) for part in range(2)]
    assert [action for action in told if action in again] == again


# Another process is the model's server


def new_server(server_epoch: int = 2) -> NewServer:
    return NewServer(to="a", model="net", server_epoch=server_epoch, reason="")


def test_what_is_under_way_is_stopped_and_everything_open_is_asked_for_again():
    stage = Stage()
    stage.tell(act.TermBegan(term=1, server_epoch=1))
    stage.push(0)
    stage.get(0)
    stage.tell(send(0), fetch(0))
    assert stage.tell(new_server()) == [
        act.StopTransfers(),
        act.Request(event=WorkerHolds(worker="a", pushes=(push(0),), gets=(get(0),))),
    ]
    assert [type(action) for action in stage.tell(send(0))] == [act.StartSend]


def test_a_model_of_an_earlier_server_is_not_taken():
    stage = Stage()
    stage.get(0)
    stage.tell(new_server(), fetch(0))
    old, new = ModelVersion(1, 9), ModelVersion(2, 7)
    assert not stage.tell(act.ModelReceived(get=get(0).get, version=old))
    stage.tell(fetch(0))
    (delivered,) = stage.tell(act.ModelReceived(get=get(0).get, version=new))
    assert delivered == act.Deliver(get=get(0).get, version=new)


def test_who_was_away_hears_of_it_when_it_is_admitted():
    stage = Stage()
    stage.tell(act.TermBegan(term=1, server_epoch=1))
    stage.push(0)
    stage.tell(send(0))
    found = stage.tell(act.TermBegan(term=1, server_epoch=2))
    assert found[0] == act.StopTransfers()
    assert not [a for a in stage.tell(act.TermBegan(term=1, server_epoch=2)) if isinstance(a, act.StopTransfers)]
