"""The scheduler over real gRPC: who is let in, what is refused with which status, what it says of itself."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import mlfabric
from mlfabric import RefusedError, UsageError, wire
from mlfabric.model.specs import Member, Role
from mlfabric.scheduler.runner import SchedulerOptions
from mlfabric.v1 import fabric_pb2, session_pb2, types_pb2
from tests.fabric.harness import Fabric, RawWorker, SchedulerThread, fabric, small_model, spec_of, wait_until


@pytest.fixture(scope="module")
def running():
    with fabric() as running:
        wait_until(lambda: running.status().members, "the server is there")
        yield running


def _untyped(module: Any) -> Any:
    """Types of these packages are incomplete."""
    return module


def refused(call: Any, *arguments: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments)
    return caught.value


def error_of(raw: RawWorker) -> Any:
    """Wait for the end of a session, and return what it ended with."""
    assert raw.told("nothing") is None
    assert raw.error is not None
    return raw.error


def test_a_session_without_registration_is_unauthenticated(running: Fabric) -> None:
    with RawWorker(running.scheduler.address, spec_of(small_model())) as raw:
        raw.open_session(b"not a token")
        assert error_of(raw).code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_session_under_a_wrong_token_leaves_the_right_one_alone(running: Fabric) -> None:
    good = running.raw_worker(small_model(), "steady")
    with RawWorker(running.scheduler.address, good.spec, "steady") as other:
        other.open_session(b"x" * 16)
        assert other.told("send") is None
    good.tell(good.request(norm=float("inf")))
    assert good.told("drop") is not None


def test_a_session_that_says_nothing_is_ended(running: Fabric) -> None:
    error = refused(lambda: list(running.stub().Session(iter(()))))
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_second_process_of_one_name_is_refused_and_told_why(running: Fabric) -> None:
    running.raw_worker(small_model(), "twin")
    with RawWorker(running.scheduler.address, spec_of(small_model()), "twin", incarnation=2) as second:
        error = refused(second.register)
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    assert "'twin' is taken" in error.details()
    assert "choose another name" in error.details()


def test_a_second_server_of_one_name_is_refused(running: Fabric) -> None:
    with pytest.raises(RefusedError, match="'server-0' is taken"):
        mlfabric.register_as_server(mlfabric.ServerOptions(scheduler=running.scheduler.address, name="server-0"))


def test_who_gives_itself_out_for_a_process_that_is_here_is_refused_without_its_key(running: Fabric) -> None:
    steady = running.enter(RawWorker(running.scheduler.address, spec_of(small_model()), "keyed"))
    steady.member = replace(steady.member, pulse_key=b"k" * 32)
    steady.join()
    with RawWorker(running.scheduler.address, steady.spec, "keyed") as thief:
        for key in (b"", b"g" * 32):
            thief.member = replace(thief.member, pulse_key=key)
            error = refused(thief.register)
            assert error.code() is grpc.StatusCode.ALREADY_EXISTS
            assert "'keyed' is taken by another process" in error.details()
    steady.tell(steady.request(norm=float("inf")))
    assert steady.told("drop") is not None


def test_a_member_of_another_protocol_version_is_told_to_install_the_same_release(running: Fabric) -> None:
    with RawWorker(running.scheduler.address, spec_of(small_model()), "old") as raw:
        raw.member = replace(raw.member, protocol_version=99)
        error = refused(raw.register)
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "99" in error.details()


@pytest.mark.parametrize("change", [{"tau_max": -1}, {"name": ""}])
def test_a_model_out_of_range_is_an_invalid_argument(running: Fabric, change: dict[str, object]) -> None:
    with RawWorker(running.scheduler.address, spec_of(small_model())) as raw:
        spec = wire.to_spec(raw.spec)
        for key, value in change.items():
            setattr(spec, key, value)
        request = fabric_pb2.RegisterAsWorkerRequest(member=wire.to_member(raw.member), model=spec)
        error = refused(raw.stub.RegisterAsWorker, request)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details()


@pytest.mark.parametrize("role", ["Worker", "Server", "Monitor", "Replica", "Aggregator"])
def test_an_empty_registration_is_an_invalid_argument(running: Fabric, role: str) -> None:
    empty = getattr(fabric_pb2, f"RegisterAs{role}Request")()
    error = refused(getattr(running.stub(), f"RegisterAs{role}"), empty)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_an_event_in_another_worker_s_name_ends_the_session(running: Fabric) -> None:
    raw = running.raw_worker(small_model(), "impostor")
    other = raw.request()
    raw.tell(replace(other, update=other.update._replace(worker="steady")))
    assert error_of(raw).code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_replica_waits_for_its_server_and_follows_nobody_else(running: Fabric) -> None:
    running.raw_worker(small_model(), "no-server")
    member = wire.to_member(Member(name="r", role=Role.REPLICA, incarnation=1, host="h"))
    for server, code in (
        ("nobody", grpc.StatusCode.FAILED_PRECONDITION),
        ("no-server", grpc.StatusCode.INVALID_ARGUMENT),
    ):
        request = fabric_pb2.RegisterAsReplicaRequest(member=member, server=server, norm=1.0)
        error = refused(running.stub().RegisterAsReplica, request)
        assert error.code() is code
        assert server in error.details()


def test_health_is_serving(running: Fabric) -> None:
    with grpc.insecure_channel(running.scheduler.address) as channel:
        answer = _untyped(health_pb2_grpc).HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_names_the_service(running: Fabric) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(running.scheduler.address) as channel:
        stub = _untyped(reflection_pb2_grpc).ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([request]))
    names = {service.name for service in answer.list_services_response.service}
    assert {"mlfabric.v1.FabricService", "grpc.health.v1.Health"} <= names


def test_garbage_on_the_port_changes_nothing(running: Fabric) -> None:
    members = len(running.status().members)
    with socket.create_connection(("127.0.0.1", running.scheduler.port)) as line:
        line.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(range(256)) * 64)
        line.settimeout(10)
        while line.recv(4096):
            pass
    assert len(running.status().members) == members


def test_an_oversized_message_is_refused(running: Fabric) -> None:
    request = fabric_pb2.RegisterAsMonitorRequest(member=types_pb2.Member(name="x" * (17 << 20)))
    assert refused(running.stub().RegisterAsMonitor, request).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_port_in_use_is_said_plainly(running: Fabric) -> None:
    with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{running.scheduler.port}"):
        SchedulerThread(port=running.scheduler.port)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("port", -1),
        ("batch_window_s", -0.1),
        ("answer_s", 0),
        ("silence_s", 0),
        ("round_patience_s", -1),
        ("default_bps", 0),
    ],
)
def test_settings_out_of_range_are_refused_with_what_is_allowed(setting: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"{setting}={value}.*allowed"):
        SchedulerOptions(**{setting: value})


@pytest.mark.parametrize("said", ["server_holds", "commits_reported", "initial_received"])
def test_a_worker_cannot_speak_as_a_server(running: Fabric, said: str) -> None:
    raw = running.raw_worker(small_model(), f"pretender-{said}")
    event = session_pb2.Event()
    getattr(event, said).SetInParent()
    raw.say(event)
    error = error_of(raw)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"a worker said {said}; allowed" in error.details()


class RawAggregator(RawWorker):
    """An aggregator whose every message is made by the test."""

    def register(self) -> fabric_pb2.Admission:
        """Register; raises grpc.RpcError if refused."""
        request = fabric_pb2.RegisterAsAggregatorRequest(member=wire.to_member(self.member), most_updates=3)
        return self.stub.RegisterAsAggregator(request).admission


def test_an_aggregator_is_told_of_the_models_and_shown_with_what_it_does(running: Fabric) -> None:
    running.raw_worker(small_model(), "summed")
    with RawAggregator(running.scheduler.address, spec_of(small_model()), "adder") as raw:
        raw.join()
        assert raw.told("host_model").spec.name == "model"
        (shown,) = [m for m in running.status().members if m.name == "adder"]
        assert (shown.role, shown.state, shown.activity) == ("aggregator", "here", "waits for updates to sum")
        assert running.scheduler.state.context.members["adder"].most_updates == 3


def test_an_aggregator_cannot_speak_as_a_server_and_hears_so_also_while_it_is_told_of_models(running: Fabric) -> None:
    running.raw_worker(small_model(), "told-of")
    event = session_pb2.Event()
    event.commits_reported.SetInParent()
    for n in range(30):  # the refusal meets the first instructions in some of them
        with RawAggregator(running.scheduler.address, spec_of(small_model()), f"liar-{n}") as raw:
            raw.join()
            raw.say(event)
            error = error_of(raw)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert f"liar-{n}: an aggregator said commits_reported; allowed" in error.details()


def test_a_member_that_registers_and_never_opens_its_session_is_given_up(
    running: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlfabric.scheduler.service._SESSION_WITHIN_S", 0.05)
    with RawWorker(running.scheduler.address, spec_of(small_model()), "shy") as raw:
        raw.register()

        def state() -> str:
            return next(m.state for m in running.status().members if m.name == "shy")

        wait_until(lambda: state() != "here", "it counts as silent")
    with RawWorker(running.scheduler.address, spec_of(small_model()), "shy", incarnation=2) as second:
        assert second.register().session_token


def test_a_broken_invariant_ends_the_scheduler_with_its_story(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = SchedulerThread()

    def broken(event: object, now_ns: int) -> None:
        raise AssertionError("two and two are five")

    monkeypatch.setattr(scheduler.state, "handle", broken)
    with RawWorker(scheduler.address, spec_of(small_model())) as raw:
        refused(raw.register)
    with pytest.raises(AssertionError, match="two and two are five"):
        scheduler.wait()
