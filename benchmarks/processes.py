"""Processes for benchmarks of single services: a service, and children of this process that measure or make load."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module, util
from multiprocessing.connection import Connection as Pipe
from typing import Any, TypeVar

import grpc

from mlfabric.launch.ports import free_port
from mlfabric.v1 import fabric_pb2, fabric_pb2_grpc

__all__ = ["HOST", "child", "next_answer", "run_on_loop", "scheduler_process", "service"]

HOST = "127.0.0.1"
TIMEOUT_S = 60.0

T = TypeVar("T")


def run_on_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the event loop that services use: uvloop's where it is installed."""
    factory = import_module("uvloop").new_event_loop if util.find_spec("uvloop") else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


@contextmanager
def service(name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service until the context ends."""
    process = subprocess.Popen([sys.executable, "-m", "mlfabric", name, *arguments, "--log-level", "warning"])
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def scheduler_process(*arguments: str) -> Iterator[tuple[str, int]]:
    """Run a scheduler with further arguments; gives its address and process id."""
    port = free_port(HOST)
    command = ("scheduler", "--port", str(port), *arguments)
    with service(*command) as process, grpc.insecure_channel(f"{HOST}:{port}") as channel:
        status = fabric_pb2_grpc.FabricServiceStub(channel)
        status.GetStatus(fabric_pb2.GetStatusRequest(), wait_for_ready=True, timeout=TIMEOUT_S)
        yield f"{HOST}:{port}", process.pid


@contextmanager
def child(work: Callable[[Pipe], None]) -> Iterator[Pipe]:
    """Run ``work`` in a fresh process; gives our end of its pipe."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        ours, theirs = context.Pipe()
        stack.callback(ours.close)
        process = context.Process(target=work, args=(theirs,))
        process.start()
        stack.callback(process.join)
        stack.callback(process.kill)
        theirs.close()
        yield ours


def next_answer(pipe: Pipe, within_s: float = TIMEOUT_S) -> Any:
    """Return the next thing that a child has sent.

    Raises:
        RuntimeError: it has failed, or sent nothing in time.
    """
    try:
        if not pipe.poll(within_s):
            raise RuntimeError(f"a measuring process did not answer within {within_s} s; is the machine busy?")
        return pipe.recv()
    except EOFError as error:
        raise RuntimeError("a measuring process failed; its own error is above") from error
