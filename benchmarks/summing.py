"""What summing costs an aggregator beyond receiving: 8 sender processes push 100 MB each to one receiving process.

Three ways of taking the pushes in take turns in the same processes: into buffers, into nothing, and into a sum while
they arrive. A pass is timed at the receiver, from the first grant until every byte is where it belongs. The medians are
compared, over plain loopback and with the receiver's link emulated at 1 Gbit/s; beside them stand the shortest times
and the receiver's processor time, which tell more where other programs run too. Memory is measured in a fresh process
that only sums: the highest resident size, less that before the sum was allocated, over the tensor's size.

``mlfabric bench summing --json FILE``.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.checking import at_least_one
from mlfabric.channels import Connection, Frame, FrameKind, TcpChannel, TcpOptions
from mlfabric.model.specs import Layout, TensorSpec

__all__ = ["run"]

SENDERS = 8
LINK_BPS = 1_000_000_000
WARM_UP = 1
FIGURES = ("", "_min", "_cpu")
"""What is said about each way: median time, shortest time, median processor time."""
TIMEOUT_S = 120.0
GRANT = Frame(kind=FrameKind.GRANT, ticket=bytes(16))
DONE = Frame(kind=FrameKind.OUTCOME, ticket=bytes(16))
READY = Frame(kind=FrameKind.OFFER, ticket=bytes(16))

Take = Callable[[Connection, int, int], Awaitable[object]]
"""Takes the payload in that a connection has announced: connection, which input, length."""

Pass = Callable[[], Take]
"""Begins a new pass of taking everything in, one way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """What a receiver measures.

    Args:
        ways: of ``WAYS``.
        rounds: of each, after one that does not count.
        tensor_bytes: of each sender's payload.
        down_bps: rate of the receiver's emulated link; 0 for none.
    """

    ways: tuple[str, ...]
    rounds: int
    tensor_bytes: int
    down_bps: int = 0


def run(rounds: int = 9, shaped_rounds: int = 3, megabytes: int = 100) -> dict[str, float]:
    """Measure what summing costs.

    Args:
        rounds: over loopback, after one that does not count; >= 1.
        shaped_rounds: over the emulated link, each about 20 s; >= 1.
        megabytes: of each sender's payload, >= 1.

    Returns:
        ``sum_over_receive_time``: over loopback, time to sum over time to receive into buffers;
        ``sum_over_discard_time`` over time to receive into nothing; ``sum_over_receive_time_1gbit`` over the emulated
        link. ``{buffers,discard,sum}_s``, with ``_1gbit`` too: median times; ``_min_s``: shortest; ``_cpu_s``: the
        receiver's processor time in all its threads, median. ``aggregator_peak_tensors``: by resident size, for a sum
        of one image.

    Raises:
        UsageError: a number is out of range.
        RuntimeError: a measuring process failed or was too slow.
    """
    at_least_one(rounds=rounds, shaped_rounds=shaped_rounds, megabytes=megabytes)
    plain_course = _Course(ways=("buffers", "discard", "sum"), rounds=rounds, tensor_bytes=1_000_000 * megabytes)
    shaped_course = replace(plain_course, ways=("buffers", "sum"), rounds=shaped_rounds, down_bps=LINK_BPS)
    plain, shaped = _measure(plain_course), _measure(shaped_course)
    return {
        "sum_over_receive_time": plain["sum"] / plain["buffers"],
        "sum_over_discard_time": plain["sum"] / plain["discard"],
        "sum_over_receive_time_1gbit": shaped["sum"] / shaped["buffers"],
        "aggregator_peak_tensors": _measure(replace(plain_course, ways=("sum",), rounds=1))["peak_tensors"],
        **{f"{way}{figure}_s": plain[way + figure] for way in ("buffers", "discard", "sum") for figure in FIGURES},
        **{f"{way}_1gbit{figure}_s": shaped[way + figure] for way in ("buffers", "sum") for figure in FIGURES},
    }


