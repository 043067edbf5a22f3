"""What the status page costs: the scheduler's processor time, and whether rounds come later, with some pages open.

Workers of one process make rounds of a small model, about three each second. Windows without and with open pages take
turns; a page is read as a browser reads it. Then single workers are killed, and it is seen when the page says so. The
figures are medians of the pairs, and of the killed ones.

``mlfabric bench page --json FILE``.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection as Pipe
from threading import Thread
from typing import NamedTuple

import grpc
import psutil
import torch

import mlfabric
from benchmarks.forked_workers import settings_of
from benchmarks.processes import child, next_answer, scheduler_process
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc

__all__ = ["run"]

STEP_S = 0.23
PATIENCE_S = 600.0
FIRST_ROUNDS = 6
WIDTH = 64
LOOK_S = 0.01


def run(workers: int = 30, pages: int = 4, seconds: float = 8.0, pairs: int = 5) -> dict[str, float]:
    """Measure the page on this machine; about two minutes.

    Args:
        workers: that make rounds.
        pages: that are open in every other window.
        seconds: length of a window, which begins and ends with a round.
        pairs: of windows.

    Returns:
        ``core_share``, ``core_share_with_pages``: the scheduler's processor time over the time that passes, and
        ``added_core_share``, the difference. ``rounds_per_s``, and ``rounds_ratio``, that with pages over that without.
        ``dead_after_s``, and ``dead_after_s_at_most``: from when a worker is killed until the page says so.

    Raises:
        RuntimeError: the workers failed or were too slow.
    """
    with scheduler_process("--metrics-port", "0") as (address, pid), grpc.insecure_channel(address) as channel:
        stub = fabric_pb2_grpc.FabricServiceStub(channel)
        with child(partial(_train, address, workers)) as trainer:
            next_answer(trainer)
            page = stub.GetStatus(fabric_pb2.GetStatusRequest()).page
            look = partial(_window, stub, pid, page, seconds)
            found = [(look(pages=0), look(pages=pages)) for _ in range(pairs)]
            dead_after_s = [_dead_after_s(address, page, f"killed-{trial}") for trial in range(pairs)]
    median = statistics.median
    return {
        "core_share": median(without.core_share for without, _ in found),
        "core_share_with_pages": median(with_pages.core_share for _, with_pages in found),
        "added_core_share": median(with_pages.core_share - without.core_share for without, with_pages in found),
        "rounds_per_s": median(without.rounds_per_s for without, _ in found),
        "rounds_ratio": median(with_pages.rounds_per_s / without.rounds_per_s for without, with_pages in found),
        "dead_after_s": median(dead_after_s),
        "dead_after_s_at_most": max(dead_after_s),
    }


class _Window(NamedTuple):
    core_share: float
    rounds_per_s: float


def _window(stub: fabric_pb2_grpc.FabricServiceStub, pid: int, page: str, seconds: float, pages: int) -> _Window:
    process = psutil.Process(pid)
    with ExitStack() as stack:
        for _ in range(pages):
            stack.enter_context(_open_page(page))
        time.sleep(1)  # what is kept of the past has been sent
        first, began_s = _next_round(stub)
        used_s = sum(process.cpu_times()[:2])
        time.sleep(seconds)
        used_s, took_s = sum(process.cpu_times()[:2]) - used_s, time.monotonic() - began_s
        last, ended_s = _next_round(stub)
    return _Window(used_s / took_s, (last - first) / (ended_s - began_s))


def _next_round(stub: fabric_pb2_grpc.FabricServiceStub) -> tuple[int, float]:
    """Wait for the end of a round; return how many there were, and when that was."""
    before = found = _rounds(stub)
    while found == before:
        time.sleep(LOOK_S)
        found = _rounds(stub)
    return found, time.monotonic()


def _rounds(stub: fabric_pb2_grpc.FabricServiceStub) -> int:
    return int(stub.GetStatus(fabric_pb2.GetStatusRequest()).models[0].version.number)


@contextmanager
def _open_page(page: str) -> Iterator[None]:
    """Read a page's stream, as a browser does, until the context ends."""
    with urllib.request.urlopen(f"{page}events", timeout=30) as stream:
        reading = Thread(target=_read, args=(stream,), daemon=True)
        reading.start()
        yield
        stream.fp.raw._sock.shutdown(2)
        reading.join()


def _read(stream: Iterator[bytes]) -> None:
    for _ in stream:
        pass


def _dead_after_s(address: str, page: str, name: str) -> float:
    """Kill a worker that trains a model of its own; return how long the page shows it as here."""
    with child(partial(_live, address, name)) as pipe, urllib.request.urlopen(f"{page}events", timeout=30) as stream:
        pid = next_answer(pipe)
        while not _is_here(stream, name):
            pass
        os.kill(pid, signal.SIGKILL)
        killed_s = time.monotonic()
        while _is_here(stream, name):
            pass
        return time.monotonic() - killed_s


def _is_here(stream: Iterator[bytes], name: str) -> bool:
    """Wait for the next state on a page's stream; tell whether this member is here then."""
    kind = b""
    for line in stream:
        if line.startswith(b"event:"):
            kind = line.split()[1]
        elif line.startswith(b"data:") and kind == b"state":
            members = json.loads(line[len(b"data:") :])["status"]["members"]
            return any(member["name"] == name and member["state"] == "here" for member in members)
    raise RuntimeError("the page's stream has ended")


def _live(address: str, name: str, pipe: Pipe) -> None:
    """Be a worker until the process is killed."""
    model = torch.nn.Linear(WIDTH, WIDTH)
    settings = replace(settings_of(address, 0), name=name)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    mlfabric.wrap(sgd, model, method="elastic", workers=1, model_name=name, settings=settings)
    pipe.send(os.getpid())
    time.sleep(PATIENCE_S)


def _train(address: str, workers: int, pipe: Pipe) -> None:
    """Make rounds until the process is ended."""
    threads = [Thread(target=_work, args=(address, rank, workers, pipe), daemon=True) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _work(address: str, rank: int, workers: int, pipe: Pipe) -> None:
    model = torch.nn.Linear(WIDTH, WIDTH)
    settings = settings_of(address, rank)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = mlfabric.wrap(sgd, model, method="all-reduce", workers=workers, settings=settings)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for step in range(1 << 30):
        time.sleep(STEP_S)
        optimizer.step()
        if rank == 0 and step == FIRST_ROUNDS:
            pipe.send("trains")
