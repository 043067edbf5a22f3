"""Load for the control benchmark: many workers and a server, none of which moves a byte, in one process.

Each has a registration and a session stream of its own, as real members do. The server says of everything that it is
told to expect that it has arrived and is committed, so the scheduler's tables stay as they are in a running job.
Also here: the same streams against an echo, to compare with.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from importlib import import_module, util
from multiprocessing.connection import Connection as Pipe
from typing import Any, TypeAlias, TypeVar

import grpc
import psutil

from mlfabric import wire
from mlfabric.protocol import ModelVersion, ServerHolds
from mlfabric.session import CHANNEL_OPTIONS
from mlfabric.specs import Layout, Member, ModelSpec, Role, TensorSpec
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc, session_pb2, types_pb2

__all__ = ["HOST", "LoadOptions", "measure", "run_on_loop", "serve_echo"]

WORKERS = 256
REPORT_S = 0.002
HOST = "127.0.0.1"
# Small enough that the server's emulated ingress never is what limits: 4 KB on 10 Gbit/s take 3 us.
SPEC = ModelSpec(name="model", layout=Layout((TensorSpec(name="w", shape=(1024,), dtype="float32"),)))
SERVER = "server-0"

T = TypeVar("T")
Call: TypeAlias = "grpc.aio.StreamStreamCall[fabric_pb2.SessionRequest, fabric_pb2.SessionResponse]"


def run_on_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the event loop that services use: uvloop's where it is installed."""
    factory = import_module("uvloop").new_event_loop if util.find_spec("uvloop") else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What is measured.

    Args:
        scheduler, echo: ``host:port`` of each.
        scheduler_pid: process whose CPU time is counted.
        rate_per_s: arrivals in the open loop.
        warm_up_s: before each window of the closed loops.
        seconds: length of each window.
        rounds: how often everything is measured, in turns; medians are told.
        seed: of the arrivals.
    """

    scheduler: str
    echo: str
    scheduler_pid: int
    rate_per_s: float
    warm_up_s: float = 1.0
    seconds: float = 3.0
    rounds: int = 3
    seed: int = 0


def _member(name: str, role: Role) -> types_pb2.Member:
    address = f"{HOST}:9" if role is Role.SERVER else ""
    return wire.to_member(Member(name=name, role=role, incarnation=1, host=f"host-{name}", address=address))


async def _open(stub: Any, name: str, admission: fabric_pb2.Admission) -> Call:
    call: Call = stub.Session()
    await call.write(fabric_pb2.SessionRequest(member=name, incarnation=1, session_token=admission.session_token))
    return call


@dataclass
class _Server:
    """The server that holds nothing: what it is told to expect is committed a moment later."""

    stub: Any
    version: int = 0
    expected: dict[tuple[str, int], session_pb2.Expect] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def join(self) -> None:
        request = fabric_pb2.RegisterAsServerRequest(member=_member(SERVER, Role.SERVER), models=[wire.to_spec(SPEC)])
        admission = (await self.stub.RegisterAsServer(request, wait_for_ready=True)).admission
        self.call = await _open(self.stub, SERVER, admission)
        holds = ServerHolds(server=SERVER, spec=SPEC, version=ModelVersion(1, 0), initialised=True)
        await self.call.write(fabric_pb2.SessionRequest(events=[wire.to_event(holds)]))
        self.tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._report())]

    async def _read(self) -> None:
        while isinstance(response := await self.call.read(), fabric_pb2.SessionResponse):
            for instruction in response.instructions:
                if instruction.HasField("expect"):
                    update = instruction.expect.members[0].update
                    if self.committed.get(update.worker, -1) < update.counter:
                        self.expected[update.worker, update.counter] = instruction.expect
            self.wake.set()

    async def _report(self) -> None:
        while True:
            await self.wake.wait()
            await asyncio.sleep(REPORT_S)
            self.wake.clear()
            expected, self.expected = sorted(self.expected.values(), key=lambda e: e.seq), {}
            if expected:
                await self.call.write(fabric_pb2.SessionRequest(events=self._events(expected)))

    def _events(self, expected: list[session_pb2.Expect]) -> list[session_pb2.Event]:
        commits, events = [], []
        for order in expected:
            update, base = order.members[0].update, order.members[0].computed_from
            tau = self.version - base.number
            self.version += 1
            self.committed[update.worker] = update.counter
            version = types_pb2.ModelVersion(epoch=1, number=self.version)
            commits.append(session_pb2.Commit(update=update, version=version, tau=tau, lr=0.1, step_norm=1.0))
            ended = session_pb2.TransferEnded(
                member=SERVER, model=SPEC.name, update=update, end=session_pb2.TRANSFER_END_RECEIVED
            )
            events.append(session_pb2.Event(transfer_ended=ended))
        reported = session_pb2.CommitsReported(server=SERVER, model=SPEC.name, commits=commits)
        return [*events, session_pb2.Event(commits_reported=reported)]


class _Worker:
    """A worker that asks, and notes how long the answer takes."""

    def __init__(self, name: str, load: _Load) -> None:
        self.name = name
        self.counter = 0
        self.asked_s = 0.0
        self._load = load

    async def join(self, stub: Any) -> None:
        request = fabric_pb2.RegisterAsWorkerRequest(
            member=_member(self.name, Role.WORKER), model=wire.to_spec(SPEC), holds_initial=False
        )
        self.call = await _open(stub, self.name, (await stub.RegisterAsWorker(request, wait_for_ready=True)).admission)
        self.task = asyncio.create_task(self._read())

    async def ask(self, due_s: float) -> None:
        """Ask to push; latency counts from ``due_s``."""
        self.asked_s = due_s
        push = session_pb2.PushRequested(
            update=types_pb2.RequestId(worker=self.name, incarnation=1, counter=self.counter),
            model=SPEC.name,
            size_bytes=SPEC.layout.size_bytes,
            computed_from=types_pb2.ModelVersion(epoch=1, number=self._load.server.version),
            norm=1.0,
            kind=session_pb2.UPDATE_KIND_GRADIENT,
            resolved_below=max(0, self.counter - 1),
        )
        await self.call.write(fabric_pb2.SessionRequest(events=[session_pb2.Event(push_requested=push)]))

    async def _read(self) -> None:
        while isinstance(response := await self.call.read(), fabric_pb2.SessionResponse):
            for instruction in response.instructions:
                kind = instruction.WhichOneof("instruction")
                if kind not in ("send", "drop"):
                    continue
                if getattr(instruction, kind).update.counter == self.counter:
                    self.counter += 1
                    await self._load.decided(self)


class _Load:
    """All simulated members, closed loop or open."""

    def __init__(self, options: LoadOptions) -> None:
        self.latencies_s: list[float] = []
        self.closed = False
        self.idle: deque[_Worker] = deque()
        self._options = options
        self._scheduler = psutil.Process(options.scheduler_pid)
        self._gaps = random.Random(options.seed)

    async def join(self) -> None:
        address = self._options.scheduler
        channels = [grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) for _ in range(WORKERS + 1)]
        stubs = [fabric_pb2_grpc.FabricServiceStub(channel) for channel in channels]
        self.server = _Server(stubs[0])
        await self.server.join()
        self.workers = [_Worker(f"worker-{i}", self) for i in range(WORKERS)]
        await asyncio.gather(*(w.join(stub) for w, stub in zip(self.workers, stubs[1:], strict=True)))
        self.idle.extend(self.workers)

    async def decided(self, worker: _Worker) -> None:
        now_s = time.perf_counter()
        self.latencies_s.append(now_s - worker.asked_s)
        if self.closed:
            await worker.ask(now_s)
        else:
            self.idle.append(worker)

    async def closed_loop(self) -> dict[str, float]:
        """Have every worker ask again as soon as it is answered."""
        self.closed = True
        while self.idle:
            await self.idle.popleft().ask(time.perf_counter())
        await asyncio.sleep(self._options.warm_up_s)
        self.latencies_s.clear()
        began_s, theirs_s, ours_s = time.perf_counter(), self._scheduler_s(), time.process_time()
        await asyncio.sleep(self._options.seconds)
        count, took_s = len(self.latencies_s), time.perf_counter() - began_s
        figures = {
            "decisions_per_s": count / took_s,
            "closed_p50_ms": 1e3 * statistics.median(self.latencies_s),
            "scheduler_cpu_us_per_decision": 1e6 * (self._scheduler_s() - theirs_s) / count,
            "client_cpu_us_per_decision": 1e6 * (time.process_time() - ours_s) / count,
        }
        self.closed = False
        await self._until_idle()
        return figures

    async def open_loop(self) -> dict[str, float]:
        """Ask at Poisson arrivals; an arrival that finds every worker busy waits, and its waiting counts."""
        self.latencies_s.clear()
        rate_per_s = self._options.rate_per_s
        due_s = began_s = time.perf_counter()
        while due_s < began_s + self._options.seconds:
            now_s = time.perf_counter()
            while due_s <= now_s and self.idle:
                await self.idle.popleft().ask(due_s)
                due_s += self._gaps.expovariate(rate_per_s)
            await asyncio.sleep(max(0.0, min(due_s - now_s, 0.001)))
        kept, took_s = sorted(self.latencies_s), time.perf_counter() - began_s
        await self._until_idle()
        return {
            "open_per_s": len(kept) / took_s,
            "p50_ms": 1e3 * kept[len(kept) // 2],
            "p99_ms": 1e3 * kept[int(len(kept) * 0.99)],
        }

    async def _until_idle(self) -> None:
        while len(self.idle) < WORKERS:
            await asyncio.sleep(0.01)

    def _scheduler_s(self) -> float:
        used = self._scheduler.cpu_times()
        return used.user + used.system


async def measure(options: LoadOptions) -> dict[str, float]:
    """Measure the closed loop, the open one and the echo, in turns.

    Returns:
        The median over the rounds of each figure.
    """
    load = _Load(options)
    await load.join()
    echoes = [grpc.aio.insecure_channel(options.echo, options=CHANNEL_OPTIONS) for _ in range(WORKERS)]
    found: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(options.rounds):
        figures = {**await load.closed_loop(), **await load.open_loop(), **await _echo(echoes, options)}
        for name, value in figures.items():
            found[name].append(value)
    return {name: statistics.median(values) for name, values in found.items()}


# The echo


async def _answer_all(requests: Any, context: Any) -> None:
    """Answer each request with one instruction, as the scheduler does, but decide nothing."""
    update = types_pb2.RequestId(worker="worker-100", incarnation=1, counter=100)
    send = session_pb2.Send(update=update, receiver=SERVER, address=f"{HOST}:9", seq=1 << 60, ticket=bytes(16))
    instruction = session_pb2.Instruction(reason="shortest transfer first: 0.1 ms", send=send)
    answer = fabric_pb2.SessionResponse(epoch=1, instructions=[instruction])
    while await context.read() is not grpc.aio.EOF:
        await context.write(answer)


async def serve_echo(pipe: Pipe) -> None:
    """Serve the echo for as long as the process runs; its port goes through the pipe."""
    server = grpc.aio.server()
    session = grpc.stream_stream_rpc_method_handler(
        _answer_all,
        request_deserializer=fabric_pb2.SessionRequest.FromString,
        response_serializer=fabric_pb2.SessionResponse.SerializeToString,
    )
    name = fabric_pb2.DESCRIPTOR.services_by_name["FabricService"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Session": session}),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    pipe.send(port)
    await server.wait_for_termination()


async def _echo(channels: list[grpc.aio.Channel], options: LoadOptions) -> dict[str, float]:
    """Do what the closed loop does, against the echo."""
    count = 0
    push = session_pb2.PushRequested(
        update=types_pb2.RequestId(worker="worker-100", incarnation=1, counter=100),
        model=SPEC.name,
        size_bytes=SPEC.layout.size_bytes,
        computed_from=types_pb2.ModelVersion(epoch=1, number=10_000),
        norm=1.0,
        resolved_below=99,
    )
    request = fabric_pb2.SessionRequest(events=[session_pb2.Event(push_requested=push)])

    async def talk(channel: grpc.aio.Channel) -> None:
        nonlocal count
        call = fabric_pb2_grpc.FabricServiceStub(channel).Session()
        while True:
            await call.write(request)
            await call.read()
            count += 1

    talking = [asyncio.create_task(talk(channel)) for channel in channels]
    await asyncio.sleep(options.warm_up_s)
    before, began_s = count, time.perf_counter()
    await asyncio.sleep(options.seconds)
    per_s = (count - before) / (time.perf_counter() - began_s)
    for task in talking:
        task.cancel()
    await asyncio.gather(*talking, return_exceptions=True)
    return {"bare_per_s": per_s}