def _measure(course: _Course) -> dict[str, float]:
    """Run receiver and senders in fresh processes and return what the receiver measured."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with ExitStack() as ending:
        receiver = context.Process(target=_receive, args=(theirs, course))
        receiver.start()
        ending.callback(_end, receiver)
        theirs.close()
        address = _next(ours)
        for seed in range(SENDERS):
            sender = context.Process(target=_send, args=(address, seed, course.tensor_bytes))
            sender.start()
            ending.callback(_end, sender)
        found: dict[str, float] = _next(ours)
        return found


def _end(process: multiprocessing.process.BaseProcess) -> None:
    process.kill()
    process.join()


def _next(pipe: Pipe) -> Any:
    try:
        if not pipe.poll(TIMEOUT_S):
            raise RuntimeError(f"a measuring process did not answer within {TIMEOUT_S} s; is the machine busy?")
        return pipe.recv()
    except EOFError as error:
        raise RuntimeError("a measuring process failed; its own error is above") from error


# The sending side


def _send(address: str, seed: int, tensor_bytes: int) -> None:
    data = np.random.default_rng(seed).standard_normal(tensor_bytes // 4, dtype=np.float32)
    asyncio.run(_push_when_granted(address, data))


async def _push_when_granted(address: str, data: np.ndarray) -> None:
    connection = await TcpChannel().connect(address)
    frame = Frame(kind=FrameKind.PAYLOAD, ticket=GRANT.ticket, length=data.nbytes)
    await connection.send(READY)
    while (await connection.receive()).kind is FrameKind.GRANT:
        await connection.send(frame, [data.data])


# The receiving side


def _receive(pipe: Pipe, course: _Course) -> None:
    import_module("mlfabric.transfer.running_sum")  # before memory is measured, and not in senders: it loads torch
    pipe.send(asyncio.run(_take_pushes(pipe, course)))
    pipe.poll(None)  # the parent ends this process


async def _take_pushes(pipe: Pipe, course: _Course) -> dict[str, float]:
    arrived: asyncio.Queue[Connection] = asyncio.Queue()

    async def keep(connection: Connection) -> None:
        await connection.receive()
        arrived.put_nowait(connection)
        await connection.wait_closed()

    channel = TcpChannel(TcpOptions(down_bps=course.down_bps))
    pipe.send(await channel.listen(keep))
    connections = [await arrived.get() for _ in range(SENDERS)]
    before_bytes = psutil.Process().memory_info().rss
    figures = await _take_turns(connections, course)
    for connection in connections:
        await connection.send(DONE)
    peak_tensors = (_highest_rss_bytes() - before_bytes) / course.tensor_bytes
    await channel.close()
    return {**figures, "peak_tensors": peak_tensors}


async def _take_turns(connections: Sequence[Connection], course: _Course) -> dict[str, float]:
    """Take the pushes in every way in every round, each round beginning with another; return ``FIGURES`` in s."""
    ways = course.ways
    passes = {way: WAYS[way](course.tensor_bytes) for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    cpu_seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(WARM_UP + course.rounds):
        first = number % len(ways)
        for way in (*ways[first:], *ways[:first]):
            take = passes[way]()
            started_s, started_cpu_s = time.perf_counter(), time.process_time()
            await asyncio.gather(*(_pull(take, connection, k) for k, connection in enumerate(connections)))
            if number >= WARM_UP:
                seconds[way].append(time.perf_counter() - started_s)
                cpu_seconds[way].append(time.process_time() - started_cpu_s)
    return {
        **{way: statistics.median(taken) for way, taken in seconds.items()},
        **{f"{way}_min": min(taken) for way, taken in seconds.items()},
        **{f"{way}_cpu": statistics.median(taken) for way, taken in cpu_seconds.items()},
    }


async def _pull(take: Take, connection: Connection, index: int) -> None:
    await connection.send(GRANT)
    frame = await connection.receive()
    await take(connection, index, frame.length)


def _into_buffers(tensor_bytes: int) -> Pass:
    buffers = [_reserved(tensor_bytes) for _ in range(SENDERS)]
    return lambda: lambda connection, index, length: connection.receive_into(buffers[index], length)


def _into_nothing(_tensor_bytes: int) -> Pass:
    return lambda: lambda connection, _index, length: connection.discard(length)


def _into_sum(tensor_bytes: int) -> Pass:
    from mlfabric.transfer.running_sum import Accumulator, Input

    buffer = _reserved(tensor_bytes)
    layout = Layout((TensorSpec(name="weight", shape=(tensor_bytes // 4,), dtype="float32"),))
    return lambda: Accumulator(layout, [Input()] * SENDERS, buffer=buffer).receive


WAYS: dict[str, Callable[[int], Pass]] = {"buffers": _into_buffers, "discard": _into_nothing, "sum": _into_sum}


def _reserved(tensor_bytes: int) -> memoryview:
    """Return a buffer whose pages are there before the clock starts."""
    return memoryview(np.ones(tensor_bytes, dtype=np.uint8).data)


def _highest_rss_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
