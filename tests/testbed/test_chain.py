"""The chain that replicas are compared with: its follower has the model of its head, and has it first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mlfabric
from benchmarks import chain
from benchmarks.chain import Follower
from mlfabric.channels import TcpChannel, TcpOptions
from mlfabric.errors import UnavailableError
from mlfabric.model.specs import Method
from mlfabric.planning import warm_up
from mlfabric.server.actions import InstallInitial
from mlfabric.server.stores import Stores
from tests.fabric.harness import Fabric, wait_until
from tests.fabric.replicas import RULES, Trainer, at_version, held_by, trainers
from tests.server.stage import SPEC, update

METHODS = pytest.mark.parametrize("method", [Method.ASYNCHRONOUS, Method.SYNCHRONOUS])


def in_thread_of(server: mlfabric.Server, work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work, server._loop).result(30)


@contextmanager
def chained(server: mlfabric.Server) -> Iterator[Follower]:
    """Make a server a head, and follow it in its own event loop."""
    follower = Follower(TcpOptions())
    chain.send_on(server._service, in_thread_of(server, follower.listen()))
    yield follower
    in_thread_of(server, follower.close())


def together(found: list[Trainer]) -> None:
    """Let all push at once, and get the model that follows."""
    for handle in [trainer.push() for trainer in found]:
        handle.result(15)
    for trainer in found:
        trainer.worker.get()


def has_the_model_of(server: mlfabric.Server, follower: Follower) -> None:
    wait_until(lambda: follower.store and follower.store.version == at_version(server), "the follower has applied all")
    ours, theirs = held_by(server._service._stores.store("model")), held_by(follower.store)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@METHODS
@pytest.mark.parametrize("rule", ["momentum at the server", "adam"])
def test_a_follower_has_every_commit_first_and_then_the_very_same_model(rule: str, method: Method) -> None:
    with Fabric() as fabric:
        server = fabric.server()
        with chained(server) as follower, trainers(fabric, RULES[rule], elements=1000, method=method) as found:
            ahead: list[int] = []
            server.register_update_callback(lambda _model, c, _view: ahead.append(c.version.number - follower.held))
            for _ in range(6):
                together(found)

            assert len(ahead) == 12
            assert max(ahead) <= 0
            has_the_model_of(server, follower)
            assert follower.step_bytes == 12 * 1000 * 8


@pytest.mark.timeout(600)  # the planner may have to be compiled first
@METHODS
def test_a_sum_goes_on_as_it_came(method: Method) -> None:
    warm_up(print)
    with Fabric() as fabric:
        server = fabric.server(host="server-host", tcp=TcpOptions(up_bps=200_000_000, down_bps=20_000_000))
        fabric.aggregator(host="between", tcp=TcpOptions(up_bps=200_000_000, down_bps=200_000_000))
        wait_until(lambda: len(fabric.status().members) == 2, "they joined")
        with (
            chained(server) as follower,
            trainers(fabric, RULES["momentum at the server"], count=6, elements=4000, method=method) as found,
        ):
            groups = fabric.scheduler.state.count.groups
            for _ in range(60):
                together(found)
                if sum(count for (_, size), count in groups.items() if size > 1) >= 3:
                    break
            else:
                raise AssertionError(f"updates were hardly summed: {groups}")
            has_the_model_of(server, follower)


async def test_a_head_that_finds_no_follower_fails_and_applies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "JOIN_S", 0.0)
    told: list[Any] = []
    service: Any = SimpleNamespace(_stores=Stores(told.append), _channel=TcpChannel(), _does={})
    follower = Follower(TcpOptions())
    chain.send_on(service, await follower.listen())
    await follower.close()
    service._stores.add(SPEC)
    service._stores.reserve(update("a"), SPEC.layout.size_bytes)
    service._does[InstallInitial](InstallInitial(model=SPEC.name, update=update("a")))
    await service._stores.close()
    await asyncio.sleep(0)  # then who waits for the task hears of its end

    assert [type(event.error) for event in told] == [UnavailableError]
    assert not service._stores.store(SPEC.name).is_initialised
    await service._channel.close()
