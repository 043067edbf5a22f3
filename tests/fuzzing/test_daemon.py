"""A worker daemon beside training processes, with calls, bytes and shared memory that any process could come with."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

import mlfabric
from mlfabric import wire
from mlfabric.config import WorkerSettings
from mlfabric.control import Decoding
from mlfabric.protocol import ReduceOp
from mlfabric.specs import Mode, ModelSpec
from mlfabric.telemetry import WorkerMetrics
from mlfabric.v1 import daemon_pb2, daemon_pb2_grpc
from mlfabric.worker_daemon import beside
from mlfabric.worker_daemon.beside import DaemonService
from mlfabric.worker_daemon.shared import Segment
from tests.fabric.harness import PATIENCE_S, Fabric, fabric, gradients, small_model, spec_of, wait_until

from .frames import no_faults
from .messages import Words, noise, random_message

MODELS = ("model", "net", "reduced", "cut")
WORDS = Words(names=("raw-0", "raw-1", "raw-2"), models=MODELS, samples={}, size_bytes=64, epoch=1)
FITTING = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,
    }
)


class DaemonThread:
    """A daemon in a thread of its own."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> DaemonThread:
        self._thread.start()
        assert self._started.wait(PATIENCE_S)
        return self

    def __exit__(self, *raised: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the daemon does not stop"
        self._loop.close()

    async def _serve(self) -> None:
        server = grpc.aio.server(interceptors=[Decoding()])
        self.service = DaemonService(self._settings, WorkerMetrics())
        daemon_pb2_grpc.add_DaemonServiceServicer_to_server(self.service, server)
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        self._started.set()
        await self._stop.wait()
        await self.service.drain()
        await server.stop(None)

    @property
    def attached(self) -> int:
        """How many training processes it serves."""
        return len(self.service._attached)

    @property
    def tasks(self) -> int:
        """How many tasks it has."""
        return len(asyncio.all_tasks(self._loop))


class Stand:
    """A fabric, a daemon, and an honest training process beside it."""

    def __init__(self, running: Fabric, daemon: DaemonThread) -> None:
        self.daemon = daemon
        running.server(name="server-1")
        spec = spec_of(small_model())
        reduced = replace(spec, name="reduced", mode=Mode.ALL_REDUCE, tau_max=None)
        self.specs = (spec, replace(spec, name="net"), reduced, replace(spec, name="cut", shards=2))
        self._model = small_model()
        self._honest = mlfabric.register_as_worker(
            self._model, settings=replace(running.settings("honest"), daemon=daemon.address)
        )
        self._honest.get()
        self._stub = daemon_pb2_grpc.DaemonServiceStub(running.enter(grpc.insecure_channel(daemon.address)))
        self._attach = running.enter(grpc.insecure_channel(daemon.address)).stream_stream(
            "/mlfabric.v1.DaemonService/Attach", None, daemon_pb2.AttachResponse.FromString
        )
        self._tasks = daemon.tasks

    def end(self) -> None:
        """Let the honest process leave."""
        self._honest.leave()

    def check(self) -> None:
        """Fail if the honest process is not served any more, or anything of the others is left."""
        wait_until(lambda: self.daemon.attached == 1, "only the honest one is attached")
        wait_until(lambda: self.daemon.tasks <= self._tasks + 2, "nothing is done for the others")
        self._honest.get()
        gradients(self._model)
        assert isinstance(self._honest.push().result(PATIENCE_S), mlfabric.Committed)

    def talk(self, requests: list[bytes], wait: bool) -> tuple[grpc.StatusCode, str]:
        """Say all this on one stream; return how it ended.

        Args:
            requests: one message each.
            wait: for the end of the stream; else it is cut off once the first answer has come.
        """
        call = self._attach(iter(requests), timeout=PATIENCE_S)
        try:
            for _ in call:
                if not wait:
                    call.cancel()
        except grpc.RpcError:
            pass
        return call.code(), call.details()


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with no_faults() as faults, pytest.MonkeyPatch.context() as patch, fabric() as running:
        patch.setattr(beside, "DEATH_DRAIN_S", 0.2)
        with DaemonThread(running.settings("beside")) as daemon:
            found = Stand(running, daemon)
            yield found
            found.end()
        assert not faults


class Attacker:
    """A training process that has shared memory of its own, as long as its daemon leaves it that."""

    def __init__(self, at: Stand, draw: random.Random) -> None:
        self._draw = draw
        self._specs = at.specs
        size_bytes, family = at.specs[0].layout.size_bytes, Segment.new_family()
        self.segments = [Segment.create(size, family) for size in (size_bytes, size_bytes, size_bytes, 16, 0)]
        self._words = replace(
            WORDS,
            samples={
                "Segment": [announced(segment) for segment in self.segments],
                "ModelSpec": [wire.to_spec(spec) for spec in at.specs],
            },
        )

    def says(self) -> list[bytes]:
        """Return what it says on one stream."""
        first = self.opens() if self._draw.random() < 0.9 else self._calls()
        return [first, *(self._calls() for _ in range(self._draw.randrange(8)))]

    def end(self) -> None:
        """Remove the shared memory."""
        self.segments[0].remove_family()

    def opens(self, spec: ModelSpec | None = None) -> bytes:
        """Return what opens a worker, of a model that is drawn if none is given."""
        image, initial = self.segments[:2]
        opened = daemon_pb2.OpenWorker(
            name=self._draw.choice((*WORDS.names, *WORDS.names, "server-0")) if spec is None else "raw-0",
            model=wire.to_spec(spec or self._draw.choice(self._specs)),
            image=announced(image),
            initial=announced(initial),
        )
        return daemon_pb2.AttachRequest(open=opened).SerializeToString()

    def _calls(self) -> bytes:
        """Return a call: mostly about memory that there is, of a size that fits."""
        request: Any = random_message(daemon_pb2.AttachRequest, self._draw, self._words)
        if self._draw.random() < 0.9:
            kind = self._draw.choice(("push", "push", "get", "reduce", "draw", "samples_dropped"))
            inner = GetMessageClass(request.DESCRIPTOR.fields_by_name[kind].message_type)
            getattr(request, kind).CopyFrom(random_message(inner, self._draw, self._words))
        if request.HasField("push") and self._draw.random() < 0.8:
            request.push.update.CopyFrom(announced(self.segments[2]))
            del request.push.samples[1:]
            request.push.samples.extend([1] * len(request.push.samples))
        if request.HasField("leave") and self._draw.random() < 0.9:
            request.leave.drain_s = self._draw.choice((0.0, 0.1))
        raw = request.SerializeToString()
        return noise(raw, self._draw) if self._draw.random() < 0.1 else raw


def announced(segment: Segment) -> daemon_pb2.Segment:
    return daemon_pb2.Segment(path=str(segment.path), size_bytes=segment.size_bytes)


def attack(at: Stand, draw: random.Random) -> None:
    """Come as one training process."""
    attacker = Attacker(at, draw)
    try:
        code, details = at.talk(attacker.says(), wait=draw.random() < 0.5)
    finally:
        attacker.end()
    assert code in FITTING, f"{code} does not fit: {details}"


@settings(max_examples=40)
@given(seeds=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4))
def test_whatever_a_process_says_to_its_daemon_other_processes_train_on(stand: Stand, seeds: list[int]) -> None:
    for seed in seeds:
        attack(stand, random.Random(seed))
    stand.check()


