"""What somebody on the same machine can do to a job that trains, with gRPC and the wire contract: nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import pytest

from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc, monitor_pb2, monitor_pb2_grpc, session_pb2, types_pb2

pytestmark = pytest.mark.processes

SERVICE = "/mlfabric.v1.FabricService/"


def refusal(call: Callable[[], object]) -> tuple[Any, Any]:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return refused.value.code(), refused.value.details()


def talk(stub: Any, hello: fabric_pb2.SessionRequest) -> object:
    """Open a session, and listen to its end."""
    return list(stub.Session(iter([hello])))


def pretended(victim: str) -> session_pb2.Event:
    """Return a push that a worker has never asked for."""
    update = types_pb2.RequestId(worker=victim, incarnation=1, counter=10**6)
    return session_pb2.Event(
        push_requested=session_pb2.PushRequested(
            update=update,
            model="model",
            size_bytes=48,
            computed_from=types_pb2.ModelVersion(epoch=1),
            norm=1.0,
            kind=session_pb2.UPDATE_KIND_GRADIENT,
        )
    )


def test_nobody_speaks_in_a_members_name_and_nobody_has_a_server_allocate_what_no_machine_has(
    start, free_port, tmp_path
):
    address = f"127.0.0.1:{free_port}"
    job = start(
        *("run", "-n", "1", "--scheduler", address, "SCRIPT"),
        script="""
        import os, time, torch, mlfabric

        model = {"w": torch.zeros(12, requires_grad=True)}
        with mlfabric.register_as_worker(model) as worker:
            for step in range(3):
                worker.get()
                model["w"].grad = torch.ones(12)
                worker.push().result()
                print("step", step, flush=True)
                while not os.path.exists("attacked"):
                    time.sleep(0.01)
            worker.get()
            print("version", worker.version.number, flush=True)
        """,
    )
    job.read_until("step 0")
    with grpc.insecure_channel(address) as channel:
        stub = fabric_pb2_grpc.FabricServiceStub(channel)
        before = stub.GetStatus(fabric_pb2.GetStatusRequest())
        victim = before.workers[0].name
        monitor = next(member.address for member in before.members if member.role == "monitor")

        # The calls with which one could push and get in anybody's name are gone.
        for name in ("Push", "Get", "ReportLinks"):
            call: Any = channel.unary_unary(SERVICE + name)
            assert refusal(partial(call, b""))[0] is grpc.StatusCode.UNIMPLEMENTED

        # A session needs the token that was given at the registration, and so does a report to the monitor.
        for token in (b"", bytes(16), b"guessed"):
            hello = fabric_pb2.SessionRequest(member=victim, session_token=token, events=[pretended(victim)])
            code, detail = refusal(partial(talk, stub, hello))
            assert code is grpc.StatusCode.UNAUTHENTICATED, detail
            forged = monitor_pb2.RecordTransfersRequest(member=victim, host="far", up_bps=1, token=token)
            with grpc.insecure_channel(monitor) as line:
                report = monitor_pb2_grpc.MonitorServiceStub(line).RecordTransfers
                code, detail = refusal(partial(report, forged))
            assert code is grpc.StatusCode.UNAUTHENTICATED, detail

        # A worker of one's own brings a model of 2.9 TiB.
        member = types_pb2.Member(name="greedy", incarnation=1, host="here", protocol_version=2)
        wide = types_pb2.TensorSpec(
            name="w", shape=[800_000_000_000], dtype="float32", kind=types_pb2.TENSOR_KIND_PARAMETER
        )
        rule = types_pb2.UpdateRule(
            lr=0.1,
            schedule=types_pb2.SCHEDULE_CONSTANT,
            factor=0.1,
            kind=types_pb2.RULE_KIND_SGD,
            beta1=0.9,
            beta2=0.999,
            epsilon=1e-8,
        )
        model = types_pb2.ModelSpec(
            name="huge", layout=[wide], rule=rule, method=types_pb2.METHOD_ASYNCHRONOUS, shards=1
        )
        request = fabric_pb2.RegisterAsWorkerRequest(member=member, model=model, holds_initial=True)
        code, detail = refusal(lambda: stub.RegisterAsWorker(request))
        assert code is grpc.StatusCode.INVALID_ARGUMENT, detail
        assert "model 'huge' of 2980.2 GiB needs 8940.7 GiB at its server" in detail
        assert "'server-0' has room for" in detail

        after = stub.GetStatus(fabric_pb2.GetStatusRequest())
    assert [(worker.in_flight, worker.committed, worker.dropped) for worker in after.workers] == [(0, 1, 0)]
    assert [model.name for model in after.models] == ["model"]
    assert {member.name for member in after.members} == {member.name for member in before.members}
    (tmp_path / "attacked").touch()
    code, said = job.finish()
    assert code == 0, said
    assert "version 3" in said
