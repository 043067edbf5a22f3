"""A thousand workers against one scheduler: whether all are let in, how long they wait, whether its memory stays flat.

The workers and a server are simulated (see ``simulated_members``), in a few processes; each has a connection, a
registration and a session of its own. All register at once. Then each pushes at random times, on average once in
``every_s`` seconds; one that is not answered by the next time waits, and its waiting counts. Meanwhile the scheduler's
resident memory is looked at once a second.

``mlfabric bench load --json FILE``.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any

import grpc
import psutil

from benchmarks.processes import child, next_answer, run_on_loop, scheduler_process
from benchmarks.simulated_members import SimulatedServer, SimulatedWorker
from mlfabric.shell.scheduler_link import CHANNEL_OPTIONS
from mlfabric.v1 import fabric_pb2_grpc

__all__ = ["run"]

LOOK_S = 1.0
JOIN_WITHIN_S = 60.0
LAST_ANSWERS_S = 10.0
VERSION_EVERY_S = 0.01


@dataclass(frozen=True, kw_only=True)
class _Share:
    """What one process simulates: the workers from ``first`` on; the first of the processes also the server."""

    scheduler: str
    first: int
    workers: int
    every_s: float
    seconds: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class _Board:
    """What the server tells the workers of all processes: the newest version, and of each the pushes that are over."""

    version: Any
    resolved: Any


@dataclass
class _Found:
    """What one process has seen."""

    refused: int = 0
    lost: int = 0
    unanswered: int = 0
    latencies_s: list[float] = field(default_factory=list)


def run(
    workers: int = 1000,
    seconds: float = 120.0,
    settle_s: float = 30.0,
    every_s: float = 1.0,
    processes: int = 2,
    seed: int = 0,
) -> dict[str, float]:
    """Load one scheduler; takes a little longer than ``seconds``.

    Args:
        workers: how many.
        seconds: how long they push.
        settle_s: memory is compared with what it is after so long; less than ``seconds``.
        every_s: mean time between two pushes of a worker.
        processes: that simulate them.
        seed: of the times of pushes.

    Returns:
        ``refused`` registrations, ``lost`` sessions and ``unanswered`` pushes; ``join_s`` until all were in;
        ``decisions_per_s``, ``p50_ms``, ``p99_ms`` and ``max_ms`` from when a push was due until it was decided;
        ``rss_mb`` after ``settle_s`` and its ``growth`` from then on, as a share; ``scheduler_cpu`` in cores.

    Raises:
        RuntimeError: a process failed or was too slow.
    """
    with (
        scheduler_process() as (address, pid),
        _simulators(address, workers, processes, every_s, seconds, seed) as all_,
    ):
        began_s = time.monotonic()
        for pipe in all_:
            pipe.send("join")
        refused = sum(next_answer(pipe, JOIN_WITHIN_S) for pipe in all_)
        join_s = time.monotonic() - began_s
        scheduler = psutil.Process(pid)
        used_s = sum(scheduler.cpu_times()[:2])
        for pipe in all_:
            pipe.send("push")
        sizes = _sizes(scheduler, seconds, settle_s)
        used_s = sum(scheduler.cpu_times()[:2]) - used_s
        found = [next_answer(pipe, LAST_ANSWERS_S + JOIN_WITHIN_S) for pipe in all_]
        for pipe in all_:
            pipe.send("end")
    latencies_ms = sorted(1e3 * s for share in found for s in share.latencies_s)
    return {
        "workers": workers,
        "refused": refused,
        "lost": sum(share.lost for share in found),
        "unanswered": sum(share.unanswered for share in found),
        "join_s": join_s,
        "decisions_per_s": len(latencies_ms) / seconds,
        "p50_ms": latencies_ms[len(latencies_ms) // 2],
        "p99_ms": latencies_ms[int(len(latencies_ms) * 0.99)],
        "max_ms": latencies_ms[-1],
        "rss_mb": sizes[0] / 1e6,
        "growth": max(sizes) / sizes[0] - 1.0,
        "scheduler_cpu": used_s / seconds,
    }


def _sizes(scheduler: psutil.Process, seconds: float, settle_s: float) -> list[int]:
    """Return the resident memory from ``settle_s`` on, once a second."""
    began_s = time.monotonic()
    time.sleep(settle_s)
    sizes = [scheduler.memory_info().rss]
    while time.monotonic() < began_s + seconds:
        time.sleep(LOOK_S)
        sizes.append(scheduler.memory_info().rss)
    return sizes


# The members' processes


@contextmanager
def _simulators(
    scheduler: str, workers: int, processes: int, every_s: float, seconds: float, seed: int
) -> Iterator[list[Pipe]]:
    """Run the processes that simulate members; the server has joined when they are given."""
    context = multiprocessing.get_context("spawn")
    board = _Board(version=context.Value("q", 0), resolved=context.Array("q", workers, lock=False))
    with ExitStack() as stack:
        pipes = []
        for i in range(processes):
            first = i * workers // processes
            share = _Share(
                scheduler=scheduler,
                first=first,
                workers=(i + 1) * workers // processes - first,
                every_s=every_s,
                seconds=seconds,
                seed=seed + i,
            )
            pipes.append(stack.enter_context(child(partial(_simulate, share, board))))
        for pipe in pipes:
            next_answer(pipe, JOIN_WITHIN_S)
        yield pipes


def _simulate(share: _Share, board: _Board, pipe: Pipe) -> None:
    run_on_loop(_Simulator(share, board).run(pipe))


class _Simulator:
    """The members of one process.

    Args:
        board: shared by all processes.
    """

    def __init__(self, share: _Share, board: _Board) -> None:
        self._share = share
        self._board = board
        self._random = random.Random(share.seed)
        self._answered: dict[str, asyncio.Event] = {}
        self._found = _Found()

    @property
    def version(self) -> int:
        """The model's newest version."""
        return int(self._board.version.value)

    def resolved_below(self, worker: str) -> int:
        """The counter below which a worker's pushes are over."""
        return int(self._board.resolved[_number(worker)])

    async def decided(self, worker: SimulatedWorker) -> None:
        """Note how long a worker has waited."""
        self._found.latencies_s.append(time.perf_counter() - worker.asked_s)
        self._answered[worker.name].set()

    async def run(self, pipe: Pipe) -> None:
        """Join, push and tell what was seen, each when told to; the server stays until all have pushed."""
        server = asyncio.create_task(self._serve()) if self._share.first == 0 else None
        if server is not None:
            await server
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        workers = await self._join()
        pipe.send(self._found.refused)
        await asyncio.to_thread(pipe.recv)
        await self._push(workers)
        self._found.lost = sum(worker.task.done() for worker in workers)
        pipe.send(self._found)
        await asyncio.to_thread(pipe.recv)

    def _stub(self) -> Any:
        """Return a stub on a connection of its own."""
        return fabric_pb2_grpc.FabricServiceStub(
            grpc.aio.insecure_channel(self._share.scheduler, options=CHANNEL_OPTIONS)
        )

    async def _serve(self) -> None:
        """Join as the server; from then on the others are told what it has committed."""
        server = SimulatedServer(self._stub())
        await server.join()

        async def tell() -> None:
            while True:
                self._board.version.value = server.version
                for worker in server.committed:
                    self._board.resolved[_number(worker)] = server.resolved_below(worker)
                await asyncio.sleep(VERSION_EVERY_S)

        self._telling = asyncio.create_task(tell())

    async def _join(self) -> list[SimulatedWorker]:
        """Have all workers join at once; return those that were let in."""
        first = self._share.first
        workers = [SimulatedWorker(_name(i), self) for i in range(first, first + self._share.workers)]
        joined = await asyncio.gather(*(worker.join(self._stub()) for worker in workers), return_exceptions=True)
        self._found.refused = sum(end is not None for end in joined)
        return [worker for worker, end in zip(workers, joined, strict=True) if end is None]

    async def _push(self, workers: list[SimulatedWorker]) -> None:
        """Have all workers push for the time given, and wait for the last answers."""
        pushing = [asyncio.create_task(self._keep_pushing(worker)) for worker in workers]
        _, late = await asyncio.wait(pushing, timeout=self._share.seconds + LAST_ANSWERS_S)
        self._found.unanswered = len(late)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _keep_pushing(self, worker: SimulatedWorker) -> None:
        due_s = time.perf_counter()
        until_s = due_s + self._share.seconds
        answered = self._answered[worker.name] = asyncio.Event()
        while True:
            due_s += self._random.expovariate(1 / self._share.every_s)
            await asyncio.sleep(max(0.0, min(due_s, until_s) - time.perf_counter()))
            if time.perf_counter() >= until_s:
                return
            answered.clear()
            await worker.ask(due_s)
            await answered.wait()


def _name(number: int) -> str:
    return f"worker-{number}"


def _number(name: str) -> int:
    return int(name.removeprefix("worker-"))
