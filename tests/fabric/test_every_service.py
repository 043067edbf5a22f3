"""What holds for every kind of service: bad settings are named, names unique, releases agree, the status shows it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import torch

import mlfabric
from mlfabric.channels import TcpOptions
from mlfabric.errors import RefusedError, UsageError
from mlfabric.model.specs import Method, Role
from tests.fabric.harness import Fabric, by_word, fabric, small_model, wait_until


def a_server(**options: Any) -> Any:
    return mlfabric.register_as_server(mlfabric.ServerOptions(**options))


def an_aggregator(**options: Any) -> Any:
    return mlfabric.register_as_aggregator(mlfabric.AggregatorOptions(**options))


def a_replica(**options: Any) -> Any:
    return mlfabric.register_as_replica(
        mlfabric.ReplicaOptions(**{"replica_of": "server-0", "div_max_updates": 8, **options})
    )


Register = Callable[..., Any]
SERVICES = pytest.mark.parametrize("register", [a_server, an_aggregator, a_replica], ids=lambda made: made.__name__)


@pytest.fixture(scope="module")
def running() -> Iterator[Fabric]:
    with fabric() as running:
        running.aggregator(name="adder")
        wait_until(lambda: len(running.status().members) == 2, "server and aggregator are there")
        running.worker(small_model(), "steady").get()
        yield running


@SERVICES
@pytest.mark.parametrize("scheduler", ["nowhere", "head:0", ":1", ""])
def test_a_scheduler_address_that_is_none_is_an_error_at_once(register: Register, scheduler: str) -> None:
    with pytest.raises(UsageError, match=rf"scheduler '{scheduler}'; allowed: HOST:PORT"):
        register(scheduler=scheduler)


def test_a_worker_with_a_scheduler_address_that_is_none_is_told_so() -> None:
    with pytest.raises(UsageError, match="scheduler 'nowhere'; allowed: HOST:PORT"):
        mlfabric.register_as_worker(small_model(), scheduler="nowhere")


@SERVICES
def test_a_data_port_in_use_is_said_plainly(running: Fabric, register: Register) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = {"scheduler": running.scheduler.address, "name": "other", "tcp": TcpOptions(ports=(port, port))}
        with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1 is in use; choose another port, or 0 for any"):
            register(**options)
    assert all(m.name != "other" for m in running.status().members)


@SERVICES
@pytest.mark.parametrize(("name", "role"), [("server-0", "server"), ("adder", "aggregator"), ("steady", "worker")])
def test_a_name_that_is_taken_is_refused_and_whoever_has_it_stays(
    running: Fabric, register: Register, name: str, role: str
) -> None:
    with pytest.raises(RefusedError, match=f"'{name}' is taken by a live {role} on host .*; choose another name"):
        register(scheduler=running.scheduler.address, name=name)
    assert [(m.role, m.state) for m in running.status().members if m.name == name] == [(role, "here")]


@pytest.mark.parametrize("role", [Role.SERVER, Role.AGGREGATOR, Role.REPLICA, Role.MONITOR])
def test_a_member_of_another_protocol_version_is_refused_in_words(running: Fabric, role: Role) -> None:
    fields = {"server": "server-0"} if role is Role.REPLICA else {}
    with pytest.raises(grpc.RpcError) as refused:
        by_word(running.stub(), role, "old", protocol_version=99, **fields)

    error: Any = refused.value
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "old speaks protocol 99, this scheduler 2; install the same release on both" in error.details()
    assert all(m.name != "old" for m in running.status().members)


def test_the_status_shows_every_service_and_what_it_is_doing(running: Fabric) -> None:
    reducer = running.worker(
        {"w": torch.zeros(1, requires_grad=True)}, "reducer", method=Method.ALL_REDUCE, model_name="r"
    )
    with a_replica(scheduler=running.scheduler.address, name="follower"):

        def doing() -> dict[str, str]:
            return {m.name: m.activity for m in running.status().members if m.state == "here"}

        wait_until(lambda: "follows model" in doing().get("follower", ""), "the replica follows")
        found = doing()
        reducer.leave()

    assert found == {
        "server-0": "holds model at version 0",
        "adder": "waits for updates to sum",
        "steady": "computing",
        "reducer": "computing",
        "follower": "follows model at version 0, 0 updates behind",
    }
