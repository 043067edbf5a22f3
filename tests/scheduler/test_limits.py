"""How much a scheduler takes in: what is beyond a limit is refused with its figure, and changes nothing."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest

from mlfabric import ConfigError, wire
from mlfabric.model.specs import Layout, Method, Role, TensorSpec
from mlfabric.network import MAX_RATE_BPS, MAX_SIZE_BYTES
from mlfabric.protocol import (
    Drop,
    DropReason,
    GetId,
    GetRequested,
    LinkProbed,
    LinkRate,
    LinksReported,
    MemberEvent,
    MemberJoined,
    MemoryReported,
    ModelVersion,
    ReduceId,
    ReduceOp,
    ReduceRequested,
    Refuse,
    RefuseReason,
    RoundArrived,
    RoundBroken,
    RoundId,
    TransferEnd,
    TransferEnded,
    UpdateId,
    Welcome,
    WorkerHolds,
)
from mlfabric.scheduler.limits import Limits
from mlfabric.scheduler.meter import Meter
from mlfabric.scheduler.runner import SPARE_CALLS
from mlfabric.telemetry import SchedulerMetrics
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc, session_pb2
from tests.fabric.harness import PATIENCE_S, Fabric, RawWorker, small_model, spec_of, wait_until

from .stage import SPEC, Stage, committed, holds, member, push
from .test_service import error_of

REDUCED = replace(SPEC, name="reduced", method=Method.ALL_REDUCE, tau_max=None)
ROUND = RoundId(1, 0)
TOO_FAST = MAX_RATE_BPS + 1


def reduce(counter: int = 0, size_bytes: int = 16) -> ReduceRequested:
    wanted = ReduceId("x", 1, counter)
    return ReduceRequested(
        reduce=wanted, model="reduced", size_bytes=size_bytes, dtype="float32", op=ReduceOp.SUM, together=2
    )


def get(worker: str, counter: int = 0, model: str = "net") -> GetRequested:
    return GetRequested(get=GetId(worker, 1, counter), model=model, min_version=ModelVersion(1, 9))


def stage(**limits: int) -> Stage:
    """Return a scheduler with a server, two workers of its model, and one that reduces."""
    found = Stage(limits=Limits(**limits)).trained("a", "b")
    found.worker("x", spec=REDUCED)
    return found


def told(at: Stage, *events: MemberEvent) -> None:
    """Have events taken in that nothing speaks against."""
    for event in events:
        assert at.state.refusal(event) is None
        at.ask(event)


OUT_OF_RANGE: list[tuple[MemberEvent, str]] = [
    (LinksReported(monitor="m", rates=(LinkRate(host="h-a", up=True, bps=TOO_FAST, age_ns=0),)), "rate of h-a="),
    (RoundArrived(worker="x", model="reduced", round=ROUND, up_bps=TOO_FAST), "up_bps="),
    (RoundArrived(worker="x", model="reduced", round=ROUND, down_bps=TOO_FAST), "down_bps="),
    (LinkProbed(worker="x", model="reduced", round=ROUND, source="y", bps=TOO_FAST), "bps="),
    (committed(UpdateId("a", 1, 0), 1, tau=5), "delay 5 of .*; allowed: 0 to 4"),
    (committed(UpdateId("a", 1, 0), 1, tau=-1), "delay -1 of .*; allowed: 0 to 4"),
    (replace(holds(1), spec=replace(REDUCED, name="new")), "method all-reduce, which has none"),
]
OF_OTHERS: list[MemberEvent] = [
    replace(push("x"), model="net"),
    replace(push("s"), model="net"),
    replace(push("nobody"), model="net"),
    get("a", model="other"),
    replace(reduce(), reduce=ReduceId("a", 1, 0)),
    RoundBroken(worker="a", model="reduced", round=ROUND, detail="broken"),
    TransferEnded(member="a", model="other", transfer=UpdateId("b", 1, 0), end=TransferEnd.VOIDED),
    WorkerHolds(worker="x", pushes=(push("x"),), gets=()),
]
TOO_MUCH: list[tuple[MemberEvent, str]] = [
    (MemoryReported(name="a", kinds=tuple((f"k{n}", 1) for n in range(65))), "65 kinds"),
    (MemoryReported(name="a", kinds=(("x" * 65, 1),)), "the longest of 65 characters"),
    (reduce(size_bytes=1_000_004), "allowed: up to 1000000"),
]


@pytest.mark.parametrize(
    ("said", "cause", "words"),
    [
        *((said, RefuseReason.OUT_OF_RANGE, words) for said, words in OUT_OF_RANGE),
        *((said, RefuseReason.NOT_ITS_OWN, "allowed: its own") for said in OF_OTHERS),
        *((said, RefuseReason.TOO_MANY, words) for said, words in TOO_MUCH),
    ],
)
def test_what_nobody_may_say_is_not_taken_in(said: MemberEvent, cause: RefuseReason, words: str) -> None:
    found, story = stage(model_bytes=1_000_000).state.refusal(said) or (None, "")
    assert found is cause
    assert re.search(words, story)


def test_a_scheduler_that_begins_anew_takes_in_delays_of_when_there_were_more_workers() -> None:
    at = Stage(limits=Limits(members=50)).trained("a", spec=replace(SPEC, tau_max=None))
    assert at.state.models["net"].pushes.tau_max == 2
    (cause, _) = at.state.refusal(committed(UpdateId("a", 1, 0), 1, tau=101)) or (None, "")
    assert cause is RefuseReason.OUT_OF_RANGE
    told(at, committed(UpdateId("a", 1, 0), 1, tau=60))
    assert at.state.models["net"].pushes.tau_max >= 60


def test_a_worker_has_so_many_updates_under_way_and_others_are_not_concerned() -> None:
    at = stage(updates_per_worker=3)
    told(at, *(push("a", counter) for counter in range(3)))
    cause, story = at.state.refusal(push("a", 3)) or (None, "")
    assert cause is RefuseReason.TOO_MANY
    assert story == "a has 4 updates without an outcome; allowed: 3"
    assert at.state.refusal(push("a", 2)) is None, "it is known already"
    assert at.state.refusal(push("b")) is None
    assert at.state.refusal(WorkerHolds(worker="b", pushes=tuple(push("b", n) for n in range(4)), gets=())) is not None


def test_where_all_have_too_many_updates_the_ones_with_most_are_refused_more() -> None:
    at = stage(updates=4, updates_per_worker=4)
    told(at, *(push("a", counter) for counter in range(4)))
    cause, story = at.state.refusal(push("a", 4)) or (None, "")
    assert cause is RefuseReason.TOO_MANY
    told(at, push("b"))
    cause, story = at.state.refusal(push("b", 1)) or (None, "")
    assert story == "b has 2 updates without an outcome; allowed: 1, as there are 6 in all"


def test_outcomes_that_a_worker_never_says_it_knows_do_not_pile_up() -> None:
    at = stage(outcomes_per_worker=2)
    for counter in range(2):
        assert [type(i) for i in at.ask(push("a", counter, norm=float("nan")))] == [Drop]
    cause, story = at.state.refusal(push("a", 2)) or (None, "")
    assert cause is RefuseReason.TOO_MANY
    assert "does not say that it knows the outcomes of 2 updates; allowed: 2" in story


def test_gets_and_reductions_that_wait_are_so_many() -> None:
    at = stage(gets_per_worker=2, reduces_per_worker=2, model_bytes=1_000_000)
    told(at, get("a"), get("a", 1), get("b"), reduce(size_bytes=1_000_000), reduce(1))
    assert (at.state.refusal(get("a", 2)) or (None,))[0] is RefuseReason.TOO_MANY
    assert at.state.refusal(get("a", 1)) is None, "it is known already"
    assert at.state.refusal(get("b", 1)) is None
    assert (at.state.refusal(reduce(2)) or (None,))[0] is RefuseReason.TOO_MANY


def refused(at: Stage, event: MemberJoined) -> Refuse:
    known = set(at.state.context.members), set(at.state.models), at.state.context.network.hosts
    (answer,) = at.state.handle(event, at.now_ns)
    at.state.validate()
    assert isinstance(answer, Refuse)
    assert (set(at.state.context.members), set(at.state.models), at.state.context.network.hosts) == known
    return answer


def worker(name: str, **fields: Any) -> MemberJoined:
    spec = fields.pop("spec", SPEC)
    return MemberJoined(member=member(name, Role.WORKER, **fields), spec=spec)


def test_members_beyond_the_limit_are_refused_and_those_who_are_known_come_back() -> None:
    at = stage(members=4)
    assert refused(at, worker("c")).cause is RefuseReason.TOO_MANY
    assert any(isinstance(i, Welcome) for i in at.tell(worker("b")))
    at.left("b")
    at.worker("c", host="h-a")
    assert at.state.context.is_here("c")


def test_hosts_are_twice_as_many_as_members() -> None:
    at = stage(members=4)
    for number in range(4):
        at.left("b")
        at.worker("b", incarnation=2 + number, host=f"host-{number}")
        at.left("b", 2 + number)
    assert "8 hosts are known and 'elsewhere' is not; allowed: 8" in refused(at, worker("c", host="elsewhere")).reason
    at.worker("c", host="host-0")
    assert at.state.context.is_here("c")


def test_models_are_so_many_and_so_large() -> None:
    at = stage(models=3, model_bytes=1_000_000)
    large = Layout((TensorSpec(name="w", shape=(250_001,), dtype="float32"),))
    assert "of 1000016 bytes" in refused(at, worker("c", spec=replace(SPEC, name="large", layout=large))).reason
    at.worker("c", spec=replace(SPEC, name="third"))
    assert "3 models are known and 1 new" in refused(at, worker("d", spec=replace(SPEC, name="fourth"))).reason
    at.worker("d")
    assert at.state.context.is_here("d")


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (MemberJoined(member=member("a", Role.SERVER)), "joined as worker and comes back as server"),
        (MemberJoined(member=member("a", Role.MONITOR)), "joined as worker and comes back as monitor"),
        (worker("a", spec=replace(SPEC, name="other")), "joined with model 'net' and comes back with 'other'"),
        (
            MemberJoined(member=member("t", Role.SERVER), held=(replace(REDUCED, name="new"),), server_epochs=(1,)),
            "with method all-reduce, which has none",
        ),
    ],
)
def test_a_process_keeps_its_role_and_model_and_a_server_brings_none_that_has_no_server(
    event: MemberJoined, words: str
) -> None:
    assert words in refused(stage(), event).reason


def test_what_members_report_of_what_nobody_knows_leaves_no_trace() -> None:
    at, meter = stage(), Meter(SchedulerMetrics(), "test")
    known, unknown = UpdateId("a", 1, 0), UpdateId("nobody", 1, 0)
    reports: tuple[MemberEvent, ...] = (
        LinksReported(monitor="m", rates=(LinkRate(host="nowhere", up=True, bps=1, age_ns=0),)),
        TransferEnded(member="a", model="net", transfer=GetId("nobody", 1, 0), end=TransferEnd.SERVED),
        TransferEnded(member="a", model="net", transfer=unknown, end=TransferEnd.DISCARDED, cause=DropReason.CHANGED),
        TransferEnded(member="a", model="nothing", transfer=known, end=TransferEnd.DISCARDED, cause=DropReason.CHANGED),
        replace(committed(unknown, 1), model="nothing"),
    )
    for event in reports:
        meter.handle(at.state, event, at.now_ns)
    assert at.state.context.network._seen_ns == {}
    assert at.state.context.steps.of("nobody").has_model_ns is None
    page = generate_latest(meter.metrics.registry).decode()
    assert "nowhere" not in page
    assert "nobody" not in page
    assert "nothing" not in page


@pytest.mark.parametrize("limit", [field.name for field in fields(Limits)])
def test_limits_that_cannot_be_are_refused(limit: str) -> None:
    for value in (0, -1):
        with pytest.raises(ConfigError, match=f"{limit}={value}; allowed: > 0"):
            Limits(**{limit: value})


def test_no_model_may_be_larger_than_can_be_planned() -> None:
    with pytest.raises(ConfigError, match="model_bytes="):
        Limits(model_bytes=MAX_SIZE_BYTES + 1)


# Over gRPC


@contextmanager
def limited(**limits: int) -> Iterator[Fabric]:
    """Run a scheduler with these limits, and a server that says that it holds the model."""
    with Fabric(limits=Limits(**limits)) as running:
        running.register_empty_server(spec_of(small_model()))
        yield running


def test_a_member_too_many_is_told_by_the_status() -> None:
    with limited(members=2) as running:
        running.raw_worker(small_model(), "a")
        with (
            RawWorker(running.scheduler.address, spec_of(small_model()), "b") as raw,
            pytest.raises(grpc.RpcError, match="2 members are here or silent; allowed: 2") as caught,
        ):
            raw.register()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_what_is_not_taken_in_ends_the_session_of_who_said_it_with_a_status_that_fits() -> None:
    with limited() as running:
        steady = running.raw_worker(small_model(), "steady")
        cases = (
            (session_pb2.MemoryReported(kinds={"x" * 100: 1}), grpc.StatusCode.RESOURCE_EXHAUSTED),
            (session_pb2.MemoryReported(kinds={"x" * 70_000: 1}), grpc.StatusCode.RESOURCE_EXHAUSTED),
        )
        for number, (said, status) in enumerate(cases):
            raw = running.raw_worker(small_model(), f"w{number}")
            raw.say(session_pb2.Event(memory_reported=said))
            assert error_of(raw).code() is status
        raw = running.raw_worker(small_model(), "thief")
        raw.tell(raw.request(model="other"))
        assert error_of(raw).code() is grpc.StatusCode.PERMISSION_DENIED
        raw = running.raw_worker(small_model(), "fast")
        raw.tell(LinkProbed(worker="fast", model="model", round=ROUND, source="steady", bps=2**64 - 1))
        error = error_of(raw)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "bps=18446744073709551615 bit/s" in error.details()
        steady.tell(steady.request(norm=float("nan")))
        assert steady.told("drop") is not None


def test_a_session_on_which_nothing_is_said_does_not_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlfabric.scheduler.service._SESSION_WITHIN_S", 0.05)
    over = threading.Event()
    with limited() as running:
        session = running.stub().Session(iter(over.wait, True))
        with pytest.raises(grpc.RpcError, match="nothing was said") as caught:
            list(session)
        over.set()
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def pushes_for_ever(raw: RawWorker) -> Iterator[fabric_pb2.SessionRequest]:
    """Ask to push what is dropped at once."""
    for number in range(20_000):
        push = wire.to_event(raw.request(norm=float("nan"), resolved_below=number))
        yield fabric_pb2.SessionRequest(events=[push])


def test_who_does_not_read_what_it_is_told_loses_its_place_and_others_go_on() -> None:
    over = threading.Event()
    with limited(outbox=50) as running:
        steady = running.raw_worker(small_model(), "steady")
        deaf = running.enter(RawWorker(running.scheduler.address, spec_of(small_model()), "deaf"))
        token = deaf.register().session_token
        small = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
        channel = running.enter(grpc.insecure_channel(running.scheduler.address, options=small))
        hello = fabric_pb2.SessionRequest(member="deaf", incarnation=1, session_token=token)
        requests = itertools.chain([hello], pushes_for_ever(deaf), iter(over.wait, True))
        unread = fabric_pb2_grpc.FabricServiceStub(channel).Session(requests)
        assert unread.is_active()
        wait_until(
            lambda: {m.name: m.state for m in running.status().members}["deaf"] == "silent", "it has lost its place"
        )
        steady.tell(steady.request(norm=float("nan")))
        assert steady.told("drop") is not None
        over.set()


def test_calls_beyond_the_limit_are_refused_until_others_have_ended() -> None:
    over = threading.Event()
    with limited(members=1) as running:
        stub = running.stub()
        # More than there may be: one that finds all places taken by a call that has just been answered is refused.
        sessions = [stub.Session(iter(over.wait, True)) for _ in range(2 * (2 * 1 + SPARE_CALLS))]

        def status() -> grpc.StatusCode:
            with contextlib.suppress(grpc.RpcError):
                stub.GetStatus(fabric_pb2.GetStatusRequest())
                return grpc.StatusCode.OK
            return grpc.StatusCode.RESOURCE_EXHAUSTED

        wait_until(lambda: status() is grpc.StatusCode.RESOURCE_EXHAUSTED, "all calls are there")
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetStatus(fabric_pb2.GetStatusRequest())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for session in sessions:
            session.cancel()
        wait_until(lambda: status() is grpc.StatusCode.OK, "they have ended")
        over.set()


def test_connections_beyond_the_limit_are_cut_off_and_others_served() -> None:
    with limited(members=1) as running, ExitStack() as lines:
        stub = running.stub()
        stub.GetStatus(fabric_pb2.GetStatusRequest())
        many = [
            lines.enter_context(socket.create_connection(("127.0.0.1", running.scheduler.port), timeout=10))
            for _ in range(2 * 1 + SPARE_CALLS)
        ]
        assert any(is_cut_off(line) for line in reversed(many))
        assert stub.GetStatus(fabric_pb2.GetStatusRequest()).term


def is_cut_off(line: socket.socket) -> bool:
    """Tell whether a connection ends without the greeting that HTTP/2 begins with."""
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_worker_that_finds_no_room_waits_for_some_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlfabric.shell.session.STARTING_S", 0.0)
    with limited(members=2) as running, ThreadPoolExecutor(1) as pool:
        first = running.enter(RawWorker(running.scheduler.address, spec_of(small_model(), "another"), "first"))
        first.join()
        second = pool.submit(running.worker, small_model(), "second", resume=True)
        wait_until(lambda: "second waits for 2 members are here" in caplog.text, "it says what it waits for")
        first.say(session_pb2.Event(member_left=session_pb2.MemberLeft(detail="done")))
        assert second.result(PATIENCE_S).name == "second"
