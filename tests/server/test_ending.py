"""A model that has ended: what a server and a replica still do for it, when they say that it is gone, what is freed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from mlfabric.fail_stop import Failed
from mlfabric.protocol import FreeModel, HostModel, ModelFreed, ModelVersion, SumId
from mlfabric.server import actions as act
from mlfabric.server.checkpoint import CheckpointDir, CheckpointExtra
from mlfabric.server.replica_state import ReplicaState
from mlfabric.server.stores import Saving, Stores
from tests.server.models import spec_of, store_of
from tests.server.stage import SPEC, Stage, expect, get, offer, serve, update, want

FREE = FreeModel(to="s", model="net", epoch=1, reason="its job is over")
FREED = ModelFreed(member="s", model="net", epoch=1)
GONE = act.Report(event=FREED)
A = update("a")


def test_what_comes_and_goes_is_broken_off_and_the_model_is_gone_once_its_store_is() -> None:
    stage = Stage()
    stage.tell(expect(A, 0), offer(A, 1), serve(get("b")), want(get("b"), 2))
    told = stage.tell(FREE)
    assert [a.connection for a in told if isinstance(a, act.Abandon)] == [1, 2]
    assert told[-1] == act.FreeStore(model="net", transfers=(), reason="")
    assert stage.state.models == {}
    assert stage.tell(FREE) == []
    assert stage.tell(act.StoreFreed(model="net")) == [GONE]
    assert stage.tell(FREE) == [GONE]


def test_what_is_being_applied_keeps_its_buffer_and_its_end_says_nothing() -> None:
    stage = Stage()
    stage.bring(A, 0)
    assert stage.tell(FREE)[-1] == act.FreeStore(model="net", transfers=(A,), reason="")
    assert stage.step(A) == []


def test_one_of_the_same_name_begins_when_the_former_is_gone() -> None:
    stage = Stage()
    stage.tell(FREE)
    order = HostModel(to="s", spec=SPEC, reason="", epoch=2)
    assert stage.tell(order) == []
    assert stage.tell(act.StoreFreed(model="net")) == [GONE, act.CreateStore(spec=SPEC, reason="")]
    assert stage.model.version == ModelVersion(2, 0)


def test_one_that_began_later_stays() -> None:
    stage = Stage()
    stage.tell(FREE, act.StoreFreed(model="net"), HostModel(to="s", spec=SPEC, reason="", epoch=2))
    assert stage.tell(FREE) == []
    assert stage.model.version == ModelVersion(2, 0)


def test_one_that_ends_before_the_former_is_gone_never_begins() -> None:
    stage = Stage()
    stage.tell(FREE, HostModel(to="s", spec=SPEC, reason="", epoch=2))
    assert stage.tell(replace(FREE, epoch=2)) == []
    assert stage.tell(act.StoreFreed(model="net")) == [act.Report(event=replace(FREED, epoch=2))]


def test_a_replica_lets_go_too_and_follows_the_next_of_that_name() -> None:
    state = ReplicaState("s")
    state.handle(HostModel(to="s", spec=SPEC, reason=""), 0)
    free = state.handle(FREE, 0)
    assert free == [act.FreeStore(model="net", transfers=(), reason=FREE.reason)]
    assert state.handle(HostModel(to="s", spec=SPEC, reason=""), 0) == []
    told = state.handle(act.StoreFreed(model="net"), 0)
    assert told[0] == GONE
    assert state.models["net"].term == 0


def test_a_store_gives_its_memory_back_once_nothing_runs_and_its_checkpoints_go_aside(tmp_path: Path) -> None:
    async def run() -> tuple[Stores, list[act.ServerEvent | Failed]]:
        said: list[act.ServerEvent | Failed] = []
        extra = CheckpointExtra(server_epoch=1, log_position=0, applied=[], epochs=[], samples={})
        stores = Stores(said.append, Saving(directory=CheckpointDir(tmp_path), extra=lambda _: extra))
        stores.add(spec_of(), store_of(spec_of(), 0))
        await stores.save()
        buffer = stores.reserve(SumId(1, 0), 64)
        async with stores.turn("net"):
            stores.free(act.FreeStore(model="net", transfers=(SumId(1, 0),), reason="over"))
            await asyncio.sleep(0)
            assert not said
            assert await stores.save() == []
        await stores.close()
        assert buffer.nbytes == 64
        return stores, said

    stores, said = asyncio.run(run())
    assert said == [act.StoreFreed(model="net")]
    assert set(stores.memory_bytes().values()) == {0}
    assert [path.parent.name for path in tmp_path.rglob("*.pt")] == ["removed"]
