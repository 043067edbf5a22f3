"""How fast and how lean the data channel is: a push (of 100 MB) between two processes over loopback.

Three transports take turns in the same two processes: a bare pair of nonblocking sockets (``sock_sendall`` against
``sock_recv_into``), our TCP channel, and gloo's send and recv. A push is timed at the sender, from the first byte until
a small acknowledgement is back; the medians are compared. Memory is measured in fresh processes: the highest resident
size, less the resident size before the tensor was allocated, over the tensor's size.

``mlfabric bench data --json FILE``.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import numpy as np
import psutil

from benchmarks.checking import at_least_one
from mlfabric.channels import Connection, Frame, FrameKind, TcpChannel

__all__ = ["run"]

WARM_UP = 2
TIMEOUT_S = 60.0
HOST = "127.0.0.1"
TICKET = bytes(16)
DONE = Frame(kind=FrameKind.OUTCOME, ticket=TICKET)

Transfer = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pushes:
    """What is pushed, and how often in each way."""

    tensor_bytes: int
    rounds: int


End = Callable[[Pipe, _Pushes], Awaitable[dict[str, float]]]


def run(rounds: int = 15, megabytes: int = 100) -> dict[str, float]:
    """Measure speed and memory of the data channel; a few seconds.

    Args:
        rounds: pushes of each transport that count, >= 1.
        megabytes: of the tensor, >= 1.

    Returns:
        ``ratio_to_raw`` and ``ratio_to_gloo``: our rate over theirs. ``peak_ratio``: the worst of the four
        ``peak_ratio_{push,get}_{sender,receiver}``. ``{raw,tcp,gloo}_gb_per_s``: median rates in 10^9 byte/s.

    Raises:
        UsageError: a number is out of range.
        RuntimeError: a measuring process failed or was too slow.
    """
    at_least_one(rounds=rounds, megabytes=megabytes)
    pushes = _Pushes(tensor_bytes=megabytes * 1_000_000, rounds=rounds)
    median_s, _ = _pair(_speed_sender, _speed_receiver, pushes)
    push_sender, push_receiver = _pair(_push_dialling, _push_accepting, pushes)
    get_receiver, get_sender = _pair(_get_dialling, _get_accepting, pushes)
    peaks = {
        "peak_ratio_push_sender": push_sender["peak_ratio"],
        "peak_ratio_push_receiver": push_receiver["peak_ratio"],
        "peak_ratio_get_sender": get_sender["peak_ratio"],
        "peak_ratio_get_receiver": get_receiver["peak_ratio"],
    }
    return {
        "ratio_to_raw": median_s["raw"] / median_s["tcp"],
        "ratio_to_gloo": median_s["gloo"] / median_s["tcp"],
        "peak_ratio": max(peaks.values()),
        **peaks,
        **{f"{name}_gb_per_s": pushes.tensor_bytes / 1e9 / value for name, value in median_s.items()},
    }


def _pair(dialling: End, accepting: End, pushes: _Pushes) -> tuple[dict[str, float], dict[str, float]]:
    """Run both ends in fresh processes, tell the dialling one the addresses, and return what each measured."""
    context = multiprocessing.get_context("spawn")
    started = []
    try:
        for end in (accepting, dialling):
            ours, theirs = context.Pipe()
            process = context.Process(target=_run_end, args=(end, theirs, pushes))
            process.start()
            theirs.close()
            started.append((process, ours))
        (_, acceptor), (_, dialler) = started
        dialler.send(_next(acceptor))
        return _next(dialler), _next(acceptor)
    finally:
        for process, ours in started:
            process.kill()
            process.join()
            ours.close()


def _next(pipe: Pipe) -> dict[str, float]:
    try:
        if not pipe.poll(TIMEOUT_S):
            raise RuntimeError(f"a measuring process did not answer within {TIMEOUT_S} s; is the machine busy?")
        answer: dict[str, float] = pipe.recv()
    except EOFError as error:
        raise RuntimeError("a measuring process failed; its own error is above") from error
    return answer


def _run_end(end: End, pipe: Pipe, pushes: _Pushes) -> None:
    async def measure() -> None:
        pipe.send(await end(pipe, pushes))

    asyncio.run(measure())
    pipe.poll(None)  # the parent ends this process, once it has read the answers of both


async def _accept_one(channel: TcpChannel) -> tuple[str, asyncio.Future[Connection]]:
    """Listen; the future is the first connection, which stays open for as long as the channel does."""
    accepted: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    async def keep(connection: Connection) -> None:
        accepted.set_result(connection)
        await connection.wait_closed()

    return await channel.listen(keep), accepted


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


# Speed


async def _speed_sender(pipe: Pipe, pushes: _Pushes) -> dict[str, float]:
    ports = pipe.recv()
    data = np.arange(pushes.tensor_bytes // 4, dtype=np.float32)
    gloo = _gloo(rank=0, port=int(ports["gloo"]))  # first: a channel closes connections that are silent for long
    raw = socket.create_connection((HOST, int(ports["raw"])))
    raw.setblocking(False)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = await TcpChannel().connect(f"{HOST}:{int(ports['tcp'])}")
    return await _take_turns(
        {
            "raw": lambda: _raw_push(raw, data.data.cast("B")),
            "tcp": lambda: _push(connection, data),
            "gloo": lambda: gloo(data),
        },
        pushes.rounds,
    )


async def _speed_receiver(pipe: Pipe, pushes: _Pushes) -> dict[str, float]:
    buffer = np.ones(pushes.tensor_bytes // 4, dtype=np.float32)
    channel = TcpChannel()
    address, accepted = await _accept_one(channel)
    store_port = _free_port()
    with socket.create_server((HOST, 0)) as listener:
        pipe.send({"raw": listener.getsockname()[1], "tcp": _port_of(address), "gloo": store_port})
        gloo = _gloo(rank=1, port=store_port)
        listener.setblocking(False)
        raw, _ = await asyncio.get_running_loop().sock_accept(listener)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = await accepted
    return await _take_turns(
        {
            "raw": lambda: _raw_take(raw, buffer.data.cast("B")),
            "tcp": lambda: _take(connection, buffer),
            "gloo": lambda: gloo(buffer),
        },
        pushes.rounds,
    )


async def _take_turns(transfers: dict[str, Transfer], rounds: int) -> dict[str, float]:
    """Run every transfer in every round, each round beginning with another one, and return median times in s."""
    names = list(transfers)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(WARM_UP + rounds):
        first = round_number % len(names)
        for name in names[first:] + names[:first]:
            started_s = time.perf_counter()
            await transfers[name]()
            if round_number >= WARM_UP:
                seconds[name].append(time.perf_counter() - started_s)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


async def _raw_push(sock: socket.socket, view: memoryview) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, view)
    await loop.sock_recv(sock, 1)


async def _raw_take(sock: socket.socket, view: memoryview) -> None:
    loop = asyncio.get_running_loop()
    at = 0
    while at < len(view):
        at += await loop.sock_recv_into(sock, view[at:])
    await loop.sock_sendall(sock, b"\x01")


async def _push(connection: Connection, data: np.ndarray) -> None:
    frame = Frame(kind=FrameKind.PAYLOAD, ticket=TICKET, length=data.nbytes)
    await connection.send(frame, [data.data])
    await connection.receive()


async def _take(connection: Connection, buffer: np.ndarray) -> None:
    frame = await connection.receive()
    await connection.receive_into(buffer.data, frame.length)
    await connection.send(DONE)


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def _gloo(*, rank: int, port: int) -> Callable[[np.ndarray], Awaitable[None]]:
    """Join a gloo group of two over loopback and return this rank's half of a push."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch  # here, so that the processes that measure memory need not load it
    from torch import distributed

    timeout = timedelta(seconds=TIMEOUT_S)
    distributed.init_process_group("gloo", init_method=f"tcp://{HOST}:{port}", rank=rank, world_size=2, timeout=timeout)
    acknowledgement = torch.zeros(1, dtype=torch.uint8)

    async def transfer(data: np.ndarray) -> None:
        first, second = (distributed.send, distributed.recv) if rank == 0 else (distributed.recv, distributed.send)
        first(torch.from_numpy(data), 1 - rank)
        second(acknowledgement, 1 - rank)

    return transfer


