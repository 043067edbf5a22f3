"""What a worker does when another process is its model's server: it lets go of the old one, and asks again."""

from __future__ import annotations

from mlfabric.protocol import ModelVersion, NewServer, WorkerHolds
from mlfabric.worker_daemon import actions as act
from tests.worker_daemon.stage import Stage, fetch, get, push, send


def new_server(server_epoch: int = 2) -> NewServer:
    return NewServer(to="a", model="net", server_epoch=server_epoch, reason="")


def test_what_is_under_way_is_stopped_and_everything_open_is_asked_for_again():
    stage = Stage()
    stage.tell(act.EpochBegan(epoch=1, server_epoch=1))
    stage.push(0)
    stage.get(0)
    stage.tell(send(0))
    stage.tell(fetch(0))
    assert stage.tell(new_server()) == [
        act.StopTransfers(),
        act.Request(event=WorkerHolds(worker="a", pushes=(push(0),), gets=(get(0),))),
    ]
    assert [type(action) for action in stage.tell(send(0))] == [act.StartSend]


def test_a_model_of_an_earlier_server_is_not_taken():
    stage = Stage()
    stage.get(0)
    stage.tell(new_server())
    stage.tell(fetch(0))
    old, new = ModelVersion(1, 9), ModelVersion(2, 7)
    assert not stage.tell(act.ModelReceived(get=get(0).get, version=old))
    stage.tell(fetch(0))
    (delivered,) = stage.tell(act.ModelReceived(get=get(0).get, version=new))
    assert delivered == act.Deliver(get=get(0).get, version=new)


def test_who_was_away_hears_of_it_when_it_is_admitted():
    stage = Stage()
    stage.tell(act.EpochBegan(epoch=1, server_epoch=1))
    stage.push(0)
    stage.tell(send(0))
    found = stage.tell(act.EpochBegan(epoch=1, server_epoch=2))
    assert found[0] == act.StopTransfers()
    assert not [a for a in stage.tell(act.EpochBegan(epoch=1, server_epoch=2)) if isinstance(a, act.StopTransfers)]
