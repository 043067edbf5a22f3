"""A real scheduler behind real gRPC in one event loop, an honest member, and a hostile client that says anything."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from mlfabric import wire
from mlfabric.model.specs import Layout, Member, Method, ModelSpec, Role, RuleKind, RuleSpec, TensorSpec, Term
from mlfabric.protocol import ModelVersion, PushRequested, UpdateId
from mlfabric.scheduler.context import SchedulerConfig
from mlfabric.scheduler.meter import Meter
from mlfabric.scheduler.service import FabricService
from mlfabric.scheduler.state import SchedulerState
from mlfabric.shell.control import Decoding
from mlfabric.telemetry import SchedulerMetrics
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc, session_pb2

from .messages import Words, newest_term, noise, random_message

__all__ = ["FITTING", "WORDS", "Honest", "Hostile", "Stand", "stand"]

PATIENCE_S = 20.0
WRITTEN_TOO_LATE = "Internal error from Core"
"""What gRPC's client says in place of the status if it was writing when the call ended."""
SPEC = ModelSpec(name="honest", layout=Layout((TensorSpec(name="w", shape=(4,), dtype="float32"),)))
CUT = replace(SPEC, layout=Layout((TensorSpec(name="w", shape=(8,), dtype="float32"),)))
SERVICE = fabric_pb2.DESCRIPTOR.services_by_name["FabricService"]
SPECS = (
    replace(SPEC, name="net"),
    replace(SPEC, name="fast", rule=RuleSpec(momentum=0.9)),
    replace(SPEC, name="together", method=Method.SYNCHRONOUS),
    replace(SPEC, name="slack", method=Method.STALE_SYNCHRONOUS, slack=1),
    replace(SPEC, name="reduced", method=Method.ALL_REDUCE),
    replace(SPEC, name="adam", rule=RuleSpec(kind=RuleKind.ADAM)),
    replace(CUT, name="cut", shards=2),
)
CAST = {
    "server-a": "RegisterAsServer",
    "server-b": "RegisterAsServer",
    "server-c": "RegisterAsServer",
    "adder": "RegisterAsAggregator",
    "monitor": "RegisterAsMonitor",
    **{f"{spec.name}-{who}": "RegisterAsWorker" for spec in SPECS for who in "ab"},
    "replica": "RegisterAsReplica",
}
"""Who plays what for the hostile client, in the order in which they can join."""
EPOCH = 5
WORDS = Words(
    names=(*CAST, "passer-by"),
    models=(*(spec.name for spec in SPECS), "cut.shard0", "cut.shard1", "honest"),
    samples={"ModelSpec": [wire.to_spec(spec) for spec in SPECS]},
    size_bytes=SPEC.layout.size_bytes,
    epoch=EPOCH,
)
WORKER = (
    "push_requested",
    "get_requested",
    "reduce_requested",
    "round_arrived",
    "round_broken",
    "round_slow",
    "link_probed",
)
SERVER = ("server_holds", "commits_reported", "initial_received")
SAYS = {
    "RegisterAsWorker": (*WORKER, "worker_holds", "not_kept", "transfer_ended", "samples_dropped", "samples_wanted"),
    "RegisterAsServer": (
        "server_holds",
        "commits_reported",
        "initial_received",
        "transfer_ended",
        "held_back",
        "prepared",
        "samples_reported",
    ),
    "RegisterAsReplica": ("replica_reported", "not_kept", "transfer_ended"),
    "RegisterAsAggregator": ("transfer_ended",),
    "RegisterAsMonitor": ("memory_reported",),
}
"""What who registered so may say on its session."""
FITTING = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class Stand:
    """The scheduler and one channel to it."""

    def __init__(self, state: SchedulerState, service: FabricService, channel: grpc.aio.Channel) -> None:
        self.state, self.service, self.channel = state, service, channel
        self.stub = fabric_pb2_grpc.FabricServiceStub(channel)

    def check(self) -> None:
        """Fail if the scheduler has met something that it cannot go on with."""
        if self.service.failed.done():
            self.service.failed.result()
        self.state.validate()


@asynccontextmanager
async def stand(**config: Any) -> AsyncIterator[Stand]:
    """Run a scheduler."""
    state = SchedulerState(SchedulerConfig(term=Term(EPOCH, 0), ticket_secret=bytes(16), **config))
    service = FabricService(state, Meter(SchedulerMetrics(), "test"), _never)
    server = grpc.aio.server(interceptors=[Decoding()])
    fabric_pb2_grpc.add_FabricServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        try:
            yield Stand(state, service, channel)
        finally:
            await server.stop(None)