# Memory


async def _push_dialling(pipe: Pipe, pushes: _Pushes) -> dict[str, float]:
    connection = await _dial(pipe)
    return await _peak(lambda: _push(connection, np.ones(pushes.tensor_bytes // 4, dtype=np.float32)), pushes)


async def _push_accepting(pipe: Pipe, pushes: _Pushes) -> dict[str, float]:
    connection = await _accept(pipe)
    return await _peak(lambda: _take(connection, np.empty(pushes.tensor_bytes // 4, dtype=np.float32)), pushes)


async def _get_dialling(pipe: Pipe, pushes: _Pushes) -> dict[str, float]:
    connection = await _dial(pipe)
    return await _peak(lambda: _take(connection, np.empty(pushes.tensor_bytes // 4, dtype=np.float32)), pushes)


async def _get_accepting(pipe: Pipe, pushes: _Pushes) -> dict[str, float]:
    connection = await _accept(pipe)
    return await _peak(lambda: _push(connection, np.ones(pushes.tensor_bytes // 4, dtype=np.float32)), pushes)


async def _dial(pipe: Pipe) -> Connection:
    return await TcpChannel().connect(f"{HOST}:{int(pipe.recv()['tcp'])}")


async def _accept(pipe: Pipe) -> Connection:
    address, accepted = await _accept_one(TcpChannel())
    pipe.send({"tcp": _port_of(address)})
    return await accepted


async def _peak(transfer: Transfer, pushes: _Pushes) -> dict[str, float]:
    """Return by how much the highest resident size exceeds the present one, in tensors."""
    before_bytes = psutil.Process().memory_info().rss
    await transfer()
    return {"peak_ratio": (_highest_rss_bytes() - before_bytes) / pushes.tensor_bytes}


def _highest_rss_bytes() -> int:
    """Return VmHWM; getrusage's ru_maxrss would be the parent's where that is larger, for it survives exec."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