# By hand


@pytest.fixture
def attacker(stand: Stand) -> Iterator[Attacker]:
    found = Attacker(stand, random.Random(0))
    yield found
    found.end()
    stand.check()


def leaves(drain_s: float) -> bytes:
    return daemon_pb2.AttachRequest(leave=daemon_pb2.LeaveFabric(drain_s=drain_s)).SerializeToString()


def reduces(attacker: Attacker, call: int) -> bytes:
    """Return a call to take part in an AllReduce for which nobody else will come."""
    given, result = (announced(segment) for segment in attacker.segments[:2])
    reduce = daemon_pb2.ReduceTensor(
        call=call,
        given=given,
        result=result,
        dtype="float32",
        op=wire.to_reduce_op(ReduceOp.SUM),
        together=2,
        size_bytes=given.size_bytes,
    )
    return daemon_pb2.AttachRequest(reduce=reduce).SerializeToString()


@pytest.mark.parametrize("drain_s", [float("nan"), float("inf"), -1.0, 1e308])
def test_a_process_cannot_leave_within_what_is_no_time(stand: Stand, attacker: Attacker, drain_s: float) -> None:
    code, details = stand.talk([attacker.opens(stand.specs[0]), leaves(drain_s)], wait=True)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"LeaveFabric.drain_s={drain_s}; allowed: 0 to 86400" in details


def test_who_dies_while_its_calls_are_waited_for_is_gone_at_once(stand: Stand, attacker: Attacker) -> None:
    opens = attacker.opens(stand.specs[2])
    assert stand.talk([opens, reduces(attacker, 0), leaves(3600.0)], wait=False)[0] is grpc.StatusCode.CANCELLED


def test_shared_memory_has_one_size(stand: Stand, attacker: Attacker) -> None:
    path = str(attacker.segments[2].path)
    sizes = (0, attacker.segments[2].size_bytes)
    pushes = [daemon_pb2.PushUpdate(update=daemon_pb2.Segment(path=path, size_bytes=size)) for size in sizes]
    reduce = daemon_pb2.ReduceTensor(
        given=pushes[0].update,
        result=pushes[0].update,
        dtype="float32",
        op=wire.to_reduce_op(ReduceOp.SUM),
        together=2,
        size_bytes=0,
    )
    said = [daemon_pb2.AttachRequest(reduce=reduce), daemon_pb2.AttachRequest(push=pushes[1])]
    code, details = stand.talk([attacker.opens(stand.specs[2]), *(one.SerializeToString() for one in said)], wait=True)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "was announced with 0 bytes before, and now with 240; allowed: one size" in details


def test_calls_without_answer_have_a_limit(stand: Stand, attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "MOST_CALLS", 3)
    said = [attacker.opens(stand.specs[2]), *(reduces(attacker, call) for call in range(4))]
    code, details = stand.talk(said, wait=True)
    assert (code, details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "4 calls are open; allowed: 3")


def test_pieces_of_shared_memory_have_a_limit(
    stand: Stand, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "MOST_SEGMENTS", 2)
    push = daemon_pb2.PushUpdate(update=announced(attacker.segments[2]))
    said = [attacker.opens(stand.specs[0]), daemon_pb2.AttachRequest(push=push).SerializeToString()]
    code, details = stand.talk(said, wait=True)
    assert (code, details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "a segment came on top of 2; allowed: as many")
