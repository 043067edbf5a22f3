"""Load for the control benchmark: many simulated members in one process, in a closed loop and an open one.

Also here: the same streams against an echo, to compare with.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any, TypeVar

import grpc
import psutil

from benchmarks.processes import HOST
from benchmarks.simulated_members import SERVER, SPEC, SimulatedServer, SimulatedWorker
from mlfabric.shell.scheduler_link import CHANNEL_OPTIONS
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc, session_pb2, types_pb2

__all__ = ["LoadOptions", "measure", "serve_echo"]

WORKERS = 256
T = TypeVar("T")


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


class _Load:
    """All simulated members, closed loop or open."""

    def __init__(self, options: LoadOptions) -> None:
        self.latencies_s: list[float] = []
        self.closed = False
        self.idle: deque[SimulatedWorker] = deque()
        self._options = options
        self._scheduler = psutil.Process(options.scheduler_pid)
        self._gaps = random.Random(options.seed)

    @property
    def version(self) -> int:
        """The model's newest version."""
        return self.server.version

    def resolved_below(self, worker: str) -> int:
        """The counter below which a worker's pushes are over."""
        return self.server.resolved_below(worker)

    async def join(self) -> None:
        address = self._options.scheduler
        channels = [grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) for _ in range(WORKERS + 1)]
        stubs = [fabric_pb2_grpc.FabricServiceStub(channel) for channel in channels]
        self.server = SimulatedServer(stubs[0])
        await self.server.join()
        self.workers = [SimulatedWorker(f"worker-{i}", self) for i in range(WORKERS)]
        await asyncio.gather(*(w.join(stub) for w, stub in zip(self.workers, stubs[1:], strict=True)))
        self.idle.extend(self.workers)

    async def decided(self, worker: SimulatedWorker) -> None:
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
    answer = fabric_pb2.SessionResponse(term=1, instructions=[instruction])
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