def _never(seen: int) -> SchedulerState:
    raise AssertionError(f"nobody shows an epoch above this scheduler's, but {seen}")


class Honest:
    """A server and a worker that keep to the rules, whatever others do."""

    def __init__(self, at: Stand) -> None:
        self._stub = at.stub
        self._worker: Any = None
        self._server: Any = None
        self._count = 0

    async def join(self) -> None:
        """Register both and open their sessions; the server says that it holds the model's weights."""
        server = _member("honest-server", Role.SERVER, "127.0.0.1:9")
        request = fabric_pb2.RegisterAsServerRequest(member=server, models=[wire.to_spec(SPEC)], server_epochs=[1])
        admission = (await self._stub.RegisterAsServer(request, timeout=PATIENCE_S)).admission
        self._server = await self._open("honest-server", admission)
        holds = session_pb2.ServerHolds(server="honest-server", spec=wire.to_spec(SPEC), initialised=True)
        holds.version.epoch = 1
        await self._server.write(fabric_pb2.SessionRequest(events=[session_pb2.Event(server_holds=holds)]))
        worker = fabric_pb2.RegisterAsWorkerRequest(
            member=_member("honest-worker", Role.WORKER), model=wire.to_spec(SPEC)
        )
        admission = (await self._stub.RegisterAsWorker(worker, timeout=PATIENCE_S)).admission
        self._worker = await self._open("honest-worker", admission)

    async def _open(self, name: str, admission: fabric_pb2.Admission) -> Any:
        call = self._stub.Session()
        await call.write(fabric_pb2.SessionRequest(member=name, incarnation=1, session_token=admission.session_token))
        return call

    async def is_served(self) -> None:
        """Ask to push an update, and wait until the scheduler says what is to become of it."""
        update = UpdateId("honest-worker", 1, self._count)
        self._count += 1
        push = PushRequested(
            update=update,
            model=SPEC.name,
            size_bytes=SPEC.layout.size_bytes,
            computed_from=ModelVersion(1, 0),
            norm=1.0,
        )
        await self._worker.write(fabric_pb2.SessionRequest(events=[wire.to_event(push)]))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                response = await self._worker.read()
                assert response is not grpc.aio.EOF, f"the honest worker lost its session: {self._worker}"
                if any(_is_about(instruction, self._count - 1) for instruction in response.instructions):
                    return


class Hostile:
    """A client that plays many members, and says anything as each of them and as nobody.

    Args:
        at: the scheduler.
        draw: where everything is drawn from.
        words: what it has heard of.
    """

    def __init__(self, at: Stand, draw: random.Random, words: Words = WORDS) -> None:
        self._words = words
        self._at = at
        self._draw = draw
        self._tokens = dict.fromkeys(CAST, b"")
        self._sessions: dict[str, Any] = {}
        self._readers: set[asyncio.Task[None]] = set()

    async def join(self) -> None:
        """Have all the cast join as they should."""
        for name in CAST:
            await self._enter(name)

    async def act(self) -> None:
        """Do one thing."""
        if self._draw.random() < 0.25:
            method = self._draw.choice([method for method in SERVICE.methods if method.name != "Session"])
            await self._call(method.name, random_message(GetMessageClass(method.input_type), self._draw, self._words))
        else:
            await self._talk()

    async def leave(self) -> None:
        """End every session, and wait until the scheduler has ended them, too."""
        for session in self._sessions.values():
            session.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._readers)

    async def _call(self, name: str, request: Any) -> None:
        try:
            if self._draw.random() < 0.1:
                damaged = noise(request.SerializeToString(), self._draw)
                if not _names_newer_scheduler(type(request), damaged, self._words.epoch):
                    streamed = SERVICE.methods_by_name[name].server_streaming
                    kind: Any = self._at.channel.unary_stream if streamed else self._at.channel.unary_unary
                    await _first(kind(f"/{SERVICE.full_name}/{name}")(damaged, timeout=PATIENCE_S))
                return
            answer = await _first(getattr(self._at.stub, name)(request, timeout=PATIENCE_S))
        except grpc.aio.AioRpcError as error:
            _check(error.code(), f"{name}({request}): {error.details()}")
            return
        if name in SAYS and request.member.name in CAST:
            self._tokens[request.member.name] = answer.admission.session_token

    async def _enter(self, name: str) -> None:
        """Register one of the cast as it should, and open its session."""
        request: Any = GetMessageClass(SERVICE.methods_by_name[CAST[name]].input_type)()
        request.member.CopyFrom(_member(name, Role.WORKER, f"{name}:1"))
        match CAST[name]:
            case "RegisterAsWorker":
                request.model.CopyFrom(next(wire.to_spec(s) for s in SPECS if name.startswith(f"{s.name}-")))
                request.holds_initial = True
            case "RegisterAsReplica":
                request.server, request.norm = "server-a", 1.0
        await self._call(CAST[name], request)
        await self._open(name)

    async def _open(self, name: str) -> None:
        path = f"/{SERVICE.full_name}/Session"
        method: Any = self._at.channel.stream_stream(path, request_serializer=_as_bytes)
        session = self._sessions[name] = method()
        self._readers.add(asyncio.create_task(_read(session, name)))
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            token = self._tokens[name] if self._draw.random() < 0.95 else b"wrong"
            await session.write(fabric_pb2.SessionRequest(member=name, incarnation=1, session_token=token))

    async def _talk(self) -> None:
        """Say something on one of the sessions, begin it anew if it has ended, or end it."""
        name = self._draw.choice([*CAST])
        if self._sessions[name].done():
            await (self._enter(name) if self._draw.random() < 0.8 else self._open(name))
        session = self._sessions[name]
        events = [self._event(name) for _ in range(self._draw.choice((0, 1, 1, 3)))]
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            request = fabric_pb2.SessionRequest(events=events)
            damaged = self._draw.random() < 0.03
            await session.write(noise(request.SerializeToString(), self._draw) if damaged else request)
            if self._draw.random() < 0.03:
                await session.done_writing()
            elif self._draw.random() < 0.03:
                session.cancel()

    def _event(self, name: str) -> session_pb2.Event:
        own = [model for model in self._words.models if model.partition(".")[0] == name.rpartition("-")[0]]
        words = replace(self._words, me=name, models=(*(own * 20), "honest") if own else self._words.models)
        event: session_pb2.Event = random_message(session_pb2.Event, self._draw, words)
        if self._draw.random() < 0.95:
            said = self._draw.choice(SAYS[CAST[name]])
            event = session_pb2.Event()
            kind: Any = event.DESCRIPTOR.fields_by_name[said].message_type
            getattr(event, said).CopyFrom(random_message(GetMessageClass(kind), self._draw, words))
        if self._draw.random() < 0.05:
            with contextlib.suppress(DecodeError):
                return session_pb2.Event.FromString(noise(event.SerializeToString(), self._draw))
        return event


def _as_bytes(request: Any) -> bytes:
    """Serialize a request, unless somebody has, and perhaps changed it."""
    return request if isinstance(request, bytes) else bytes(request.SerializeToString())


async def _read(session: Any, name: str) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
        async for _ in session:
            pass
    if (details := await session.details()) != WRITTEN_TOO_LATE:
        _check(await session.code(), f"session of {name}: {details}")


async def _first(call: Any) -> Any:
    """Return the answer, the first of a stream, which is cancelled then."""
    if not isinstance(call, grpc.aio.UnaryStreamCall):
        return await call
    try:
        return await call.read()
    finally:
        call.cancel()


def _names_newer_scheduler(kind: type[Any], raw: bytes, epoch: int) -> bool:
    """Tell whether bytes are a message with a greater term: that would rightly end the scheduler."""
    try:
        return newest_term(kind.FromString(raw)) > epoch
    except DecodeError:
        return False


def _check(code: grpc.StatusCode, story: str) -> None:
    assert code in FITTING or code is grpc.StatusCode.CANCELLED, f"{code} does not fit: {story}"


def _member(name: str, role: Role, address: str = "") -> Any:
    return wire.to_member(Member(name=name, role=role, incarnation=1, host=f"host-{name}", address=address))


def _is_about(instruction: session_pb2.Instruction, counter: int) -> bool:
    which = instruction.WhichOneof("instruction")
    inner = getattr(instruction, which) if which in ("send", "drop", "resolve") else None
    return inner is not None and inner.update.counter == counter
